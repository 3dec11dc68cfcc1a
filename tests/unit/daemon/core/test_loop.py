"""What the step loop promises of each request: its tokens, its end, its blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from inflightd.daemon.core.wire import FinishReason, Frame, Started
from inflightd.daemon.engines import scripts
from inflightd.schedulers.api import Plan, Preemption, SequenceView, View, is_decoding, uncomputed_tokens
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, expected_tokens, make_loop

EOS, EOS2 = 5, 6


@dataclass
class PreemptAt:
    """Admits everything, and preempts each sequence whenever it has generated one of `generated` tokens."""

    generated: tuple[int, ...]
    done: set[tuple[int, int]] = field(default_factory=set)
    name: ClassVar[str] = "preempt-at"
    Options: ClassVar[type[Any]] = object

    def plan(self, view: View) -> Plan:
        preempt = []
        for sequence in view.running:
            key = (sequence.number, sequence.generated_tokens)
            if sequence.generated_tokens in self.generated and key not in self.done:
                self.done.add(key)
                preempt.append((sequence, Preemption.RECOMPUTE))
        waiting: list[SequenceView] = [s for queue in view.waiting.values() for s in queue.by_arrival()]
        ready = [*view.preempted, *waiting]
        return Plan(prefill=[(s, uncomputed_tokens(s) - view.kv.cached_tokens(s)) for s in ready], preempt=preempt)


def everything() -> PreemptAt:
    return PreemptAt(())


def test_a_request_is_told_to_have_started_once_with_its_first_step_and_what_it_found() -> None:
    under_test = make_loop(PreemptAt((2,)), block_size_tokens=4)
    under_test.submit(1, [3] * 13, max_tokens=4)
    under_test.run()
    under_test.submit(2, [3] * 13, max_tokens=4, n=2)
    began_ns = under_test.clock.now_ns()
    frames: list[Frame] = []
    while under_test.loop.has_work:
        frame, _ = under_test.loop.step()
        if frame is not None:
            frames.append(frame)
    assert [frame.started for frame in frames] == [[Started(2, began_ns, 12)], *([[]] * (len(frames) - 1))]
    ends = [finished for frame in frames for finished in frame.finished]
    assert [(end.scheduled_ns, end.cached_tokens, end.preemptions) for end in ends] == [(began_ns, 12, 1)] * 2


@pytest.mark.parametrize("at", [(0,), (1,), (4,), (3, 4, 5, 6, 7)])
def test_preemption_by_recompute_changes_no_token_and_no_usage(at: tuple[int, ...]) -> None:
    """Case S07: before the first token, after it, at a block's edge, five times in a row."""
    under_test = make_loop(PreemptAt(at))
    under_test.submit(1, [3] * 13, max_tokens=20)
    under_test.submit(2, [4] * 33, max_tokens=20)
    under_test.run()
    assert under_test.tokens[1, 0] == expected_tokens([3] * 13, 20)
    assert under_test.tokens[2, 0] == expected_tokens([4] * 33, 20)
    for number in (1, 2):
        record = under_test.finished[number, 0]
        assert (record.reason, record.generated_tokens) == (FinishReason.LENGTH, 20)
        assert record.preemptions == len([g for g in at if g > 0])
    recomputed = under_test.loop.totals.recomputed_tokens
    assert (recomputed > 0) == (at != (0,))
    assert recomputed == sum(record.recomputed_tokens for record in under_test.records)


def test_a_resumed_sequence_whose_chunk_stops_one_token_short_goes_on_as_a_decode() -> None:
    @dataclass
    class OneShort(PreemptAt):
        def plan(self, view: View) -> Plan:
            plan = super().plan(view)
            return Plan(
                prefill=[(s, n - 1 if s.generated_tokens else n) for s, n in plan.prefill], preempt=plan.preempt
            )

    under_test = make_loop(OneShort((4,)))
    under_test.submit(1, [3] * 13, max_tokens=20)
    under_test.run()
    assert under_test.tokens[1, 0] == expected_tokens([3] * 13, 20)


