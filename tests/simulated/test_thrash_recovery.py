"""throughput-max under pressure that ends: the flag falls, and throughput is what it was (sglang#26248)."""

from __future__ import annotations

from inflightd.daemon.engines.step_cost import StepCost
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop

BLOCKS = 128
BLOCK_TOKENS = 16
SLOTS = 16
COST = StepCost(fixed_ns=2e6, prefill_token_ns=50e3, decode_ns=100e3, context_token_ns=100)


class Traffic:
    """Closed loop: as many requests as slots, each with its own prompt."""

    def __init__(self) -> None:
        self.under_test = make_loop(
            build("throughput-max", {}),
            blocks=BLOCKS,
            block_size_tokens=BLOCK_TOKENS,
            max_batch_size=SLOTS,
            max_num_tokens=512,
            cost=COST,
        )
        self.number = 0
        self.started_ns: dict[int, int] = {}
        self.took_ns: list[int] = []

    def run(self, seconds: float, prompt_tokens: int, output_tokens: int, max_tokens: int) -> float:
        """Generated tokens per second."""
        under_test, clock = self.under_test, self.under_test.clock
        state, begin_ns = under_test.loop.state(), clock.now_ns()
        while clock.now_ns() - begin_ns < seconds * 1e9:
            while len(self.started_ns) < SLOTS:
                prompt_ids = [1 + (self.number * 7 + k) % 900 for k in range(prompt_tokens)]
                under_test.submit(self.number, prompt_ids, max_tokens=max_tokens)
                self.started_ns[self.number] = clock.now_ns()
                self.number += 1
            under_test.step()
            self._end(output_tokens)
        generated = under_test.loop.state().generated_tokens - state.generated_tokens
        return generated / ((clock.now_ns() - begin_ns) / 1e9)

    def _end(self, output_tokens: int) -> None:
        """Requests end well before `max_tokens`, as by a stop string: nobody knows beforehand."""
        under_test = self.under_test
        for number in list(self.started_ns):
            if len(under_test.tokens[number, 0]) >= output_tokens:
                under_test.cancel(number, reason="stop_string")
                self.took_ns.append(under_test.clock.now_ns() - self.started_ns.pop(number))


def thrashes(under_test: LoopUnderTest) -> list[bool]:
    return [event.thrashing for event in under_test.thrashings]


def test_throughput_is_back_within_two_service_times_after_the_pressure_ends() -> None:
    """Outputs of 20 tokens, then suddenly of 350 where 20 are expected, then of 20 again."""
    traffic = Traffic()
    usual = traffic.run(1.5, 32, 20, 400)
    assert thrashes(traffic.under_test) == []
    service_s = sum(traffic.took_ns) / len(traffic.took_ns) / 1e9
    traffic.run(3, 32, 350, 400)
    assert traffic.under_test.loop.thrash.thrashing, "there was no pressure"
    for number in list(traffic.started_ns):  # those under pressure leave; what comes next is light
        traffic.under_test.cancel(number)
        del traffic.started_ns[number]
    traffic.run(2 * service_s, 32, 20, 400)
    assert traffic.run(1, 32, 20, 400) >= 0.95 * usual
    assert thrashes(traffic.under_test) == [True, False]
