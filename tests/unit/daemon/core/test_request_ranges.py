"""The life of a request as ranges: each is opened and closed exactly once, however the request ends."""

from __future__ import annotations

import pytest

from inflightd.daemon.core.range_stack import RangeStack
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop
from tests.support.recording_ranges import RecordingRanges
from tests.support.traced_scene import POLICIES, run_scene, run_two_in_a_pool_for_one


def traced(**options: object) -> tuple[LoopUnderTest, RecordingRanges]:
    sink = RecordingRanges()
    return make_loop(build("throughput-max", {}), ranges=RangeStack(sink), **options), sink  # type: ignore[arg-type]


def life(sink: RecordingRanges, request: int) -> list[tuple[str, str]]:
    return [(kind, name) for kind, name, number in sink.calls if kind in ("open", "close") and number == request]


def both(*states: str) -> list[tuple[str, str]]:
    return [(kind, state) for state in states for kind in ("open", "close")]


def test_a_request_waits_is_prefilled_and_decodes() -> None:
    under_test, sink = traced(max_num_tokens=8)
    under_test.submit(5, [3] * 20, max_tokens=4)
    under_test.run()
    assert life(sink, 5) == both("queued", "prefilling", "decoding")
    calls = [call for call in sink.calls if call[0] != "mark"]
    assert calls[0] == ("open", "queued", 5)
    assert calls[-2:] == [("close", "decoding", 5), ("pop", "step", 6)]


def test_a_preempted_one_is_prefilled_again() -> None:
    sink = RecordingRanges()
    under_test = run_two_in_a_pool_for_one(build("throughput-max", {}), sink)
    [victim] = {lost.request for record in under_test.records for lost in record.preemptions}
    states = both("queued", "prefilling", "decoding", "preempted", "prefilling", "decoding")
    assert life(sink, victim) == states


def test_one_that_comes_back_from_host_memory_decodes_at_once() -> None:
    sink = RecordingRanges()
    policy = build("throughput-max", {"preemption": "swap"})
    under_test = run_two_in_a_pool_for_one(policy, sink, host_blocks=8)
    [victim] = {lost.request for record in under_test.records for lost in record.preemptions}
    assert life(sink, victim) == both("queued", "prefilling", "decoding", "preempted", "decoding")


def test_samples_have_ranges_of_their_own_once_they_split() -> None:
    under_test, sink = traced()
    under_test.submit(5, [3] * 20, max_tokens=4, n=3)
    under_test.run()
    assert sink.count()["open", "queued"] == sink.count()["open", "prefilling"] == 1
    assert sink.count()["open", "decoding"] == sink.count()["close", "decoding"] == 3
    assert not sink.open


def test_cancels_in_every_state_and_shutdown_close_what_is_open() -> None:
    under_test, sink = traced(max_batch_size=2, max_num_tokens=8)
    for number in range(5):
        under_test.submit(number, [number] * 20, max_tokens=9)
    under_test.step()
    under_test.cancel(4)
    under_test.cancel(0)
    under_test.step()
    assert [life(sink, number)[-1][0] for number in (4, 0)] == ["close", "close"]
    assert sink.open
    under_test.loop.close()
    assert not sink.open


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", POLICIES)
def test_fifty_at_a_time_with_cancels_and_faults(policy: str, seed: int) -> None:
    """`RecordingRanges` refuses a second close; the states of each request follow one another without a gap."""
    sink = RecordingRanges()
    under_test = run_scene(build(policy, POLICIES[policy]), sink, seed)
    assert not sink.open
    count = sink.count()
    assert count["open", "queued"] == 50
    for state in ("queued", "prefilling", "decoding", "preempted"):
        assert count["open", state] == count["close", state]
    singles = {number for number, _ in under_test.finished} - {
        number for number, sample in under_test.finished if sample
    }
    for number in singles:
        opened = 0
        for kind, _ in life(sink, number):
            opened += 1 if kind == "open" else -1
            assert opened in (0, 1)
    assert count["open", "preempted"] == under_test.loop.state().preemptions