@pytest.mark.parametrize(
    ("max_tokens", "reason", "count"),
    [(4, FinishReason.LENGTH, 4), (5, FinishReason.STOP, 5), (6, FinishReason.STOP, 5)],
)
def test_an_end_token_wins_over_the_limit_it_is_met_with(max_tokens: int, reason: str, count: int) -> None:
    """Case E06: the end token is the fifth; it counts as a generated token."""
    under_test = make_loop(everything(), eos_token_ids=[EOS], script=scripts.tokens([9, 9, 9, 9, EOS], EOS))
    under_test.submit(1, [3] * 4, max_tokens=max_tokens)
    under_test.run()
    record = under_test.finished[1, 0]
    assert (record.reason, record.generated_tokens) == (reason, count)
    assert record.stop_token_id == (EOS if reason == FinishReason.STOP else None)


def test_an_end_token_first_is_an_answer_of_one_token() -> None:
    under_test = make_loop(everything(), eos_token_ids=[EOS], script=scripts.tokens([], EOS))
    under_test.submit(1, [3] * 4, max_tokens=10)
    under_test.run()
    assert under_test.tokens[1, 0] == [EOS]
    assert under_test.finished[1, 0].reason == FinishReason.STOP


def test_max_tokens_one_is_exactly_one_token() -> None:
    under_test = make_loop(everything())
    under_test.submit(1, [3] * 4, max_tokens=1)
    under_test.run()
    assert under_test.tokens[1, 0] == expected_tokens([3] * 4, 1)
    assert under_test.finished[1, 0].reason == FinishReason.LENGTH


def test_min_tokens_keeps_every_end_token_from_ending_it() -> None:
    """Case E09: the script says the second end token all the time."""
    under_test = make_loop(everything(), eos_token_ids=[EOS, EOS2], script=scripts.tokens([9, 9, EOS2], EOS2))
    under_test.submit(1, [3] * 4, max_tokens=50, min_tokens=10)
    under_test.run()
    assert under_test.finished[1, 0].generated_tokens == 11
    assert under_test.finished[1, 0].reason == FinishReason.STOP


def test_ignore_eos_goes_on_to_the_limit_but_a_stop_token_of_the_request_still_ends_it() -> None:
    under_test = make_loop(everything(), eos_token_ids=[EOS, EOS2], script=scripts.tokens([9, EOS2, 9, 8], None))
    under_test.submit(1, [3] * 4, max_tokens=50, ignore_eos=True)
    under_test.submit(2, [3] * 4, max_tokens=50, ignore_eos=True, stop_token_ids=[8])
    under_test.run()
    assert under_test.finished[1, 0].generated_tokens == 50
    assert (under_test.finished[2, 0].generated_tokens, under_test.finished[2, 0].stop_token_id) == (4, 8)


def peak_blocks(under_test: LoopUnderTest) -> int:
    peak = 0
    while under_test.loop.has_work:
        under_test.step()
        kv = under_test.loop.roster.kv
        peak = max(peak, kv.blocks_total - kv.free_blocks)
    under_test.run()
    return peak


