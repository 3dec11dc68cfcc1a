"""What the person at the terminal sees and may do: the state of the screen, and how a key changes it.

Nothing here reads or writes: a key is answered with the next state and what must be done about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from inflightd.clients.cli.top_rates import Picture
from inflightd.clients.status import SchedulerPolicy

INTERVALS_MS: Final = (100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)
ESCAPE: Final = "escape"
POLICIES_ON_A_PAGE: Final = 9  # as many as there are digits to choose them by

# One key each: an arrow or function key's sequence, or a character.
_KEY = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|[\xc2-\xf4][\x80-\xbf]+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Screen:
    """Everything that the view is made from."""

    interval_ms: int
    picture: Picture | None = None  # shown
    latest: Picture | None = None  # another one only while paused
    paused: bool = False
    silent_s: int = 0  # since the last sample, once that is longer than it should be
    policies: tuple[SchedulerPolicy, ...] | None = None  # to choose from; None: there is no such question
    page: int = 0
    busy: bool = False  # an answer of the daemon is outstanding
    message: str = ""
    alarming: bool = False  # the message is of something that went wrong


@dataclass(frozen=True, slots=True)
class Quit:
    """End the program."""


@dataclass(frozen=True, slots=True)
class AskPolicies:
    """Ask the daemon which policies there are."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Ask the daemon to run this policy, with its default options."""

    name: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Ask the daemon for samples at another interval."""

    interval_ms: int


Action = Quit | AskPolicies | Swap | Watch


def keys_in(data: bytes) -> list[str]:
    """The keys that a terminal sent; those that have a sequence of several bytes and no meaning here are left out."""
    found = []
    for key in _KEY.findall(data):
        if key == b"\x1b":
            found.append(ESCAPE)
        elif len(key) == 1:
            found.append(key.decode("ascii", "replace"))
    return found


def press(screen: Screen, key: str) -> tuple[Screen, Action | None]:
    """The screen after `key`, and what must be done."""
    if key == "q":
        return screen, Quit()
    if screen.policies is not None:
        return _choose(screen, screen.policies, key)
    match key:
        case "s" if not screen.busy:
            return replace(screen, busy=True, message="asking for the policies ...", alarming=False), AskPolicies()
        case "p":
            return replace(screen, paused=not screen.paused, picture=screen.latest), None
        case "+" | "=":
            return _pace(screen, 1)
        case "-" | "_":
            return _pace(screen, -1)
        case "escape":
            return (screen if screen.busy else replace(screen, message="")), None
    return screen, None


def offer(screen: Screen, policies: tuple[SchedulerPolicy, ...]) -> Screen:
    """The daemon has told its policies."""
    return replace(screen, busy=False, policies=policies, page=0, message="", alarming=False)


def tell(screen: Screen, message: str, *, alarming: bool = False) -> Screen:
    """The daemon has answered."""
    return replace(screen, busy=False, message=message, alarming=alarming)


def show(screen: Screen, picture: Picture) -> Screen:
    """A sample has come."""
    shown = screen.picture if screen.paused else picture
    return replace(screen, picture=shown, latest=picture, silent_s=0)


def page_of(policies: tuple[SchedulerPolicy, ...], page: int) -> tuple[SchedulerPolicy, ...]:
    return policies[page * POLICIES_ON_A_PAGE : (page + 1) * POLICIES_ON_A_PAGE]


def _choose(screen: Screen, policies: tuple[SchedulerPolicy, ...], key: str) -> tuple[Screen, Action | None]:
    if key == ESCAPE:
        return replace(screen, policies=None), None
    if key == "s":
        pages = -(-len(policies) // POLICIES_ON_A_PAGE) or 1
        return replace(screen, page=(screen.page + 1) % pages), None
    shown = page_of(policies, screen.page)
    if key.isdecimal() and 1 <= int(key) <= len(shown):
        name = shown[int(key) - 1].name
        message = f"swapping to {name}: it is rehearsed first ..."
        return replace(screen, policies=None, busy=True, message=message, alarming=False), Swap(name)
    return screen, None


def _pace(screen: Screen, direction: int) -> tuple[Screen, Action | None]:
    """The next longer or shorter interval of the list; at its ends nothing."""
    if direction > 0:
        interval_ms = next((each for each in INTERVALS_MS if each > screen.interval_ms), screen.interval_ms)
    else:
        interval_ms = next((each for each in reversed(INTERVALS_MS) if each < screen.interval_ms), screen.interval_ms)
    if interval_ms == screen.interval_ms:
        return screen, None
    return replace(screen, interval_ms=interval_ms), Watch(interval_ms)
