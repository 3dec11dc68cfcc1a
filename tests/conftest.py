"""Fixtures that the whole suite shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from inflightd.daemon.models.catalog import CATALOG
from inflightd.daemon.models.pull import pull
from tests.support.nvtx_recording import build_injection

if TYPE_CHECKING:
    from inflightd.daemon.engines.openvino.engine import OpenVinoEngine
    from tests.reference.llama import ReferenceLlama


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What daemons write down when something goes wrong does not belong into anybody's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell starts background jobs with SIGINT ignored, and their children inherit it: no test of Ctrl-C would do."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2-135M-Instruct: INFLIGHTD_TEST_MODEL, or the cache, filled by a pull if need be."""
    if given := os.environ.get("INFLIGHTD_TEST_MODEL"):
        return Path(given)
    return pull(CATALOG["smollm2-135m-instruct"])


@pytest.fixture(scope="session")
def exact_engine(model_path: Path) -> Iterator[OpenVinoEngine]:
    """float32 arithmetic and float32 KV: what equality may be asked of.  One for the suite: loading it is slow."""
    from inflightd.daemon.engines.openvino.engine import load
    from inflightd.daemon.engines.openvino.options import OpenVinoOptions
    from inflightd.daemon.models.source import ModelSource

    source = ModelSource("gguf", model_path, "smollm2")
    options = OpenVinoOptions(
        source=source,
        num_blocks=128,
        num_host_blocks=32,
        precision="f32",
        kv_dtype="f32",
        max_num_tokens=128,
        max_batch_size=32,
    )
    engine = load(options)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def reference(model_path: Path) -> ReferenceLlama:
    """A plain NumPy forward pass of the same weights."""
    from tests.reference.llama import ReferenceLlama

    return ReferenceLlama(model_path)


@pytest.fixture(scope="session")
def nvtx_recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tool that takes NVTX, compiled for this run: see `tests.support.nvtx_recording`."""
    return build_injection(tmp_path_factory.mktemp("nvtx"))
