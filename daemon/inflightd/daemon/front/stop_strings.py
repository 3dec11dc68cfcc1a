"""Stop strings: an Aho-Corasick automaton that finds the leftmost-longest match in text that comes in pieces.

The match of a text is the one that begins first and, of those, the longest.  A match is final only when no other can
begin earlier or reach further, which may take more text than the match itself (stops `AB` and `ABC`, text `AB`); so
the result does not depend on how the text is cut, and costs O(1) a character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import KeysView, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class StopMatch:
    """begin and end in characters of the whole text."""

    stop: str
    begin: int
    end: int


class StopAutomaton:
    """The stop strings, compiled; immutable and shared between requests.  State 0 is the root."""

    __slots__ = ("children", "depth", "fallback", "longest_here")

    def __init__(self, stops: Sequence[str]) -> None:
        self.children: list[dict[str, int]] = [{}]
        self.depth = [0]  # characters of the text that this state stands for: how far back it began
        self.fallback = [0]  # state of the longest proper suffix
        self.longest_here: list[str | None] = [None]  # longest stop that ends in this state
        for stop in stops:
            state = 0
            for char in stop:
                state = self.children[state].get(char) or self._grow(state, char)
            self.longest_here[state] = stop
        queue = deque(self.children[0].values())
        while queue:  # breadth first: a fallback is always complete before it is needed
            state = queue.popleft()
            if self.longest_here[state] is None:
                self.longest_here[state] = self.longest_here[self.fallback[state]]
            for char, child in self.children[state].items():
                self.fallback[child] = self.after(self.fallback[state], char)
                queue.append(child)

    def after(self, state: int, char: str) -> int:
        """The state that `char` leads to."""
        children, fallback = self.children, self.fallback
        while True:
            following = children[state].get(char)
            if following is not None:
                return following
            if not state:
                return 0
            state = fallback[state]

    def _grow(self, state: int, char: str) -> int:
        self.children[state][char] = len(self.depth)
        self.children.append({})
        self.depth.append(self.depth[state] + 1)
        self.fallback.append(0)
        self.longest_here.append(None)
        return len(self.depth) - 1


# A state takes 260 bytes: both caches stay below 40 MiB whatever strings are sent.
_MANY_CHARS = 512
_small = lru_cache(maxsize=256)(StopAutomaton)
_large = lru_cache(maxsize=1)(StopAutomaton)  # for the samples of one request, which come one after the other


def stop_automaton(stops: tuple[str, ...]) -> StopAutomaton:
    """Clients send the same few stop strings over and over."""
    return (_small if sum(map(len, stops)) <= _MANY_CHARS else _large)(stops)


class StopMatcher:
    """The search through one sample's text."""

    __slots__ = ("_automaton", "_best", "_position", "_state")

    def __init__(self, stops: Sequence[str]) -> None:
        """stops: none empty."""
        self._automaton = stop_automaton(tuple(stops))
        self._state = 0
        self._position = 0  # characters read
        self._best: StopMatch | None = None  # a match that may still be beaten

    @property
    def first_chars(self) -> KeysView[str]:
        """While nothing is pending, text without any of these changes nothing and need not be pushed."""
        return self._automaton.children[0].keys()

    @property
    def safe_chars(self) -> int:
        """Characters of the whole text before the first that may belong to a match."""
        pending = self._position - self._automaton.depth[self._state]
        return pending if self._best is None else min(pending, self._best.begin)

    def push(self, text: str) -> StopMatch | None:
        """The match, once it is final; after that the matcher is done."""
        automaton = self._automaton
        children, root = automaton.children, automaton.children[0]
        state, best, position = self._state, self._best, self._position
        for char in text:
            position += 1
            if state:
                state = automaton.after(state, char)
            elif char not in root:
                continue
            else:
                state = root[char]
            stop = automaton.longest_here[state]
            if stop is not None:
                begin = position - len(stop)
                if best is None or begin <= best.begin:
                    best = StopMatch(stop, begin, position)
            if best is not None:
                pending = position - automaton.depth[state]
                if pending > best.begin or not children[state]:
                    return best
        self._state, self._best, self._position = state, best, position
        return None

    def finish(self) -> StopMatch | None:
        """The match of a text that ends here."""
        return self._best
