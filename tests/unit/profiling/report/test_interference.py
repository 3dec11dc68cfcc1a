"""How much each decode was delayed by which prompt."""

from __future__ import annotations

import pytest

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.report.baseline import Baseline, fit
from inflightd.profiling.report.findings import Interference
from inflightd.profiling.report.interference import blocked_ns, delayed_steps, interference
from inflightd.profiling.trace import Chunk, Life, LifeSpan, Phase, Span, Step, Trace
from tests.support import traces
from tests.support.traces import MS

BASE = Baseline(typical_ns=100, fixed_ns=60, row_ns=20, row_counts=5)


def step(
    number: int, start_ns: int, busy_ns: int, decodes: int, *chunks: tuple[int, int], recomputed_tokens: int = 0
) -> Step:
    return Step(
        number,
        start_ns,
        start_ns + busy_ns,
        [Span(Phase.FORWARD, start_ns, start_ns + busy_ns)],
        sum(tokens for _, tokens in chunks),
        decodes,
        recomputed_tokens=recomputed_tokens,
        chunks=[Chunk(*chunk) for chunk in chunks],
    )


def trace(*steps: Step, decoding: tuple[tuple[int, int, int | None], ...] = ()) -> Trace:
    lives = [LifeSpan(request, Life.DECODING, start_ns, end_ns) for request, start_ns, end_ns in decoding]
    return Trace("nsys", steps[0].start_ns, steps[-1].end_ns, steps, (), lives)


def found(whole: Trace, base: Baseline | None = BASE) -> Interference:
    return interference(whole, delayed_steps(whole, base), base)


def test_a_long_prompt_among_decodes_is_named_with_what_it_did_to_each() -> None:
    whole = trace_of(traces.prefill_interference(prompt_tokens=1500))
    base = fit(whole.steps)
    result = found(whole, base)
    (worst,) = result.by_prefill
    assert (worst.request, worst.tokens, worst.steps, worst.decodes) == (100, 1500, 1, 8)
    assert worst.delay_ns == pytest.approx(225 * MS, rel=0.01)  # 1,500 tokens of 150 us each
    assert worst.worst_ns == worst.delay_ns
    assert [delay.request for delay in result.by_decode] == list(range(1, 9))
    assert {delay.worst_by_request for delay in result.by_decode} == {100}
    assert all(delay.delay_ns == worst.delay_ns for delay in result.by_decode)
    assert result.waited_ns == pytest.approx(8 * result.added_ns, abs=8)


def test_a_delay_is_split_by_the_tokens_of_the_chunks() -> None:
    result = found(trace(step(1, 0, 500, 2, (7, 30), (8, 10)), decoding=((1, 0, 500), (2, 0, None))))
    assert result.added_ns == 400
    assert [(each.request, each.delay_ns) for each in result.by_prefill] == [(7, 300), (8, 100)]
    assert [(each.request, each.delay_ns, each.steps, each.worst_by_request) for each in result.by_decode] == [
        (1, 400, 1, 7),
        (2, 400, 1, 7),
    ]


def test_only_who_decoded_at_that_time_was_delayed() -> None:
    whole = trace(
        step(1, 0, 100, 2),
        step(2, 100, 300, 2, (9, 20)),
        step(3, 400, 250, 2, (9, 15)),
        decoding=((1, 0, 400), (2, 400, None), (3, 650, None)),
    )
    assert [(each.request, each.delay_ns, each.steps) for each in found(whole).by_decode] == [(1, 200, 1), (2, 150, 1)]


def test_a_step_of_prompts_alone_delays_those_that_it_leaves_out() -> None:
    whole = trace(step(1, 0, 100, 2), step(2, 100, 900, 0, (9, 90)), decoding=((1, 0, None), (2, 0, None)))
    result = found(whole)
    assert (result.mixed_steps, result.added_ns, result.waited_ns) == (1, 900, 1800)
    assert result.by_prefill[0].decodes == 2


def test_a_prompt_that_nobody_decodes_beside_delays_nobody() -> None:
    result = found(trace(step(1, 0, 900, 0, (9, 90)), step(2, 900, 80, 1), decoding=((9, 900, None),)))
    assert (result.mixed_steps, result.added_ns, list(result.by_prefill), list(result.by_decode)) == (0, 0, [], [])


def test_a_step_that_was_no_longer_than_expected_adds_nothing() -> None:
    result = found(trace(step(1, 0, 90, 2, (9, 1)), decoding=((1, 0, None),)))
    assert (result.mixed_steps, result.added_ns, list(result.by_prefill)) == (1, 0, [])


def test_without_a_baseline_nothing_is_attributed() -> None:
    result = found(trace(step(1, 0, 500, 2, (7, 30)), decoding=((1, 0, 500),)), None)
    assert (result.mixed_steps, result.added_ns, result.base_ns) == (1, 0, None)
    assert (list(result.by_prefill), list(result.by_decode)) == ([], [])


@pytest.mark.parametrize(
    ("busy_ns", "recomputed_tokens", "lost_ns"),
    [
        (190, 0, 0),  # its decodes alone: 100
        (500, 0, 300),
        (500, 40, 0),  # all of it had been computed before: another cause
        (500, 10, 225),
    ],
)
def test_time_is_lost_by_what_goes_beyond_twice_the_decodes_alone(
    busy_ns: int, recomputed_tokens: int, lost_ns: int
) -> None:
    whole = trace(step(1, 0, busy_ns, 2, (7, 40), recomputed_tokens=recomputed_tokens))
    assert blocked_ns(delayed_steps(whole, BASE), BASE) == lost_ns


def test_smaller_chunks_lose_less() -> None:
    def lost_ns(max_num_tokens: int) -> int:
        whole = trace_of(traces.prefill_interference(max_num_tokens=max_num_tokens))
        base = fit(whole.steps)
        return blocked_ns(delayed_steps(whole, base), base)

    assert lost_ns(2048) > 200 * MS
    assert lost_ns(256) < 0.9 * lost_ns(2048)
    assert lost_ns(40) < MS
