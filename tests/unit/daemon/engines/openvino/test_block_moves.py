"""Blocks go to host memory and come back elsewhere with every bit in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inflightd.daemon.engines.api import BlockMove, MoveKind, TokenLogprobs
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load
from inflightd.daemon.engines.openvino.options import OpenVinoOptions
from inflightd.daemon.errors import EngineError
from inflightd.daemon.models.source import ModelSource
from tests.support.engine_steps import chunk_row, greedy_params, run_step
from tests.support.tiny_gguf import write_tiny_gguf

COPY, OUT, IN = MoveKind
BLOCKS, HOST_BLOCKS = 6, 5
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 7042, 47, 2, 198, 1, 520, 9531, 198] * 4  # two blocks, all full
OTHER = [3725, 281, 253, 1109, 28, 665, 436, 253, 2095, 13] * 9  # covers three blocks
LENGTH = 40  # the answer crosses the end of its third block

Answer = tuple[list[int], list[TokenLogprobs | None]]


def options(path: Path, **changes: object) -> OpenVinoOptions:
    fields = {"max_num_tokens": 128, "max_batch_size": 4, "threads": 2, **changes}
    return OpenVinoOptions(source=ModelSource("gguf", path, "model"), **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenVinoEngine]:
    path = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    sizes = {"num_blocks": BLOCKS, "num_host_blocks": HOST_BLOCKS, "weights_cache": None}
    engine = load(options(path, precision="f32", **sizes))
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=["f32", "the machine's own"])
def real_engine(request: pytest.FixtureRequest, model_path: Path) -> Iterator[OpenVinoEngine]:
    """bf16 is the machine's own where it has the instructions."""
    precision = "f32" if request.param == "f32" else None
    engine = load(options(model_path, num_blocks=32, num_host_blocks=8, precision=precision, threads=None))
    yield engine
    engine.close()


def stamp(engine: OpenVinoEngine) -> list[bytes]:
    """Give each block a content of its own; what they are."""
    for tensor in engine.kv.tensors.values():
        for block in range(BLOCKS):
            tensor.data[block] = block + 1
    return [engine.kv.read_block(block) for block in range(BLOCKS)]


@pytest.mark.parametrize("seed", range(20))
def test_moves_are_done_one_after_the_other_whatever_runs_they_form(tiny_engine: OpenVinoEngine, seed: int) -> None:
    rng = np.random.default_rng(seed)
    device, host = stamp(tiny_engine), [b""] * HOST_BLOCKS
    moves: list[BlockMove] = []
    for _ in range(40):
        kind = MoveKind(int(rng.integers(3)))
        sources, targets = (host if kind is IN else device), (host if kind is OUT else device)
        source, target = int(rng.integers(len(sources))), int(rng.integers(len(targets)))
        while source < len(sources) and target < len(targets):  # on to the neighbours: a run
            if not sources[source] or (kind is COPY and source == target):
                break
            moves.append((kind, source, target))
            targets[target] = sources[source]
            source, target = source + 1, target + 1
            if rng.random() < 0.3:
                break
    tiny_engine.kv.move_blocks(moves)
    assert [tiny_engine.kv.read_block(block) for block in range(BLOCKS)] == device
    swapped_in = [(IN, block, block) for block in range(HOST_BLOCKS) if host[block]]
    tiny_engine.kv.move_blocks(swapped_in)
    assert all(tiny_engine.kv.read_block(block) == host[block] for _, block, _ in swapped_in)


@pytest.mark.parametrize("move", [(OUT, 0, HOST_BLOCKS), (IN, HOST_BLOCKS, 0), (COPY, 0, BLOCKS + 1), (OUT, -1, 0)])
def test_a_block_that_is_not_there_is_an_error_and_nothing_moves(tiny_engine: OpenVinoEngine, move: BlockMove) -> None:
    before = stamp(tiny_engine)
    with pytest.raises(EngineError, match="no such block"):
        tiny_engine.kv.move_blocks([(COPY, 0, 1), move])
    assert [tiny_engine.kv.read_block(block) for block in range(BLOCKS)] == before


def test_the_time_of_the_moves_is_told_apart_from_the_models(tiny_engine: OpenVinoEngine) -> None:
    row = chunk_row([5, 17], 0, [0], greedy_params())
    assert run_step(tiny_engine, [row]).moves_ns == 0
    result = run_step(tiny_engine, [row], moves=[(OUT, 1, 0), (IN, 0, 2)])
    assert result.moves_ns > 0
    assert tiny_engine.info.host_blocks_total == HOST_BLOCKS


def answer(engine: OpenVinoEngine, table: list[int], tokens: list[int], length: int) -> Answer:
    """Continue `tokens`, of which all but the last are in `table` (or none are), greedily and alone."""
    params, known, past = greedy_params(logprobs=5), list(tokens), len(tokens) - 1
    logprobs: list[TokenLogprobs | None] = []
    for _ in range(length):
        result = run_step(engine, [chunk_row(known[past:], past, table, params)])
        assert result.logprobs is not None
        logprobs += result.logprobs
        past = len(known)
        known += result.token_ids
    return known[len(tokens) :], logprobs


@pytest.mark.model
def test_a_sequence_that_was_swapped_out_goes_on_bit_for_bit(real_engine: OpenVinoEngine) -> None:
    def begin(table: list[int]) -> None:
        run_step(real_engine, [chunk_row(PROMPT[:-1], 0, table)])

    begin([10, 11, 12, 13])
    right_tokens, right_logprobs = answer(real_engine, [10, 11, 12, 13], PROMPT, LENGTH)

    begin([0, 1, 2, 3])
    tokens, logprobs = answer(real_engine, [0, 1, 2, 3], PROMPT, 5)
    # Out, the blocks go to another sequence in the same step, and back into other blocks in another order.
    overwrite = [chunk_row(OTHER, 0, [0, 1, 2])]
    run_step(real_engine, overwrite, moves=[(OUT, 0, 5), (OUT, 1, 6), (OUT, 2, 2)])
    held = [real_engine.kv.read_block(block) for block in (10, 11)]
    assert [real_engine.kv.read_block(block) for block in (0, 1)] != held
    moves = [(IN, 2, 20), (IN, 5, 8), (IN, 6, 9), (OUT, 0, 5), (OUT, 1, 6), (OUT, 2, 2)]
    run_step(real_engine, [chunk_row(OTHER, 0, [4, 5, 6])], moves=moves)
    assert [real_engine.kv.read_block(block) for block in (8, 9)] == held
    more_tokens, more_logprobs = answer(real_engine, [8, 9, 20, 21], [*PROMPT, *tokens], LENGTH - 5)
    assert tokens + more_tokens == right_tokens
    assert logprobs + more_logprobs == right_logprobs
