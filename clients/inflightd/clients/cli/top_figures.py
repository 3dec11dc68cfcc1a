"""Numbers as a terminal shows them: short texts, bars and sparklines, in Unicode or in ASCII."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What bars and sparklines are drawn with; `levels` from nothing to most."""

    levels: str
    parts: str  # first, second and third part of a bar: told apart without colours too
    rest: str
    more: str  # at the end of a line that is cut


UNICODE: Final = Glyphs(levels=" ▁▂▃▄▅▆▇█", parts="█▒░", rest="·", more="…")
ASCII: Final = Glyphs(levels=" _.-=+*#", parts="#=-", rest=".", more="~")


def count_text(number: float) -> str:
    """1,234 or 12.3M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e7, "M")):
        if number >= size:
            return f"{number / (1e6 if unit == 'M' else size):.1f}{unit}"
    return f"{number:,.0f}"


def rate_text(per_second: float) -> str:
    """One decimal where it tells something."""
    if per_second == 0:
        return "0"
    return f"{per_second:.1f}" if per_second < 99.95 else count_text(per_second)


def time_text(duration_ns: float) -> str:
    """850 us, 12.3 ms or 4.20 s: three digits."""
    for size, unit in _UNITS:
        if duration_ns >= 0.9995 * size:
            value = duration_ns / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{duration_ns:.0f} ns"


def age_text(duration_ns: int) -> str:
    """The two largest units of an uptime."""
    seconds = duration_ns // 1_000_000_000
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{seconds // size}{unit} {seconds % size // smaller_size}{smaller}"
    return f"{seconds}s"


def percent_text(fraction: float) -> str:
    return f"{100 * fraction:.1f}%" if 0.0005 <= fraction < 0.0995 else f"{100 * fraction:.0f}%"


def bar_parts(amounts: Sequence[float], whole: float, width: int) -> list[int]:
    """How many of `width` cells each amount gets.  What there is of an amount shows, however little it is."""
    if whole <= 0:
        return [0] * len(amounts)
    cells = [min(width, max(1, round(width * amount / whole))) if amount > 0 else 0 for amount in amounts]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    return cells


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """The last `width` values, the newest at the right, the largest of them full height.  One alone shows nothing."""
    if len(values) < 2:
        return ""
    shown = list(values[-width:])
    largest = max(shown, default=0.0)
    steps = len(glyphs.levels) - 1
    line = [glyphs.levels[_level(value, largest, steps)] for value in shown]
    return "".join(line).rjust(width)


def _level(value: float, largest: float, steps: int) -> int:
    return 0 if value <= 0 else max(1, round(steps * value / largest))


def plain(text: str, glyphs: Glyphs) -> str:
    """A text of somebody else's choosing without what would move the cursor, or what the terminal cannot show."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if glyphs is not ASCII else shown.encode("ascii", "replace").decode()
