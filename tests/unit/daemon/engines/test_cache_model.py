"""The strict engine finds every way of giving a step the wrong blocks."""

from collections.abc import Callable, Sequence

import pytest

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import BlockMove, Draw, MoveKind, Row, StepBatch
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.daemon.errors import EngineError

TEXT = list(range(10, 22))  # 12 tokens: 3 blocks of 4
OTHER = list(range(30, 42))


def make_state(prompt: Sequence[int], output: Sequence[int] = ()) -> SamplingState:
    state = SamplingState(SamplingParams(seed=1, max_tokens=99), 0, list(prompt))
    for token in output:
        state.observe(token)
    return state


@pytest.fixture
def engine() -> ScriptedEngine:
    """Blocks 0-2 hold TEXT (sequence 1), blocks 3-5 OTHER (sequence 2)."""
    engine = ScriptedEngine(ScriptedOptions(block_size_tokens=4, blocks_total=12, host_blocks_total=4, strict=True))
    run(engine, Row(1, TEXT, 0, [0, 1, 2], [Draw(make_state(TEXT), 0)]), Row(2, OTHER, 0, [3, 4, 5], ()))
    return engine


COPY, OUT, IN = MoveKind


def run(
    engine: ScriptedEngine, *rows: Row, copies: Sequence[tuple[int, int]] = (), moves: Sequence[BlockMove] = ()
) -> None:
    engine.start(StepBatch(2, rows, moves=[*((COPY, *pair) for pair in copies), *moves]))
    engine.finish()


def decode(table: Sequence[int], text: Sequence[int] = TEXT, token: int = 99, past: int = 12, sequence: int = 1) -> Row:
    return Row(sequence, [token], past, table, [Draw(make_state(text, [token]), 1)])


def test_right_steps_pass(engine: ScriptedEngine) -> None:
    """Decoding, chunks, a shared prefix, copy-on-write, a permuted table, reuse of a freed block."""
    run(engine, decode([0, 1, 2, 6]), decode([3, 4, 5, 7], OTHER, sequence=2))
    run(engine, Row(3, OTHER[:3], 0, [11], ()))
    run(engine, Row(3, OTHER[3:9], 3, [11, 10, 9], ()))
    run(engine, Row(3, OTHER[9:], 9, [11, 10, 9], [Draw(make_state(OTHER), 0)]))
    run(engine, Row(4, [77, 78], 8, [0, 1, 8], [Draw(make_state([*TEXT[:8], 77, 78]), 0)]))  # prefix of 2 blocks
    run(engine, Row(5, [55], 9, [0, 1, 10], [Draw(make_state([*TEXT[:9], 55]), 0)]), copies=[(2, 10)])
    run(engine, Row(6, TEXT, 0, [3, 4, 5], [Draw(make_state(TEXT), 0)]))  # sequence 2 has ended


OUT_TEXT = [(OUT, 0, 3), (OUT, 1, 1), (OUT, 2, 2)]


def test_right_moves_pass(engine: ScriptedEngine) -> None:
    """Out and back to other blocks while somebody else uses the old ones, in one step and in several."""
    run(engine, Row(3, OTHER, 0, [0, 1, 2], [Draw(make_state(OTHER), 0)]), moves=OUT_TEXT)
    run(engine, decode([9, 8, 7, 6]), moves=[(IN, 3, 9), (IN, 1, 8), (IN, 2, 7)])
    # A copy goes out; the block it was copied from is overwritten before the same step; a host block is used twice.
    moves = [(COPY, 5, 10), (OUT, 10, 0), (OUT, 9, 1), (IN, 1, 10), (OUT, 8, 1), (IN, 0, 9)]
    run(engine, Row(4, [55], 11, [3, 4, 9], [Draw(make_state([*OTHER[:11], 55]), 0)]), moves=moves)


