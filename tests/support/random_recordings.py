"""Recordings of any shape, for properties that hold of all."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from inflightd.profiling.records import (
    Header,
    Lost,
    PreemptedRecord,
    RecordedStep,
    Recording,
    RequestRecord,
    StepRecord,
    TraceEvent,
)

# For tests of them: a busy machine takes its time to draw one.
of_recordings = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

_REASONS = ("not enough free blocks", "no free batch slot", "a request before it must start first")
_times = st.integers(0, 3_000)
_requests = st.integers(1, 6)


@st.composite
def recordings(draw: st.DrawFn, max_steps: int = 8) -> Recording:
    """Steps follow each other; what is told of a step or a gap may be more or less than it took."""
    now_ns = draw(st.integers(0, 10_000))
    steps: list[RecordedStep] = []
    events: list[TraceEvent] = []
    number = draw(st.sampled_from((0, 0, 41)))
    for _ in range(draw(st.integers(0, max_steps))):
        if draw(st.integers(0, 7)) == 0:
            for kind in draw(
                st.sampled_from(
                    (
                        ("engine_lost", "engine_start", "engine_ready"),
                        ("engine_start", "engine_ready"),
                        ("engine_lost",),
                    )
                )
            ):
                now_ns += draw(_times)
                events.append(TraceEvent(at_ns=now_ns, kind=kind))
            number = 0
        gaps = draw(st.lists(_times, min_size=5, max_size=5))
        number, start_ns = number + 1, now_ns + sum(gaps) + draw(st.sampled_from((-200, 0, 0, 700)))
        start_ns = max(start_ns, now_ns)
        now_ns = start_ns + draw(st.integers(1, 9_000))
        steps.append(RecordedStep(_step(draw, number, start_ns, now_ns, gaps), now_ns + draw(_times)))
        if draw(st.integers(0, 5)) == 0:
            events.append(TraceEvent(at_ns=now_ns, kind="policy_swap", detail={"generation": number, "name": "other"}))
    requests = [_request(draw, number, now_ns) for number in draw(st.sets(_requests))]
    return Recording(_header(now_ns + draw(_times)), steps, requests, events)


def _step(draw: st.DrawFn, number: int, start_ns: int, end_ns: int, gaps: list[int]) -> StepRecord:
    chunks = draw(st.lists(st.tuples(_requests, st.integers(1, 300)), max_size=3))
    prefill_tokens = sum(tokens for _, tokens in chunks)
    lost = draw(
        st.lists(st.builds(PreemptedRecord, _requests, st.sampled_from(Lost), _times, st.just("growth")), max_size=2)
    )
    return StepRecord(
        step=number,
        generation=1,
        start_ns=start_ns,
        end_ns=end_ns,
        schedule_ns=draw(_times),
        forward_ns=draw(_times),
        sample_ns=draw(_times),
        moves_ns=draw(_times),
        prefill_tokens=prefill_tokens,
        decode_sequences=draw(st.integers(0, 8)),
        padding_tokens=draw(st.integers(0, 2)),
        context_tokens=0,
        running=draw(st.integers(0, 8)),
        waiting=draw(st.integers(0, 8)),
        preempted=0,
        blocks_free=5,
        preemptions_recompute=sum(one.lost == Lost.RECOMPUTE for one in lost),
        preemptions_swap=sum(one.lost == Lost.SWAP for one in lost),
        swapped_out_blocks=draw(st.integers(0, 3)),
        swapped_in_blocks=draw(st.integers(0, 3)),
        recomputed_tokens=draw(st.integers(0, prefill_tokens)),
        cached_tokens=0,
        admitted=0,
        reasons={},
        waiting_by_reason=draw(st.dictionaries(st.sampled_from(_REASONS), st.integers(1, 9))),
        expected_ns=0,
        overlap_ns=draw(_times),
        gap_idle_ns=gaps[0],
        gap_held_ns=gaps[1],
        gap_publish_ns=gaps[2],
        gap_behind_ns=gaps[3],
        gap_swap_ns=gaps[4],
        chunks=chunks,
        started=draw(st.lists(_requests, max_size=2)),
        resumed=draw(st.lists(_requests, max_size=2)),
        preemptions=lost,
    )


def _request(draw: st.DrawFn, number: int, end_ns: int) -> RequestRecord:
    times = sorted(draw(st.lists(st.integers(0, end_ns), min_size=4, max_size=4)))
    reached = draw(st.integers(0, 2))
    return RequestRecord(
        number=number,
        service_class="standard",
        arrival_ns=times[0],
        scheduled_ns=times[1] if reached else None,
        first_token_ns=times[2] if reached == 2 else None,
        end_ns=times[3],
        reason="length",
        prompt_tokens=5,
        cached_tokens=0,
        generated_tokens=1,
        samples=1,
        preemptions=0,
        longest_gap_ns=0,
        prefix_keys=[],
    )


def _header(taken_ns: int) -> Header:
    return Header(
        version="0.1.0",
        taken_ns=taken_ns,
        taken_at="2026-01-02T03:04:05Z",
        reason="snapshot",
        pid=1,
        engine="modelled",
        model="tiny",
        policy="throughput-max",
        generation=1,
        max_batch_size=8,
        max_num_tokens=256,
    )
