"""The request table: tokens to whom they belong, and one terminal record for each request whatever happens."""

import asyncio
import random
from collections import Counter

import pytest

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Cancel, Command, Finished, Frame, LoopState, Started, Submit, TokenDelta
from inflightd.daemon.engines.api import TokenLogprobs
from inflightd.daemon.errors import GenerationEnded
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.requests import RequestTable
from inflightd.profiling.ranges import Ranges

STATE = LoopState(0, 0, 0, 10, 10, 0, 0, 0, 0, 0, 0, 0, "p", 0)


class Bench:
    """A table with its surroundings written down."""

    def __init__(self, ranges: Ranges | None = None, **bounds: int) -> None:
        self.at_ns = 1_000
        self.sent: list[Command] = []
        self.terminals: list[tuple[int, str]] = []
        self.first_tokens: list[int] = []
        self.gaps: list[tuple[int, int]] = []
        self.table = RequestTable(
            self.sent.append,
            self,
            lambda gap_ns, tokens: self.gaps.append((gap_ns, tokens)),
            lambda: self.at_ns,
            ranges=ranges,
            **{"buffer_tokens": 100, "buffer_bytes": 100_000, "stall_ns": 1_000_000, **bounds},
        )

    def first_token(self, live: LiveRequest, now_ns: int) -> None:
        self.first_tokens.append(live.number)

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        self.terminals.append((live.number, reason))

    def add(self, request_id: str = "same", n: int = 1, deadline_ns: int | None = None) -> LiveRequest:
        submit = Submit(
            number=self.table.next_number(),
            prompt_ids=[1, 2, 3],
            sampling=SamplingParams(seed=1, max_tokens=9, n=n),
            service_class="default",
            arrival_ns=self.at_ns,
            deadline_ns=deadline_ns,
        )
        return self.table.add(submit, request_id)

    def cancels(self) -> list[Cancel]:
        return [command for command in self.sent if isinstance(command, Cancel)]

    def frame(self, *tokens: TokenDelta, finished: tuple[Finished, ...] = ()) -> None:
        self.table.on_frame(Frame(tokens=list(tokens), finished=list(finished), state=STATE))


def done(number: int, sample: int = 0, reason: str = "length") -> Finished:
    return Finished(number, sample, reason, 1, 2, 1, 1_500)


async def test_equal_client_ids_are_separate_requests() -> None:
    """Case S09."""
    bench = Bench()
    first, second = bench.add("id"), bench.add("id")
    bench.table.close(first, "cancelled")
    bench.frame(TokenDelta(first.number, 0, [7]), TokenDelta(second.number, 0, [8]))
    assert (await second.stream.take())[0].token_ids == [8]
    assert bench.terminals == [(first.number, "cancelled")]
    assert len(bench.table) == 1


async def test_a_second_end_of_a_request_writes_no_second_record() -> None:
    bench = Bench()
    live = bench.add()
    assert bench.table.close(live, "length")
    assert not bench.table.close(live, "cancelled")
    bench.table.end(live, "deadline")
    assert bench.terminals == [(live.number, "length")]


async def test_the_engine_is_told_once_and_only_while_it_works_on_it() -> None:
    bench = Bench()
    early, late = bench.add(), bench.add()
    bench.table.end(early, "cancelled")
    bench.frame(finished=(done(late.number),))
    bench.table.close(late, "length")
    assert bench.cancels() == [Cancel(early.number, "cancelled")]


async def test_first_token_leaves_the_queue_and_gaps_are_counted_by_sample() -> None:
    bench = Bench()
    live = bench.add(n=2)
    assert (bench.table.queued_requests, bench.table.queued_prompt_tokens) == (1, 3)
    bench.frame(TokenDelta(live.number, 0, [1]), TokenDelta(live.number, 1, [1]))
    bench.at_ns += 500
    bench.frame(TokenDelta(live.number, 0, [2, 3]))
    assert (bench.table.queued_requests, bench.table.queued_prompt_tokens) == (0, 0)
    assert bench.first_tokens == [live.number]
    assert bench.gaps == [(250, 2)], "tokens that come together share their gap"


async def test_what_was_cached_is_known_from_the_first_step_on() -> None:
    bench = Bench()
    live, other = bench.add(), bench.add()
    bench.table.on_frame(Frame(started=[Started(live.number, 1_200, 2), Started(99, 1, 1)], state=STATE))
    assert (live.scheduled_ns, live.cached_tokens) == (1_200, 2)
    assert (other.scheduled_ns, other.cached_tokens) == (0, 0)


async def test_a_request_that_never_got_a_token_leaves_the_queue_too() -> None:
    bench = Bench()
    bench.table.close(bench.add(), "cancelled")
    assert (bench.table.queued_requests, bench.table.queued_prompt_tokens) == (0, 0)


async def test_a_deadline_ends_the_request_and_frees_the_engine() -> None:
    """Case G12: counted as deadline, not as cancel."""
    bench = Bench()
    live = bench.add(deadline_ns=bench.at_ns + 5_000_000)
    with pytest.raises(GenerationEnded) as caught:
        await asyncio.wait_for(live.stream.take(), 2)
    assert caught.value.reason == "deadline"
    assert bench.terminals == [(live.number, "deadline")]
    assert bench.cancels() == [Cancel(live.number, "deadline")]


async def test_a_closed_request_leaves_no_timer() -> None:
    bench = Bench()
    live = bench.add(deadline_ns=bench.at_ns + 60_000_000_000)
    bench.table.close(live, "length")
    assert live.timer is not None
    assert live.timer.cancelled()


