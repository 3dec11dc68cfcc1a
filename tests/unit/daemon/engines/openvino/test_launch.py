"""Block pool and swap pool together fit into the memory there is, or nothing is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflightd.daemon.core.wire import ClassSettings, KvSettings, Start, StepLimits
from inflightd.daemon.engines.api import EngineInfo
from inflightd.daemon.engines.openvino import launch as launching
from inflightd.daemon.engines.openvino.kv_layout import block_bytes
from inflightd.daemon.errors import ConfigError
from inflightd.daemon.models.gguf_file import read_gguf
from tests.support.tiny_gguf import write_tiny_gguf

POOL_BLOCKS = 8


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return write_tiny_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def spare_blocks(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The machine has room for the weights, the pool and as many blocks again as this."""
    gguf = read_gguf(path)
    spare = 20
    available = launching._weight_bytes(gguf) + (POOL_BLOCKS + spare) * block_bytes(gguf.model, "f32")
    monkeypatch.setattr(launching, "available_bytes", lambda: available)
    return spare


def launched(path: Path, swap_bytes: int | None) -> EngineInfo:
    start = Start(
        engine="openvino",
        model=str(path),
        model_name="tiny",
        limits=StepLimits(max_batch_size=2, max_num_tokens=16),
        kv=KvSettings(blocks=POOL_BLOCKS, swap_bytes=swap_bytes),
        classes=[ClassSettings(name="default")],
        policy="throughput-max",
        precision="f32",
        threads=1,
    )
    engine = launching.launch(start, lambda stage, fraction: None)
    engine.close()
    return engine.info


def test_the_default_takes_a_quarter_of_what_is_left_and_never_more_than_the_pool(
    path: Path, spare_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launched(path, None).host_blocks_total == spare_blocks // 4
    monkeypatch.setattr(launching, "available_bytes", lambda: 1 << 40)
    assert launched(path, None).host_blocks_total == POOL_BLOCKS


def test_a_size_that_is_asked_for_is_given_in_whole_blocks(path: Path, spare_blocks: int) -> None:
    size = block_bytes(read_gguf(path).model, "f32")
    assert launched(path, 0).host_blocks_total == 0
    assert launched(path, spare_blocks * size).host_blocks_total == spare_blocks
    assert launched(path, 3 * size - 1).host_blocks_total == 2


def test_more_than_is_left_is_refused_before_anything_is_loaded(
    path: Path, spare_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(ConfigError) as refused:
        launched(path, (spare_blocks + 1) * block_bytes(read_gguf(path).model, "f32"))
    assert refused.value.field == "swap_memory"
    assert "swap_memory of at most" in refused.value.reason
