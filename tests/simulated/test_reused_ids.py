"""Case S09: a client that aborts and at once comes again under the same id, while the abort is still on its way.

The front's table of requests over the real loop; commands reach the loop some steps after they were sent.  Source:
vllm#10583, vllm#23697.
"""

from __future__ import annotations

import random
from collections import deque

import pytest

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Cancel, Command, Submit
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.requests import RequestTable
from inflightd.schedulers.registry import build
from tests.support.loops import STEP_NS, expected_tokens, make_loop

TURNS = 1000
OUTPUT_TOKENS = 6


class Link:
    """Every command takes `delay_steps` steps; the order is kept."""

    def __init__(self, delay_steps: int) -> None:
        self.under_test = make_loop(build("throughput-max", {}), blocks=64, max_batch_size=4)
        self.clock = self.under_test.clock
        self.delay_ns = delay_steps * STEP_NS
        self.on_the_way: deque[tuple[int, Command]] = deque()
        self.table = RequestTable(
            self._send, self, lambda gap_ns, tokens: None, self.clock.now_ns,
            buffer_tokens=10_000, buffer_bytes=10_000, stall_ns=10**18,
        )  # fmt: skip
        self.tokens: dict[int, list[int]] = {}
        self.terminals: list[tuple[int, str]] = []

    def _send(self, command: Command) -> None:
        self.on_the_way.append((self.clock.now_ns() + self.delay_ns, command))

    def first_token(self, live: LiveRequest, now_ns: int) -> None:
        """Nothing to count."""

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        self.terminals.append((live.number, reason))

    def submit(self, prompt_ids: list[int], max_tokens: int) -> LiveRequest:
        submit = Submit(
            number=self.table.next_number(),
            prompt_ids=prompt_ids,
            sampling=SamplingParams(max_tokens=max_tokens, seed=7),
            service_class="default",
            arrival_ns=self.clock.now_ns(),
        )
        return self.table.add(submit, request_id="same")

    def step(self) -> None:
        """Deliver what is due, one step (or none, with nobody there), and what comes up from it."""
        loop = self.under_test.loop
        while self.on_the_way and self.on_the_way[0][0] <= self.clock.now_ns():
            _, command = self.on_the_way.popleft()
            if isinstance(command, Submit):
                loop.submit(command)
            elif isinstance(command, Cancel):
                loop.cancel(command)
        if not loop.has_work:
            self.clock.sleep_ns(STEP_NS)
        frame = loop.step()[0] if loop.has_work else loop.report()
        if frame is not None:
            state = frame.state
            assert min(state.running, state.waiting, state.preempted) >= 0
            assert 0 <= state.blocks_free <= state.blocks_total
            self.table.on_frame(frame)
            for delta in frame.tokens:
                self.tokens.setdefault(delta.number, []).extend(delta.token_ids)
        assert self.table.queued_requests >= 0
        assert self.table.queued_prompt_tokens >= 0

    def finish(self, live: LiveRequest) -> None:
        while live.open_samples:
            self.step()
        self.table.close(live, "length")


@pytest.mark.parametrize("delay_steps", [0, 1, 5])
def test_who_comes_again_under_the_id_it_has_aborted_is_served_in_full(delay_steps: int) -> None:
    link, draw = Link(delay_steps), random.Random(delay_steps)
    aborted: list[int] = []
    for turn in range(TURNS):
        first = link.submit([3, turn % 900], 40)
        for _ in range(draw.randrange(2 * delay_steps + 4)):  # on its way, waiting, or in mid stream
            link.step()
        link.table.end(first, "cancelled")
        aborted.append(first.number)
        again = link.submit([4, turn % 900], OUTPUT_TOKENS)
        link.finish(again)
        assert link.tokens[again.number] == expected_tokens([4, turn % 900], OUTPUT_TOKENS)
    while link.on_the_way or link.under_test.loop.has_work:
        link.step()
    link.under_test.loop.check_idle()
    assert [number for number, reason in link.terminals if reason == "cancelled"] == aborted
    assert len(link.terminals) == 2 * TURNS == len({number for number, _ in link.terminals})
    assert (len(link.table), link.table.queued_requests, link.table.queued_prompt_tokens) == (0, 0, 0)
    assert all(len(link.tokens.get(number, [])) < 40 for number in aborted)
