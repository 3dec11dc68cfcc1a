"""Whatever happens, the step records add up to the loop's own totals, and the traced marks to both."""

from __future__ import annotations

from collections import Counter

import pytest

from inflightd.profiling import ranges as names
from inflightd.profiling.records import Lost
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest
from tests.support.recording_ranges import RecordingRanges
from tests.support.traced_scene import POLICIES, run_scene

SEEDS = range(6)


def check_sums(under_test: LoopUnderTest) -> None:
    records, state = under_test.records, under_test.loop.state()

    def total(field: str) -> int:
        return sum(getattr(record, field) for record in records)

    assert [record.step for record in records] == list(range(1, state.steps + 1))
    assert total("prefill_tokens") == state.prefilled_tokens
    assert total("decode_sequences") == state.decoded_tokens
    assert total("padding_tokens") == state.padding_tokens
    assert total("recomputed_tokens") == state.recomputed_tokens
    assert total("swapped_out_blocks") == state.swapped_out_blocks
    assert total("swapped_in_blocks") == state.swapped_in_blocks
    assert total("preemptions_recompute") + total("preemptions_swap") == state.preemptions
    assert total("preemptions_swap") == state.swap_outs
    for record in records:
        assert sum(tokens for _, tokens in record.chunks) == record.prefill_tokens
        assert len(record.started) + len(record.resumed) == record.admitted
        assert Counter(lost.lost for lost in record.preemptions) == Counter(
            {Lost.RECOMPUTE: record.preemptions_recompute, Lost.SWAP: record.preemptions_swap}
        )
        assert {lost.cause for lost in record.preemptions} <= {"growth", "admission", "policy"}
    started = [request for record in records for request in record.started]
    assert len(started) == len(set(started)) == under_test.loop.roster.moves.admitted
    ran = {number for (number, _), end in under_test.finished.items() if end.scheduled_ns is not None}
    assert set(started) == ran


def check_marks(ranges: RecordingRanges, under_test: LoopUnderTest) -> None:
    state, records = under_test.loop.state(), under_test.records
    assert sum(ranges.marks(names.PREFILL_TOKENS)) == state.prefilled_tokens
    assert sum(ranges.marks(names.DECODE_SEQUENCES)) == state.decoded_tokens
    assert sum(ranges.marks(names.PADDING_TOKENS)) == state.padding_tokens
    assert sum(ranges.marks(names.RECOMPUTED_TOKENS)) == state.recomputed_tokens
    assert len(ranges.marks(names.PREEMPT)) == state.preemptions - state.swap_outs
    assert len(ranges.marks(names.SWAP)) == state.swap_outs
    assert sum(ranges.marks(names.LOST_TOKENS)) == sum(p.computed_tokens for r in records for p in r.preemptions)
    assert ranges.marks(names.ADMIT) == [request for record in records for request in record.started]
    assert ranges.marks(names.RESUME) == [request for record in records for request in record.resumed]
    assert list(zip(ranges.marks(names.CHUNK_REQUEST), ranges.marks(names.CHUNK_TOKENS), strict=True)) == [
        chunk for record in records for chunk in record.chunks
    ]
    assert ranges.marks(names.BLOCKS_FREE) == [record.blocks_free for record in records]
    assert ranges.marks(names.FORWARD_NS) == [record.forward_ns for record in records]
    assert ranges.marks(names.POLICY_SWAP) == list(range(1, state.generation + 1))
    pushed = [(path[-1], payload) for path, payload in ranges.paths]
    assert sum(blocks for name, blocks in pushed if name == names.SWAP_OUT) == state.swapped_out_blocks
    assert sum(blocks for name, blocks in pushed if name == names.SWAP_IN) == state.swapped_in_blocks
    forwards = [(name, tokens) for name, tokens in pushed if name in names.FORWARDS]
    assert forwards == [
        (
            names.DECODE if not r.prefill_tokens else names.MIXED if r.decode_sequences else names.PREFILL,
            r.prefill_tokens + r.decode_sequences + r.padding_tokens,
        )
        for r in records
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_records_of_all_steps_add_up_to_the_totals(policy: str, seed: int) -> None:
    ranges = RecordingRanges()
    under_test = run_scene(build(policy, POLICIES[policy]), ranges, seed)
    check_sums(under_test)
    check_marks(ranges, under_test)
    assert not ranges.stack
    assert not ranges.open


def test_the_scene_has_what_it_is_to_prove() -> None:
    """Both ways of losing blocks, each cause, samples and cancels: else the sums above would be of nothing."""
    runs = [run_scene(build(name, POLICIES[name]), None, seed) for name in POLICIES for seed in SEEDS]
    state = [run.loop.state() for run in runs]
    assert sum(each.swap_outs for each in state) > 20
    assert sum(each.preemptions - each.swap_outs for each in state) > 20
    assert sum(each.swapped_in_blocks for each in state) > 50
    assert sum(each.padding_tokens for each in state) > 50
    assert all(each.generation >= 2 for each in state), "a policy was swapped for one that raises"
    reasons = Counter(end.reason for run in runs for end in run.finished.values())
    assert reasons["cancelled"] > 20
    causes = Counter(lost.cause for run in runs for record in run.records for lost in record.preemptions)
    assert causes["growth"] > 20
    assert any(sample for run in runs for _, sample in run.finished)


def test_a_loop_that_is_traced_does_the_same_as_one_that_is_not() -> None:
    for name in POLICIES:
        traced, plain = (run_scene(build(name, POLICIES[name]), sink) for sink in (RecordingRanges(), None))
        assert traced.records == plain.records
        assert traced.tokens == plain.tokens
