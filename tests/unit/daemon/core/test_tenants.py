"""Counters of tenants: what is charged, who is lifted, what is remembered, and how fair that is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.daemon.core.tenants import OUTPUT_WEIGHT, PROMPT_WEIGHT, TenantCounters
from inflightd.daemon.core.waiting import WaitingQueue
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop


def serve(counters: TenantCounters, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
    """A request comes, starts and ends."""
    arrive(counters, tenant)
    start(counters, tenant, prompt_tokens)
    counters.leave(tenant, output_tokens)


def arrive(counters: TenantCounters, tenant: str) -> None:
    counters.enter(tenant)
    counters.wait(tenant)


def start(counters: TenantCounters, tenant: str, prompt_tokens: int) -> None:
    counters.cease(tenant)
    counters.serve(tenant, prompt_tokens)


def test_prompt_and_output_are_charged_by_their_weights() -> None:
    counters = TenantCounters()
    serve(counters, "a", 10, 5)
    assert counters.tokens == {"a": 10 * PROMPT_WEIGHT + 5 * OUTPUT_WEIGHT} == {"a": 20}


def test_with_nobody_waiting_a_newcomer_starts_where_the_last_one_stands_that_waited() -> None:
    counters = TenantCounters()
    for _ in range(10):
        serve(counters, "old", 100, 0)
    serve(counters, "new", 1, 0)
    assert counters.tokens == {"old": 1000, "new": 1001}


def test_a_newcomer_starts_where_the_least_served_stands_of_those_who_wait() -> None:
    counters = TenantCounters()
    queue = WaitingQueue(counters)
    for number, (tenant, tokens) in enumerate([("little", 20), ("some", 300), ("much", 1000)]):
        counters.tokens[tenant] = tokens
        queue.add(waiter(number, tenant))
    queue.remove(waiter(0, "little"))  # it runs now, or went away: it is not owed anything by those who wait
    queue.add(waiter(3, "new"))
    assert counters.tokens["new"] == 300


def test_coming_back_does_not_wipe_out_what_was_served() -> None:
    counters = TenantCounters()
    serve(counters, "heavy", 1000, 1000)
    counters.tokens["light"] = 10
    arrive(counters, "light")
    arrive(counters, "heavy")
    assert counters.tokens == {"heavy": 3000, "light": 3000}


def test_one_sequence_that_waits_is_not_an_idle_tenant() -> None:
    counters = TenantCounters()
    arrive(counters, "busy")
    for number in range(3000):
        serve(counters, f"passer-by {number}", 1, 1)
    assert counters.tokens["busy"] == 0
    start(counters, "busy", 10)
    assert counters.tokens["busy"] == 10


def test_whom_newcomers_are_lifted_to_is_not_forgotten() -> None:
    counters = TenantCounters()
    for number in range(3000):
        arrive(counters, f"tenant {number}")
    for number in range(3000):
        start(counters, f"tenant {number}", 7 if number < 2999 else 70)
    counters.leave("tenant 2999", 0)  # it ceased to wait last, and has been idle longest
    for number in range(2999):
        counters.leave(f"tenant {number}", 0)
    arrive(counters, "new")
    assert counters.tokens["new"] == 70
    assert len(counters.tokens) <= 1025


def test_a_tenant_for_each_request_does_not_fill_the_memory() -> None:
    under_test = make_loop(build("throughput-max", {}))
    for number in range(3000):
        under_test.submit(number, [3] * 4, max_tokens=1, tenant=f"tenant {number}")
        under_test.loop.step()
    roster = under_test.loop.roster
    assert (len(roster.live), len(roster.requests), len(roster.kv.tables)) == (0, 0, 0)
    assert len(roster.tenants.tokens) <= 1024
    assert len(roster.tenants.orders) == 0
    assert len(roster.outputs.sorted_tokens) <= 256


# --- fairness


@dataclass
class Waiter:
    number: int
    tenant: str
    prompt_tokens: int = 10
    output_tokens: int = 10
    deadline_ns: int | None = None
    arrival_ns: int = 0
    given: int = 0  # tokens of output
    charged: int = 0


def waiter(number: int, tenant: str, prompt_tokens: int = 10, output_tokens: int = 10) -> Any:
    return Waiter(number, tenant, prompt_tokens, output_tokens)


BLOCK_TOKENS = 8


@dataclass
class Server:
    """The least served tenant's first request goes first, or nobody; outputs are charged by the block."""

    pool_tokens: int
    counters: TenantCounters = field(default_factory=TenantCounters)
    running: list[Any] = field(default_factory=list)
    served: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # exact, weighted
    numbers: int = 0

    def __post_init__(self) -> None:
        self.queue = WaitingQueue(self.counters)

    def submit(self, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
        self.numbers += 1
        self.counters.enter(tenant)
        self.queue.add(waiter(self.numbers, tenant, prompt_tokens, output_tokens))

    def waits(self, tenant: str) -> bool:
        return any(one.tenant == tenant for one in self.queue.by_arrival())

    def step(self) -> None:
        while len(self.queue):
            first: Any = next(self.queue.by_tenant())
            held = sum(one.prompt_tokens + one.output_tokens for one in self.running)
            if held + first.prompt_tokens + first.output_tokens > self.pool_tokens:
                break
            self.queue.remove(first)
            self.counters.serve(first.tenant, first.prompt_tokens)
            self.served[first.tenant] += PROMPT_WEIGHT * first.prompt_tokens
            self.running.append(first)
        for one in list(self.running):
            one.given += 1
            self.served[one.tenant] += OUTPUT_WEIGHT
            if one.given == one.output_tokens:
                self.running.remove(one)
                self.counters.leave(one.tenant, one.given - one.charged)
            elif (one.prompt_tokens + one.given) % BLOCK_TOKENS == 0:
                self.counters.give(one.tenant, one.given - one.charged)
                one.charged = one.given


LONGEST_PROMPT, POOL_TOKENS = 60, 120
BOUND = 2 * max(PROMPT_WEIGHT * LONGEST_PROMPT, OUTPUT_WEIGHT * POOL_TOKENS)
REQUEST = st.tuples(st.sampled_from("abc"), st.integers(1, LONGEST_PROMPT), st.integers(1, 50))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(REQUEST, max_size=6), min_size=20, max_size=150))
def test_two_tenants_with_requests_waiting_are_served_alike_within_the_bound(
    arrivals: list[list[tuple[str, int, int]]],
) -> None:
    """Over every interval in which both wait: the range of the difference since both began to."""
    server = Server(POOL_TOKENS)
    ranges: dict[tuple[str, str], tuple[float, float]] = {}
    for requests in arrivals:
        for tenant, prompt_tokens, output_tokens in requests:
            server.submit(tenant, prompt_tokens, output_tokens)
        server.step()
        for pair in combinations("abc", 2):
            if not all(map(server.waits, pair)):
                ranges.pop(pair, None)
                continue
            difference = server.served[pair[0]] - server.served[pair[1]]
            low, high = ranges.get(pair, (difference, difference))
            low, high = ranges[pair] = min(low, difference), max(high, difference)
            assert high - low <= BOUND


