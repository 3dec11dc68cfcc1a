"""The waiting sequences by when their first token is due: two orders merged, the late ones left out at no cost."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sequence import Sequence
from inflightd.daemon.core.waiting import WaitingQueue
from inflightd.daemon.core.wire import Submit
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop

_NEVER_NS = 1 << 63
_times = st.integers(0, 40)


def queue_of(requests: list[tuple[int, int | None]]) -> tuple[WaitingQueue, list[Sequence]]:
    """(arrival, deadline) of each; a real loop's queue."""
    loop = make_loop(build("throughput-max", {})).loop
    for number, (arrival_ns, deadline_ns) in enumerate(requests):
        params = SamplingParams(max_tokens=1, seed=1)
        loop.submit(Submit(number=number, prompt_ids=[1], sampling=params, service_class="default",
                           arrival_ns=arrival_ns, deadline_ns=deadline_ns))  # fmt: skip
    return loop.roster.waiting["default"], list(loop.roster.live.values())


@given(st.lists(st.tuples(_times, st.none() | _times), min_size=1, max_size=25), st.none() | _times, _times)
def test_is_the_order_of_the_earlier_of_both_times(
    requests: list[tuple[int, int | None]], ttft_ns: int | None, from_ns: int
) -> None:
    queue, sequences = queue_of(requests)

    def due_ns(sequence: Sequence) -> int:
        first_ns = _NEVER_NS if ttft_ns is None else sequence.arrival_ns + ttft_ns
        return min(first_ns, _NEVER_NS if sequence.deadline_ns is None else sequence.deadline_ns)

    given_order = list(queue.by_due(ttft_ns, from_ns))
    assert len(given_order) == len(set(given_order))
    assert set(given_order) == {sequence for sequence in sequences if due_ns(sequence) >= from_ns}
    assert [due_ns(sequence) for sequence in given_order] == sorted(map(due_ns, given_order))


def test_those_that_are_late_are_not_looked_at() -> None:
    """Ten thousand late ones: the first of those in time is found without them."""
    queue, sequences = queue_of([(number, 10**9) for number in range(10_000)])
    looked: list[int] = []

    class Watched(OrderedDict[int, Sequence]):
        def __getitem__(self, number: int) -> Sequence:
            looked.append(number)
            return super().__getitem__(number)

    queue._by_arrival = Watched(queue._by_arrival)
    assert next(queue.by_due(100, 10_000)) is sequences[9_900]
    assert len(looked) < 5
