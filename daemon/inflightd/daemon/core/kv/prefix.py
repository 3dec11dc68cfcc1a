"""What the cache knows about prompts it has seen."""

from __future__ import annotations

from inflightd.schedulers.api import SequenceView


class NoPrefixCache:
    """Remembers nothing: every prompt is computed in full, a freed block is worth nothing.

    The manager and the policies' view ask only the questions below, whatever answers them.
    """

    __slots__ = ()

    @property
    def cached_blocks(self) -> int:
        """Blocks nobody holds that would be found again by their content."""
        return 0

    def cached_tokens(self, sequence: SequenceView) -> int:
        """Leading tokens of `sequence` whose keys and values are found in the cache now."""
        return 0

    def pending_tokens(self, sequence: SequenceView) -> int:
        """Leading tokens of `sequence` that another sequence is computing now."""
        return 0