@settings(max_examples=60, deadline=None)
@given(
    st.integers(20, 400),
    st.lists(st.tuples(st.integers(20, LONGEST_PROMPT), st.integers(10, 50)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(20, LONGEST_PROMPT), st.integers(10, 50)), min_size=1, max_size=5),
)
def test_who_was_away_is_owed_nothing_when_it_comes_back(
    away_steps: int, of_stayer: list[tuple[int, int]], of_returnee: list[tuple[int, int]]
) -> None:
    """From its return on both always have requests waiting, more than the server can do: however long it was away, it
    gets no more than the bound above the other's service."""
    server = Server(POOL_TOKENS)
    server.submit("returnee", 5, 5)
    for number in range(away_steps):
        server.submit("stayer", *of_stayer[number % len(of_stayer)])
        server.step()
    before = dict(server.served)
    for number in range(20):
        server.submit("returnee", *of_returnee[number % len(of_returnee)])
    for number in range(300):
        server.submit("stayer", *of_stayer[number % len(of_stayer)])
        server.submit("returnee", *of_returnee[number % len(of_returnee)])
        server.step()
        assert server.waits("stayer")
        assert server.waits("returnee")
        gained = server.served["returnee"] - before.get("returnee", 0)
        assert gained - (server.served["stayer"] - before["stayer"]) <= BOUND


def test_ten_times_the_requests_get_no_more_of_the_server() -> None:
    server = Server(POOL_TOKENS)
    for number in range(2000):
        for _ in range(10):
            server.submit("many", 20, 20)
        if number % 2:
            server.submit("few", 20, 20)
        server.step()
    assert server.waits("few")
    assert abs(server.served["many"] - server.served["few"]) <= BOUND
    assert server.served["few"] > 10 * BOUND