async def test_a_reader_too_far_behind_is_ended_and_its_task_cancelled() -> None:
    bench = Bench(buffer_tokens=3)
    slow, other = bench.add(), bench.add()
    writing = asyncio.create_task(asyncio.sleep(60))
    slow.task = writing
    bench.frame(TokenDelta(slow.number, 0, [1, 2, 3]), TokenDelta(other.number, 0, [1]))
    assert bench.terminals == []
    bench.frame(TokenDelta(slow.number, 0, [4]))
    assert bench.terminals == [(slow.number, "slow_reader")]
    assert bench.cancels() == [Cancel(slow.number, "slow_reader")]
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert slow.slow_reader
    assert list(bench.table) == [other]


async def test_the_bound_counts_bytes_too() -> None:
    bench = Bench(buffer_bytes=100)
    live = bench.add()
    bench.frame(TokenDelta(live.number, 0, [1], [TokenLogprobs(1, -1.0, [], [])]))
    assert bench.terminals == [(live.number, "slow_reader")]


async def test_a_stalled_reader_is_found_by_the_sweep() -> None:
    bench = Bench(stall_ns=1_000)
    stalled, waiting = bench.add(), bench.add()
    bench.frame(TokenDelta(stalled.number, 0, [1]))
    await stalled.stream.take()
    bench.at_ns += 1_000
    bench.table.sweep()
    assert bench.terminals == []
    bench.at_ns += 1
    bench.table.sweep()
    assert bench.terminals == [(stalled.number, "slow_reader")]
    assert list(bench.table) == [waiting]


async def test_a_lost_engine_takes_nothing_from_a_request_whose_tokens_are_all_here() -> None:
    bench = Bench()
    whole, broken = bench.add(), bench.add()
    bench.frame(TokenDelta(whole.number, 0, [1]), finished=(done(whole.number),))
    assert bench.table.engine_lost() == [broken]
    assert bench.terminals == []
    assert bench.cancels() == []
    assert (await whole.stream.take())[0].finished == done(whole.number)


async def test_every_request_has_one_record_under_random_ends() -> None:
    """Case G11: finished xor cancelled, and no counter off at the end."""
    choose = random.Random(20)
    for _ in range(300):
        bench = Bench(buffer_tokens=8)
        lives = [bench.add(n=choose.choice((1, 1, 3))) for _ in range(4)]
        for _ in range(30):
            live = choose.choice(lives)
            sample = choose.randrange(len(live.sample_last_ns))
            match choose.randrange(7):
                case 0:
                    bench.table.end(live, choose.choice(("deadline", "drained")))
                case 1:
                    bench.table.close(live, choose.choice(("cancelled", "length")))
                case 2:
                    bench.frame(finished=(done(live.number, sample),))
                case 3:
                    for lost in bench.table.engine_lost():
                        bench.table.submit(lost)
                case _:
                    bench.frame(TokenDelta(live.number, sample, [1]))
        bench.table.end_all("drained")
        assert Counter(number for number, _ in bench.terminals) == Counter(live.number for live in lives)
        assert len(bench.table) == bench.table.queued_requests == bench.table.queued_prompt_tokens == 0
        assert len({cancel.number for cancel in bench.cancels()}) == len(bench.cancels())


class CountedRanges:
    """A sink that insists on one end for each range."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[str, int]] = {}
        self.begun: list[tuple[str, int]] = []

    def push(self, name: str, payload: int) -> None:
        raise AssertionError("a stack of ranges cannot survive an await")

    def pop(self) -> None:
        raise AssertionError("a stack of ranges cannot survive an await")

    mark = push

    def open_request(self, name: str, request: int) -> object:
        self.begun.append((name, request))
        self.open[len(self.begun)] = (name, request)
        return len(self.begun)

    def close_request(self, handle: object) -> None:
        assert isinstance(handle, int)
        del self.open[handle]  # KeyError: ended twice, or never begun

    def close(self) -> None: ...


async def test_each_request_has_a_range_with_one_end_however_it_ends() -> None:
    """Case T06."""
    choose = random.Random(6)
    ranges = CountedRanges()
    bench = Bench(ranges=ranges, buffer_tokens=8)
    for _ in range(200):
        lives = [bench.add(n=choose.choice((1, 1, 3))) for _ in range(4)]
        assert set(ranges.open.values()) >= {("request", live.number) for live in lives}
        for _ in range(12):
            live = choose.choice(lives)
            match choose.randrange(6):
                case 0:
                    bench.table.end(live, choose.choice(("deadline", "drained")))
                case 1:
                    bench.table.close(live, "cancelled")
                case 2:
                    bench.frame(finished=(done(live.number, choose.randrange(len(live.sample_last_ns))),))
                case 3:
                    for lost in bench.table.engine_lost():
                        bench.table.submit(lost)
                case _:
                    bench.frame(TokenDelta(live.number, 0, [1]))
        bench.table.end_all("drained")
        assert ranges.open == {}
    assert ranges.begun == [("request", number) for number, _ in sorted(bench.terminals)]


async def test_the_longest_gap_is_between_tokens_of_one_sample() -> None:
    bench = Bench()
    live = bench.add(n=2)
    for sample, at_ns in ((0, 1_000), (1, 9_000), (0, 1_500), (1, 9_300), (0, 1_900)):
        bench.at_ns = at_ns
        bench.frame(TokenDelta(live.number, sample, [1]))
    assert live.longest_gap_ns == 500


async def test_the_engine_owes_what_it_has_not_finished() -> None:
    bench = Bench()
    assert not bench.table.engine_owes
    live = bench.add()
    assert bench.table.engine_owes
    bench.frame(finished=(done(live.number),))
    assert not bench.table.engine_owes, "only its reader is waited for"
