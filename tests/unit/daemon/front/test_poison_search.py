"""The search for a request that kills the engine."""

from __future__ import annotations

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from inflightd.daemon.front.poison_search import PoisonSearch


def test_one_death_proves_nothing() -> None:
    search = PoisonSearch()
    assert search.died([1, 2, 3], {1, 2, 3}) is None
    assert not search.active


def test_a_token_in_between_clears() -> None:
    search = PoisonSearch()
    search.died([1, 2], {1, 2})
    search.died([1, 2], set())  # both got tokens in the second engine
    search.died([1, 2], {1, 2})
    assert not search.active


def test_halves_wait_for_each_other() -> None:
    search = PoisonSearch()
    for _ in range(2):
        search.died([1, 2, 3, 4], {1, 2, 3, 4, 5})
    assert search.trial == (1, 2)
    assert not search.look({2, 3, 4, 5})
    assert search.look({3, 4, 5})
    assert search.trial == (3,)
    assert search.died([1, 2, 3], {3, 4, 5}) == 3
    assert not search.active


def test_a_death_that_tells_nothing_changes_nothing() -> None:
    search = PoisonSearch()
    for _ in range(2):
        search.died([1, 2], {1, 2})
    assert search.died([], {1, 2}) is None
    assert search.trial == (1,)


def test_suspects_that_end_by_themselves_end_the_search() -> None:
    search = PoisonSearch()
    for _ in range(2):
        search.died([1, 2], {1, 2})
    assert search.look(set())
    assert not search.active


@given(st.integers(1, 40).flatmap(lambda k: st.tuples(st.just(k), st.sets(st.integers(0, k - 1), max_size=3))))
def test_exactly_those_that_kill_are_convicted_in_a_bounded_number_of_deaths(case: tuple[int, set[int]]) -> None:
    count, killers = case
    search, alive, in_engine = PoisonSearch(), set(range(count)), set[int]()
    progressed: set[int] = set()
    convicted: list[int] = []
    deaths = 0
    for _ in range(1000):
        allowed = (set(search.trial) & alive) if search.active else alive
        in_engine |= allowed
        if in_engine & killers:
            deaths += 1
            found = search.died(sorted(in_engine), alive - progressed)
            if found is not None:
                convicted.append(found)
                alive.discard(found)
            in_engine, progressed = set(), set()
            continue
        progressed |= in_engine
        if search.active:
            search.look(alive - progressed)
            continue
        break
    assert set(convicted) == killers
    assert deaths <= len(killers) * (2 + 1 + ceil(log2(max(1, count))))
