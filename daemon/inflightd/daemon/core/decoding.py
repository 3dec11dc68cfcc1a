"""Who decodes, so that a step of steady decodes looks only at the sequences whose state changes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflightd.daemon.core.sequence import Sequence
    from inflightd.daemon.engines.api import Row


class Decoding:
    """The running sequences that decode, in the order in which they began to, and which of them need a block next.

    While all of them decode in every step, computed tokens minus steps stays what it is for each: its phase, modulo the
    block size.  Those at a block's edge are those of one phase, another one each step.  All operations are O(1), but
    for the tuples, made anew after somebody joined or left, and for steps in which some do not decode.
    """

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        # Mutable state, owned by the roster: the sequences by number, the same by phase, steps so far.
        self._members: dict[int, Sequence] = {}
        self._phases: list[dict[int, Sequence]] = [{} for _ in range(block_size_tokens)]
        self._steps = 0
        self._sequences: tuple[Sequence, ...] | None = ()
        self._rows: tuple[Row, ...] = ()
        self._context_tokens = 0  # computed ones, of all of them

    def __contains__(self, number: int) -> bool:
        return number in self._members

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """All of them; the same object as long as nobody joins or leaves."""
        if self._sequences is None:
            self._sequences = tuple(self._members.values())
            self._rows = tuple([sequence.row for sequence in self._sequences])
        return self._sequences

    def batch(self, decode: Collection[Sequence]) -> tuple[list[Row], int]:
        """The rows of `decode`, and its context tokens; with nothing to do for each if these are all of them."""
        if decode is self._sequences:
            return list(self._rows), self._context_tokens
        return [sequence.row for sequence in decode], sum([sequence.computed_tokens for sequence in decode])

    def at_edge(self) -> tuple[Sequence, ...]:
        """Those whose computed tokens fill whole blocks: the next one goes into a new block."""
        return tuple(self._phases[-self._steps % self._block_size_tokens].values())

    def join(self, sequence: Sequence) -> None:
        """It has one token left to compute, a generated one."""
        self._members[sequence.number] = sequence
        self._phase(sequence)[sequence.number] = sequence
        self._context_tokens += sequence.computed_tokens
        self._sequences = None

    def leave(self, sequence: Sequence) -> None:
        """It does not run any more, or is about to; one that does not decode is ignored."""
        if self._members.pop(sequence.number, None) is not None:
            del self._phase(sequence)[sequence.number]
            self._context_tokens -= sequence.computed_tokens
            self._sequences = None

    def advance(self, decoded: Collection[Sequence]) -> None:
        """A step has been computed for `decoded`, all or some of them, and is about to be applied to them."""
        skipped: list[Sequence] = []
        if len(decoded) != len(self._members):
            numbers = {sequence.number for sequence in decoded}
            skipped = [sequence for sequence in self._members.values() if sequence.number not in numbers]
            for sequence in skipped:
                del self._phase(sequence)[sequence.number]
        self._steps += 1
        self._context_tokens += len(decoded)
        for sequence in skipped:
            self._phase(sequence)[sequence.number] = sequence

    def check_integrity(self, decoding: Collection[Sequence]) -> None:
        """Raises AssertionError unless exactly `decoding` are here, each in its phase.  Between steps."""
        assert {sequence.number: sequence for sequence in decoding} == self._members
        assert set(self.sequences) == set(decoding)
        assert [sequence.row for sequence in self.sequences] == list(self._rows)
        assert self._context_tokens == sum(sequence.computed_tokens for sequence in decoding)
        for sequence in decoding:
            assert self._phase(sequence).get(sequence.number) is sequence, sequence
        assert sum(map(len, self._phases)) == len(decoding)

    def _phase(self, sequence: Sequence) -> dict[int, Sequence]:
        return self._phases[(sequence.computed_tokens - self._steps) % self._block_size_tokens]
