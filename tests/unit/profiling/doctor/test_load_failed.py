"""A start that was refused, in the words of the daemon's own check."""

from __future__ import annotations

import pytest

from inflightd.daemon.core.kv.dtypes import kv_dtype
from inflightd.daemon.core.kv.fit import check_fit, fitted_host_blocks
from inflightd.daemon.errors import ConfigError
from inflightd.profiling.doctor.findings import Finding, How
from tests.support.diagnoses import config_lines, diagnose
from tests.support.traces import MS, Engine

MIB = 1 << 20


def refused(error: ConfigError, **header: object) -> Finding:
    engine = Engine()
    engine.wait("engine_start")
    detail = {"field": error.field, "value": str(error.value), "reason": error.reason, "permanent": True}
    engine.wait("load_failed", detail)
    recording = engine.recording(reason="load_failed", detail=str(error), blocks_total=0, block_size_tokens=0, **header)
    found = diagnose(recording)
    assert list(found) == ["load-failed"]
    assert found["load-failed"].lost_ns is None
    return found["load-failed"]


def fit(kv_blocks: int | None, max_sequence_tokens: int | None = None, memory: int | None = None) -> int:
    """Blocks of 1 MiB that a machine with 150 MiB beside 50 MiB of weights gets."""
    return check_fit(
        context_tokens=8192,
        max_sequence_tokens=max_sequence_tokens,
        block_size_tokens=32,
        block_bytes=MIB,
        dtype=kv_dtype("bf16"),
        kv_blocks=kv_blocks,
        kv_memory_bytes=memory,
        available_bytes=200 * MIB,
        weights_bytes=50 * MIB,
    ).blocks_total


def test_more_blocks_than_fit_and_the_number_that_is_advised() -> None:
    with pytest.raises(ConfigError) as caught:
        fit(400)
    found = refused(caught.value, max_sequence_tokens=1024)
    assert len(found.remedies) == 3
    assert fit(int(config_lines(found.command)["kv_blocks"])) == 135  # of 150 that fit
    assert any("max_batch_size 16 x max_sequence_tokens 1024" in sentence for sentence in found.evidence)
    both = config_lines(found.remedies[1].command)
    assert both == {"kv_blocks": "135", "max_batch_size": "4", "max_sequence_tokens": "1024"}
    assert fit(int(both["kv_blocks"]), int(both["max_sequence_tokens"])) == 135


def test_a_sequence_that_the_pool_cannot_hold_and_each_way_out() -> None:
    with pytest.raises(ConfigError) as caught:
        fit(100, 4096)
    found = refused(caught.value, max_sequence_tokens=4096)
    more, shorter, _ = (config_lines(each.command) for each in found.remedies)
    assert fit(int(more["kv_blocks"]), 4096) == 128
    assert fit(100, int(shorter["max_sequence_tokens"])) == 100


def test_where_the_machine_has_no_room_for_more_a_shorter_limit_comes_first() -> None:
    with pytest.raises(ConfigError) as caught:
        fit(100, 8192)
    found = refused(caught.value, max_sequence_tokens=8192)
    assert fit(100, int(config_lines(found.command)["max_sequence_tokens"])) == 100


def test_a_swap_pool_that_does_not_fit() -> None:
    with pytest.raises(ConfigError) as caught:
        fitted_host_blocks(
            swap_bytes=200 * MIB,
            block_bytes=MIB,
            pool_bytes=100 * MIB,
            weights_bytes=50 * MIB,
            available_bytes=200 * MIB,
        )
    assert refused(caught.value).command == "swap_memory = 0"


def test_what_has_nothing_to_do_with_memory_is_said_as_it_is() -> None:
    found = refused(ConfigError("model", "m.gguf", "no such file"))
    assert found.remedies[0].how is How.DO
    assert found.command == "correct model"


@pytest.mark.parametrize("after", ["engine_ready", "engine_start"])
def test_a_process_that_ends_while_it_loads_and_one_that_is_ready_then(after: str) -> None:
    engine = Engine()
    engine.wait("engine_start")
    engine.now_ns += 100 * MS
    engine.wait("engine_lost", {"detail": "ended by signal 9"})
    found = diagnose(engine.recording())["load-failed"]
    assert "signal 9" in found.evidence[0]
    assert config_lines(found.command) == {"kv_blocks": "2048"}  # half of what there was
    engine.wait(after)
    assert "load-failed" not in diagnose(engine.recording())