WRONG: dict[str, tuple[str, Callable[[ScriptedEngine], None]]] = {
    "another sequence's block": ("another text", lambda e: run(e, decode([0, 4, 2, 6]))),
    "blocks in the wrong order": ("another text", lambda e: run(e, decode([1, 0, 2, 6]))),
    "another sequence's table": ("its text has", lambda e: run(e, decode([3, 4, 5, 6]))),
    "a block never written": ("never written", lambda e: run(e, decode([0, 9, 2, 6]))),
    "more past tokens than computed": ("never written", lambda e: run(e, Row(1, [9], 13, [0, 1, 2, 6], ()))),
    "fewer past tokens than known": ("computed of 13", lambda e: run(e, decode([0, 1, 2], past=11))),
    "a token twice": ("computed of 13", lambda e: run(e, Row(1, [9, 9], 12, [0, 1, 2, 6], decode([]).draws))),
    "the wrong token": ("its text has 99", lambda e: run(e, Row(1, [98], 12, [0, 1, 2, 6], decode([]).draws))),
    "a table too short": ("needs 4 blocks and has 3", lambda e: run(e, decode([0, 1, 2]))),
    "a block twice": ("twice", lambda e: run(e, decode([0, 1, 2, 1]))),
    "a block that does not exist": ("outside 0..11", lambda e: run(e, decode([0, 1, 2, 12]))),
    "a sequence twice": ("twice", lambda e: run(e, decode([0, 1, 2, 6]), decode([0, 1, 2, 7]))),
    "a token outside the vocabulary": ("vocabulary", lambda e: run(e, decode([0, 1, 2, 6], token=512))),
    "no token": ("0 tokens", lambda e: run(e, Row(1, [], 12, [0, 1, 2, 6], ()))),
    "a draw at the wrong position": (
        "draws token 2",
        lambda e: run(e, Row(1, [99], 12, [0, 1, 2, 6], [Draw(make_state(TEXT, [99]), 2)])),
    ),
    "no copy before writing into a shared block": (
        "another text",
        lambda e: run(e, Row(3, [50], 10, [0, 1, 2], ()), decode([0, 1, 2, 6])),
    ),
    "two sequences growing into one block": (
        "another text",
        lambda e: run(e, decode([0, 1, 2, 6]), decode([3, 4, 5, 6], OTHER, sequence=2)),
    ),
    "a copy of the wrong block": (
        "another text",
        lambda e: run(e, Row(5, [55], 9, [0, 1, 10], ()), copies=[(5, 10)]),
    ),
    "a copy to nowhere": ("outside 0..11", lambda e: run(e, decode([0, 1, 2, 6]), copies=[(0, 12)])),
    "out to nowhere": ("OUT of block 0 to 4: outside 0..11 and 0..3", lambda e: run(e, moves=[(OUT, 0, 4)])),
    "in from nowhere": ("IN of block 4 to 0: outside 0..3 and 0..11", lambda e: run(e, moves=[(IN, 4, 0)])),
    "in of what never went out": ("IN of block 3 to 0: there is nothing in it", lambda e: run(e, moves=[(IN, 3, 0)])),
    "out of a block never written": ("OUT of block 9 to 0: there is nothing", lambda e: run(e, moves=[(OUT, 9, 0)])),
    "in twice": ("there is nothing in it", lambda e: run(e, moves=[(OUT, 0, 0), (IN, 0, 8), (IN, 0, 9)])),
    "blocks brought back in the wrong order": (
        "another text",
        lambda e: run(e, decode([9, 8, 7, 6]), moves=[*OUT_TEXT, (IN, 3, 8), (IN, 1, 9), (IN, 2, 7)]),
    ),
    "out after the block was taken": (
        "another text",
        lambda e: run(e, decode([9, 1, 2, 6]), moves=[(COPY, 3, 0), (OUT, 0, 0), (IN, 0, 9)]),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_steps_are_found(engine: ScriptedEngine, what: str) -> None:
    message, act = WRONG[what]
    with pytest.raises(EngineError, match=message):
        act(engine)


def test_spoiling_a_shared_block_is_found_when_it_is_read_later(engine: ScriptedEngine) -> None:
    run(engine, Row(3, [50], 10, [0, 1, 2], ()))
    with pytest.raises(EngineError, match="position 11 in block 2"):
        run(engine, decode([0, 1, 2, 6]))


def test_a_batch_may_not_change_while_it_runs(engine: ScriptedEngine) -> None:
    table, moves = [0, 1, 2, 6], [(OUT, 3, 0)]
    for change in (lambda: table.append(7), lambda: moves.append((OUT, 4, 1))):
        engine.start(StepBatch(2, [decode(table)], moves=moves))
        change()
        with pytest.raises(EngineError, match="changed while it ran"):
            engine.finish()