@pytest.mark.parametrize("prompt_tokens", [64, 71])
def test_samples_share_the_blocks_of_their_prompt(prompt_tokens: int) -> None:
    """Case E13: four samples of one prompt take far less than four times the blocks."""
    prompt_ids = list(range(prompt_tokens))
    one, four = make_loop(everything()), make_loop(everything())
    one.submit(1, prompt_ids, max_tokens=20)
    four.submit(1, prompt_ids, max_tokens=20, n=4)
    single, shared = peak_blocks(one), peak_blocks(four)
    assert shared == single + 3 * (single - prompt_tokens // 16)
    for sample in range(4):
        assert four.tokens[1, sample] == expected_tokens(prompt_ids, 20, sample=sample, n=4)
        assert four.finished[1, sample].reason == FinishReason.LENGTH
    assert len({tuple(four.tokens[1, sample]) for sample in range(4)}) == 4


def test_cancel_ends_every_sample_before_and_after_they_split() -> None:
    under_test = make_loop(PreemptAt((2,)))
    under_test.submit(1, [3] * 20, n=3)
    under_test.submit(2, [4] * 20, n=3)
    under_test.cancel(1)
    under_test.step()
    under_test.step()
    assert under_test.loop.roster.kv.tables
    under_test.cancel(2)
    under_test.step()
    assert not under_test.loop.roster.kv.tables
    under_test.run()
    assert {record.reason for record in under_test.finished.values()} == {FinishReason.CANCELLED}
    assert set(under_test.finished) == {(number, sample) for number in (1, 2) for sample in range(3)}


def test_one_sample_can_end_while_the_others_go_on() -> None:
    under_test = make_loop(everything())
    under_test.submit(1, [3] * 20, n=3, max_tokens=9)
    under_test.step()
    under_test.step()
    under_test.cancel(1, sample=1, reason=FinishReason.STOP_STRING)
    under_test.run()
    assert under_test.finished[1, 1].reason == FinishReason.STOP_STRING
    assert under_test.finished[1, 1].generated_tokens == 2
    assert under_test.tokens[1, 2] == expected_tokens([3] * 20, 9, sample=2, n=3)


@pytest.mark.parametrize("cancelled", [(0,), (2,), (1, 2), (0, 1), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_sample_can_be_ended_before_the_samples_split(cancelled: tuple[int, ...], steps: int) -> None:
    """Waiting, or with the first chunk of its prompt computed; cancelled twice."""
    under_test = make_loop(build("throughput-max", {}), max_num_tokens=16)
    under_test.submit(1, [3] * 20, n=3, max_tokens=9)
    for _ in range(steps):
        under_test.step()
    for sample in cancelled:
        under_test.cancel(1, sample)
        under_test.cancel(1, sample)
    under_test.run()
    for sample in range(3):
        record = under_test.finished[1, sample]
        if sample in cancelled:
            assert (record.reason, record.generated_tokens) == (FinishReason.CANCELLED, 0)
            assert not under_test.tokens[1, sample]
        else:
            assert record.reason == FinishReason.LENGTH
            assert under_test.tokens[1, sample] == expected_tokens([3] * 20, 9, sample=sample, n=3)
    assert under_test.loop.state().finished == 3


@pytest.mark.parametrize(("at", "preemptions"), [((0,), 1), ((1,), 3), ((2, 5), 6)])
def test_preemption_around_the_split_of_the_samples_changes_no_token(at: tuple[int, ...], preemptions: int) -> None:
    """The parent with half its prompt computed, the samples right after they split, and later."""

    @dataclass
    class InChunks(PreemptAt):
        def plan(self, view: View) -> Plan:
            plan = super().plan(view)
            gone = {sequence.number for sequence, _ in plan.preempt}
            prompts = [s for s in view.running if not is_decoding(s) and s.number not in gone]
            whole = [*plan.prefill, *((s, uncomputed_tokens(s)) for s in prompts)]
            return Plan(prefill=[(s, min(16, tokens)) for s, tokens in whole], preempt=plan.preempt)

    under_test = make_loop(InChunks(at))
    under_test.submit(1, [3] * 20, n=3, max_tokens=9)
    under_test.run()
    assert under_test.faults == []
    assert under_test.loop.state().preemptions == preemptions
    for sample in range(3):
        assert under_test.tokens[1, sample] == expected_tokens([3] * 20, 9, sample=sample, n=3)


@pytest.mark.parametrize("state", ["queued", "first chunk", "decoding", "preempted", "finished"])
def test_a_cancelled_request_computes_no_more_and_disturbs_nobody(state: str) -> None:
    """Case S06."""
    under_test = make_loop(build("throughput-max", {}), max_num_tokens=64, blocks=40, max_batch_size=4)
    prompts = {number: [number] * 100 for number in range(1, 5)}
    for number, prompt_ids in prompts.items():
        under_test.submit(number, prompt_ids, max_tokens=12)
    if state == "first chunk":
        under_test.step()
    elif state != "queued":
        while len(under_test.tokens[1, 0]) < 3:
            under_test.step()
    if state == "preempted":
        under_test.loop.roster.preempt(under_test.loop.roster.running[0], Preemption.RECOMPUTE)
    if state == "finished":
        while (1, 0) not in under_test.finished:
            under_test.step()
    before = len(under_test.tokens[1, 0])
    under_test.cancel(1)
    under_test.step()
    assert len(under_test.tokens[1, 0]) == before
    assert all(sequence.request != 1 for sequence in under_test.loop.roster.live.values())
    under_test.run()
    assert len([key for key in under_test.finished if key[0] == 1]) == 1
    for number in (2, 3, 4):
        assert under_test.tokens[number, 0] == expected_tokens(prompts[number], 12)


def test_the_next_user_of_a_slot_gets_all_its_tokens() -> None:
    """Case K06: cancel in mid decode, submit at once, a hundred times on one slot."""
    under_test = make_loop(build("throughput-max", {}), max_batch_size=1)
    for turn in range(100):
        under_test.submit(2 * turn, [turn + 1] * 5, max_tokens=50)
        for _ in range(3):
            under_test.step()
        under_test.cancel(2 * turn)
        under_test.submit(2 * turn + 1, [turn + 1] * 7, max_tokens=8)
        under_test.run()
        assert under_test.tokens[2 * turn + 1, 0] == expected_tokens([turn + 1] * 7, 8)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"prompt": 0}, "0 prompt tokens"),
        ({"prompt": 5, "max_tokens": 0}, "max_tokens 0"),
        ({"prompt": 60, "max_tokens": 5}, "a sequence may have 64"),
        ({"prompt": 10, "n": 9}, "max_batch_size is 8"),
        ({"prompt": 31, "max_tokens": 33, "n": 4}, "the pool has 8"),
    ],
)
def test_a_request_that_can_never_run_ends_at_once_and_blocks_nobody(sizes: dict[str, Any], words: str) -> None:
    """Case S02."""
    under_test = make_loop(build("throughput-max", {}), blocks=8, max_sequence_tokens=64)
    prompt_tokens = sizes.pop("prompt")
    under_test.submit(1, [3] * prompt_tokens, **sizes)
    under_test.submit(2, [4] * 10)
    under_test.run()
    assert under_test.finished[1, 0].reason == FinishReason.ERROR
    assert words in under_test.finished[1, 0].error
    assert under_test.tokens[2, 0] == expected_tokens([4] * 10, 8)


