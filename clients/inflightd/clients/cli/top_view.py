"""The screen of `inflightd top` as a function of what is known: lines of text, none longer than the terminal is wide.

It is laid out for 80 columns and 24 rows.  A wider terminal gets longer bars and sparklines, a higher one more
reasons, a lower one no empty lines and then fewer sections.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from rich.text import Text

from inflightd.clients.cli.top_figures import Glyphs, plain
from inflightd.clients.cli.top_keys import Screen, page_of
from inflightd.clients.cli.top_rates import Picture
from inflightd.clients.cli.top_sections import head_line, named_line, sections
from inflightd.clients.status import SchedulerPolicy

REASONS: Final = 3  # lines, at least, for why sequences wait
_KEYS: Final = "s swap policy   p pause   + - interval   q quit"
_CHOICE_KEYS: Final = "1-9 swap to it, with its default options   Esc back   q quit"


def view(screen: Screen, width: int, height: int, glyphs: Glyphs) -> Text:
    """Exactly `height` lines, of at most `width` columns."""
    foot = _foot(screen, width, glyphs)
    room = max(0, height - len(foot))
    if screen.picture is None:
        body = [named_line("", "waiting for the first sample ...")]
    elif screen.policies is not None:
        body = [head_line(screen, screen.picture, glyphs), Text(), *_choices(screen, screen.policies, glyphs)]
    else:
        others = sections(screen, screen.picture, width, glyphs, reasons=0)
        spare = room - sum(map(len, others)) - (len(others) - 1)
        body = _fitted(sections(screen, screen.picture, width, glyphs, reasons=max(REASONS, spare)), room)
    body = body[:room] + [Text()] * (room - len(body))
    return joined([*body, *foot] if room else foot[-height:], width, glyphs)


def report(picture: Picture, width: int, glyphs: Glyphs) -> Text:
    """The same for paper: all sections, no keys."""
    screen = Screen(0, picture)  # an interval that is nowhere shown
    blocks = sections(screen, picture, width, glyphs, reasons=len(picture.sample.scheduler.waiting_by_reason))
    return joined([line for block in blocks for line in block], width, glyphs)


def joined(lines: Sequence[Text], width: int, glyphs: Glyphs) -> Text:
    for line in lines:
        if line.cell_len > width:
            line.truncate(max(0, width - 1))
            line.append(glyphs.more)
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


def _choices(screen: Screen, policies: Sequence[SchedulerPolicy], glyphs: Glyphs) -> list[Text]:
    shown = page_of(tuple(policies), screen.page)
    width = max((len(policy.name) for policy in shown), default=0)
    lines = [Text("Swap to which policy?", style="bold"), Text()]
    for digit, policy in enumerate(shown, 1):
        mark = "*" if policy.current else " "
        name = plain(policy.name, glyphs)
        lines.append(Text.assemble((f" {digit} ", "bold"), f"{mark} {name:<{width}}  {plain(policy.summary, glyphs)}"))
    if not shown:
        lines.append(Text("   The daemon knows none."))
    if len(policies) > len(shown):
        lines += [Text(), Text(f"   {len(policies)} in all: s shows more", style="dim")]
    return lines


def _foot(screen: Screen, width: int, glyphs: Glyphs) -> list[Text]:
    """What the daemon has answered, however long it is, and the keys."""
    keys = _CHOICE_KEYS if screen.policies is not None else f"{_KEYS}   every {screen.interval_ms / 1000:g} s"
    folded = wrap(plain(screen.message, glyphs), width, max_lines=4, placeholder=f" {glyphs.more}")
    style = "bold red" if screen.alarming else "bold"
    return [*(Text(line, style=style) for line in folded), Text(keys, style="dim")]


def _fitted(blocks: Sequence[Sequence[Text]], room: int) -> list[Text]:
    """The sections, parted by an empty line as long as there are enough lines."""
    gaps = room - sum(len(block) for block in blocks)
    lines: list[Text] = []
    for number, block in enumerate(blocks):
        if number and number <= gaps:
            lines.append(Text())
        lines += block
    return lines
