"""Plugins that fail, where children of this process find them."""

from pathlib import Path

import pytest

from tests.support.plugin_projects import FAULTY, lay_out, on_path


@pytest.fixture(scope="session")
def faulty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    lay_out(FAULTY, folder)
    return folder


@pytest.fixture
def _faulty_plugins(faulty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in on_path(faulty_folder).items():
        monkeypatch.setenv(name, value)
