"""The pictures and tables in docs/ are what the command makes now, and show what the text says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.concepts import pages, scenes
from examples.concepts.pages import DOCS, filled, measured, table
from examples.concepts.recorder import Recorder, Request, Setting
from inflightd.profiling.timeline import CellKind
from inflightd.schedulers.registry import build


@pytest.fixture(scope="module")
def tables() -> dict[str, list[list[str]]]:
    """The rows of each scene's table, without the headings."""
    return {name: [list(row) for row in draw().table[1:]] for name, draw in scenes.SCENES.items()}


def column(rows: list[list[str]], index: int) -> list[float]:
    return [float(row[index].split()[0]) for row in rows]


def test_docs_are_as_the_command_writes_them() -> None:
    stale = [path.name for path, text in pages.files().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run: python -m examples.concepts"


def test_the_page_tells_what_a_step_costs() -> None:
    page, cost = " ".join((DOCS / "concepts.md").read_text().split()), Setting().cost
    for said in (
        f"a step takes {cost.fixed_ns / 1e6:g} ms, plus {cost.prefill_token_ns / 1e6:g} ms for each prompt token",
        f"{cost.decode_ns / 1e6:g} ms for each decoding sequence",
        f"{cost.context_token_ns / 1e3:g} µs for each token of context",
        f"{cost.swap_block_ns / 1e6:g} ms a block",
    ):
        assert said in page


def test_every_picture_belongs_to_a_scene() -> None:
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == set(scenes.SCENES)


def test_in_flight_batching_computes_no_padding_and_is_done_first(tables: dict[str, list[list[str]]]) -> None:
    static, dynamic, inflight = tables["batching"]
    assert inflight[3].startswith("0 ")
    assert float(inflight[5]) < float(dynamic[5]) <= float(static[5])
    assert float(inflight[4]) < float(dynamic[4]) <= float(static[4])


def test_smaller_chunks_make_smaller_gaps_and_a_later_first_token(tables: dict[str, list[list[str]]]) -> None:
    gaps, firsts = column(tables["chunked_prefill"], 1), column(tables["chunked_prefill"], 2)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 4 * gaps[-1]
    assert firsts == sorted(firsts)


def test_larger_blocks_are_emptier(tables: dict[str, list[list[str]]]) -> None:
    empty = column(tables["paged"], 4)
    assert empty == sorted(empty)


def test_a_common_beginning_is_computed_once(tables: dict[str, list[list[str]]]) -> None:
    assert [row[2] for row in tables["prefix"]] == ["0", "32", "32"]


def test_samples_hold_fewer_blocks_than_requests_apart(tables: dict[str, list[list[str]]]) -> None:
    together, apart = column(tables["samples"], 1)
    assert together < apart


def test_swapping_computes_nothing_again_and_brings_everything_back(tables: dict[str, list[list[str]]]) -> None:
    recompute, swap = tables["preemption"]
    assert recompute[1] == swap[1] != "0"
    assert recompute[2] != "0"
    assert recompute[3:5] == ["0", "0"]
    assert swap[2] == "0"
    assert swap[3] == swap[4] != "0"


def test_first_chunk_admission_computes_most_again_and_reserving_nothing(tables: dict[str, list[list[str]]]) -> None:
    first_chunk, whole_prompt, reserved = column(tables["pressure"], 1)
    assert first_chunk > 5 * whole_prompt
    assert reserved == 0
    ends = column(tables["pressure"], 4)
    assert ends[0] > max(ends[1:])


@pytest.mark.parametrize(
    ("policy", "options"), [("throughput-max", {}), ("static-batch", {"slots": 3, "max_queue_delay_ms": 15.0})]
)
def test_the_cells_of_a_step_add_up_to_its_record(policy: str, options: dict[str, float]) -> None:
    recorder = Recorder(build(policy, options), Setting(blocks=12, max_batch_size=4, prefix_cache=False))
    recorder.run([Request("A", range(40), 30), Request("B", range(1, 60), 9, at_ms=10), Request("C", [5], 70, n=2)])
    steps = [step for step in recorder.steps if step.number]
    assert len(steps) == len(recorder.records) > 30
    for step, record in zip(steps, recorder.records, strict=True):
        computed = sum(cell.tokens for cell in step.cells.values())
        assert computed == record.prefill_tokens + record.decode_sequences + record.padding_tokens
        kinds = [cell.kind for cell in step.cells.values()]
        assert kinds.count(CellKind.DECODE) == record.decode_sequences
        assert kinds.count(CellKind.PADDING) == record.padding_tokens
        again = sum(cell.tokens for cell in step.cells.values() if cell.kind is CellKind.RECOMPUTE)
        assert again >= record.recomputed_tokens
    assert {name: len(times) for name, times in recorder.token_ns.items()} == {"A": 30, "B": 9, "C1": 70, "C2": 70}


def test_a_page_must_have_the_blocks_that_are_made_and_keeps_all_else() -> None:
    page = "one\n<!-- a b -->\nold\n<!-- /a b -->\ntwo\n<!-- c -->\n<!-- /c -->\nthree\n"
    made = filled(page, {"a b": "new", "c": "fresh\nlines"})
    assert made == "one\n<!-- a b -->\nnew\n<!-- /a b -->\ntwo\n<!-- c -->\nfresh\nlines\n<!-- /c -->\nthree\n"
    assert filled(made, {"a b": "new", "c": "fresh\nlines"}) == made
    refused: list[Callable[[], str]] = [
        lambda: filled(page, {"a b": "new"}),
        lambda: filled(page, {"a b": "", "c": "", "d": ""}),
        lambda: filled(page.replace("<!-- /c -->\n", ""), {"a b": "", "c": ""}),
    ]
    for make in refused:
        with pytest.raises(ValueError, match="the page has the blocks"):
            make()


def test_a_preset_is_told_what_was_measured_of_it_alone() -> None:
    goals = [
        {"figure": "a.toml: tokens/s, preset / default", "goal": ">= 1.1 x", "value": 1.2345},
        {"figure": "b.toml: p99 ITL", "goal": "<= 60 ms", "value": 50.0},
        {"figure": "a.toml: p99 ITL", "goal": "<= 60 ms", "value": 61.0},
    ]
    assert measured("a.toml", goals) == (
        "tokens/s, preset / default: 1.23 (goal >= 1.1 x); p99 ITL: 61 (goal <= 60 ms)"
    )
    assert measured("c.toml", goals) == "not yet"


def test_a_table_has_a_line_under_its_headings() -> None:
    assert table([["a", "b"], ["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
