"""Requests carried over from one engine process to the next, and what a death is taken for."""

from __future__ import annotations

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.step_mark import LastStep
from inflightd.daemon.core.wire import Cancel, Command, Frame, LoopState, Started, Submit, TokenDelta
from inflightd.daemon.front.engine_events import Death, Run
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.requests import RequestTable
from inflightd.daemon.front.resumption import Resumption

STATE = LoopState(0, 0, 0, 10, 10, 0, 0, 0, 0, 0, 0, 0, "p", 0)


class Bench:
    def __init__(self) -> None:
        self.at_ns = 1_000
        self.sent: list[Command] = []
        self.terminals: list[tuple[int, str]] = []
        self.told: list[tuple[int, int]] = []
        self.table = RequestTable(
            self.sent.append, self, lambda gap_ns, tokens: None, lambda: self.at_ns,
            buffer_tokens=1000, buffer_bytes=10**6, stall_ns=10**9,
        )  # fmt: skip
        self.resumption = Resumption(self.table, lambda: self.at_ns, lambda *told: self.told.append(told))
        self.resumption.engine_ready()

    def first_token(self, live: LiveRequest, now_ns: int) -> None: ...

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        self.terminals.append((live.number, reason))

    def add(self, arrival_ns: int = 5) -> LiveRequest:
        number = self.table.next_number()
        sampling = SamplingParams(seed=1, max_tokens=9)
        return self.table.add(
            Submit(number=number, prompt_ids=[1], sampling=sampling, service_class="d", arrival_ns=arrival_ns), "r"
        )

    def token(self, *lives: LiveRequest) -> None:
        started = [Started(live.number, 7, 0) for live in lives]
        tokens = [TokenDelta(live.number, 0, [5]) for live in lives]
        self.table.on_frame(Frame(started=started, tokens=tokens, state=STATE))
        if self.resumption.attentive:
            self.resumption.on_frame(tokens=bool(tokens))

    def dies(self, *in_step: LiveRequest, steps: int = 5, was_ready: bool = True) -> Run:
        self.sent.clear()
        last = LastStep(steps, tuple(live.number for live in in_step))
        return self.resumption.engine_lost(Death("it died", was_ready, last))

    def submitted(self) -> list[int]:
        return [command.number for command in self.sent if isinstance(command, Submit)]


async def test_all_go_on_in_the_order_of_arrival_and_the_time_is_told_with_the_first_token() -> None:
    bench = Bench()
    late, early = bench.add(9), bench.add(3)
    bench.token(late, early)
    assert bench.dies(late, early) is Run.SOMEWHERE
    new = bench.add(4)
    assert bench.submitted() == [], "there is no engine"
    bench.resumption.engine_ready()
    assert bench.submitted() == [early.number, new.number, late.number]
    bench.at_ns += 700
    bench.token(early)
    assert bench.told == [(2, 700)]
    assert not bench.resumption.attentive


async def test_one_that_ends_while_there_is_no_engine_is_not_sent_to_the_next() -> None:
    bench = Bench()
    live = bench.add()
    bench.dies(live)
    bench.table.close(live, "cancelled")
    bench.resumption.engine_ready()
    assert (bench.submitted(), [command for command in bench.sent if isinstance(command, Cancel)]) == ([], [])


async def test_those_not_on_trial_wait_and_the_guilty_one_ends() -> None:
    bench = Bench()
    lives = [bench.add(arrival) for arrival in range(4)]
    assert bench.dies(*lives) is Run.SOMEWHERE
    bench.resumption.engine_ready()
    bench.dies(*lives, steps=0)
    bench.resumption.engine_ready()
    assert bench.submitted() == [lives[0].number, lives[1].number]
    new = bench.add(9)
    assert new.number not in bench.submitted()
    bench.token(lives[0], lives[1])
    assert bench.submitted()[2:] == [lives[2].number]
    assert bench.dies(*lives[:3], steps=2) is Run.SEARCH
    assert bench.terminals == [(lives[2].number, "error")]
    bench.resumption.engine_ready()
    assert bench.submitted() == [lives[0].number, lives[1].number, lives[3].number, new.number]


async def test_a_suspect_that_leaves_makes_room_for_the_others() -> None:
    bench = Bench()
    lives = [bench.add(arrival) for arrival in range(2)]
    for _ in range(2):
        bench.dies(*lives)
        bench.resumption.engine_ready()
    assert bench.submitted() == [lives[0].number]
    bench.table.close(lives[0], "cancelled")
    bench.resumption.look()
    assert bench.submitted() == [lives[0].number, lives[1].number]


async def test_what_a_death_is_taken_for() -> None:
    bench = Bench()
    assert bench.dies(was_ready=False, steps=0) is Run.NOWHERE
    assert bench.dies(steps=0) is Run.IDLE
    assert bench.dies(steps=1) is Run.SOMEWHERE
    bench.resumption.engine_ready()
    live = bench.add()
    assert bench.dies(live, steps=0) is Run.NOWHERE