def test_a_step_record_accounts_for_every_token() -> None:
    under_test = make_loop(build("latency-guarantee", {"chunk_tokens": 32}), max_num_tokens=64)
    for number in range(6):
        under_test.submit(number, [number + 1] * 50, max_tokens=10)
    under_test.run()
    records = under_test.records
    assert sum(record.prefill_tokens for record in records) == 6 * 50
    assert sum(record.decode_sequences for record in records) == 6 * 9
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    assert all(record.end_ns - record.start_ns == 1_000_000 for record in records)
    assert sum(record.admitted for record in records) == 6


def test_a_policy_sees_when_a_stream_got_its_first_and_its_last_token() -> None:
    seen: list[tuple[int | None, int | None]] = []

    @dataclass
    class Watching(PreemptAt):
        def plan(self, view: View) -> Plan:
            seen.extend((s.first_token_ns, s.last_token_ns) for s in view.running)
            return super().plan(view)

    under_test = make_loop(Watching((3,)))
    under_test.submit(1, [3] * 4, max_tokens=5)
    under_test.run()
    # A step takes a millisecond; the third token is followed by a preemption, which takes none.
    assert seen == [(1_000_000, at_ns * 1_000_000) for at_ns in (1, 2, 3, 4)]


def test_finished_rows_of_a_static_batch_are_computed_to_its_end_with_its_longest_context() -> None:
    under_test = make_loop(build("static-batch", {"slots": 4}))
    for number, max_tokens in enumerate((3, 3, 3, 12)):
        under_test.submit(number, [number + 1] * 20, max_tokens=max_tokens)
    under_test.run()
    decodes = [record for record in under_test.records if not record.prefill_tokens]
    assert [record.decode_sequences + record.padding_tokens for record in decodes] == [4] * 11
    assert [record.context_tokens for record in decodes] == [4 * (20 + k) for k in range(11)]


def test_a_swap_takes_effect_with_the_step_it_names_and_moves_no_token() -> None:
    under_test = make_loop(build("throughput-max", {}))
    for number in range(4):
        under_test.submit(number, [number + 1] * 30, max_tokens=30)
    for _ in range(5):
        under_test.step()
    done = under_test.loop.use_policy(7, build("static-batch", {}), expected_generation=0)
    assert (done.previous, done.name, done.generation, done.step, done.error) == (
        "throughput-max",
        "static-batch",
        1,
        6,
        "",
    )
    record = under_test.step()
    assert record is not None
    assert (record.step, record.generation) == (6, 1)
    refused = under_test.loop.use_policy(8, build("throughput-max", {}), expected_generation=0)
    assert (refused.error_rule, refused.name, refused.generation) == ("generation", "static-batch", 1)
    under_test.run()
    for number in range(4):
        assert under_test.tokens[number, 0] == expected_tokens([number + 1] * 30, 30)
