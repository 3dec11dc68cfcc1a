"""Where in a text of unknown origin a special token is spelled, or could be by what stands beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable


class SpecialSpellings:
    """Immutable.  Looking costs O(text), whatever the number of spellings."""

    def __init__(self, spellings: Iterable[str]) -> None:
        longest_first = sorted(set(spellings) - {""}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._beginnings = {s[:size] for s in longest_first for size in range(1, len(s))}
        self._endings = {s[size:] for s in longest_first for size in range(1, len(s))}
        self._edge_chars = max((len(s) for s in longest_first), default=1) - 1

    def mark(self, text: str, mark: str) -> str:
        """`text` with `mark` inside, after the first character, of each special token that it spells."""
        if self._pattern is None or (found := self._pattern.search(text)) is None:
            return text
        parts, at = [], 0
        while found is not None:
            cut = found.start() + 1
            parts.append(text[at:cut])
            at = cut
            found = self._pattern.search(text, cut)  # spellings may overlap
        parts.append(text[at:])
        return mark.join(parts)

    def mark_content(self, content: str, mark: str) -> str:
        """As `mark`, and at an end (white space aside, templates trim it) that a neighbour could complete to one."""
        body = content.strip()
        if not body:
            return content
        marked = self.mark(body, mark)
        sizes = range(1, min(self._edge_chars, len(body)) + 1)
        if any(body[:size] in self._endings for size in sizes):
            marked = mark + marked
        if any(body[-size:] in self._beginnings for size in sizes):
            marked += mark
        return content if marked == body else content.replace(body, marked, 1)
