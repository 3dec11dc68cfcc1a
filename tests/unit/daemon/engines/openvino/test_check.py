"""The start-up check of the library."""

from __future__ import annotations

from importlib import metadata

import openvino
import pytest

from inflightd.daemon.engines.openvino.check import REQUIRED_VERSION, check_openvino
from inflightd.daemon.errors import ConfigError


def test_the_installed_release_passes() -> None:
    check_openvino()
    assert metadata.version("openvino") == REQUIRED_VERSION


def test_another_release_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2027.0.0")
    with pytest.raises(ConfigError, match=r"2027\.0\.0 is installed.*pip install 'inflightd\[openvino\]'"):
        check_openvino()


def test_no_library_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(ConfigError, match=r"not installed; run: pip install"):
        check_openvino()


def test_a_release_without_the_private_operation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(openvino.op, "_PagedAttentionExtension")
    with pytest.raises(ConfigError, match="_PagedAttentionExtension"):
        check_openvino()
