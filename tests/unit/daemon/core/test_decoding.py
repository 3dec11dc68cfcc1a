"""Who decodes and who stands at a block's edge is known without looking at anybody, and is what looking would find."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflightd.daemon.core.decoding import Decoding


@dataclass(eq=False)
class Decoder:
    number: int
    computed_tokens: int
    row: Any = field(default_factory=object)


class Steps(RuleBasedStateMachine):
    """Sequences join, leave and decode, mostly all of them in a step."""

    @initialize(block_size_tokens=st.sampled_from([1, 2, 5, 32]))
    def start(self, block_size_tokens: int) -> None:
        self.block_size_tokens = block_size_tokens
        self.decoding = Decoding(block_size_tokens)
        self.present: list[Any] = []
        self.number = 0

    @rule(computed_tokens=st.integers(1, 100))
    def join(self, computed_tokens: int) -> None:
        self.number += 1
        self.present.append(Decoder(self.number, computed_tokens))
        self.decoding.join(self.present[-1])

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.decoding.leave(self.present.pop(data.draw(st.integers(0, len(self.present) - 1))))

    @rule(computed_tokens=st.integers(1, 100))
    def leave_without_having_decoded(self, computed_tokens: int) -> None:
        stranger: Any = Decoder(1_000_000, computed_tokens)
        self.decoding.leave(stranger)

    @rule(data=st.data(), finishes=st.booleans())
    def all_decode(self, data: st.DataObject, finishes: bool) -> None:
        decode = self.decoding.sequences
        self.decoding.advance(decode)
        for one in decode:
            one.computed_tokens += 1
        if finishes and self.present:  # in the midst of the step that gave it its last token
            self.leave(data)

    @rule(data=st.data())
    def some_decode(self, data: st.DataObject) -> None:
        decode = [one for one in self.present if data.draw(st.booleans())]
        self.decoding.advance(decode)
        for one in decode:
            one.computed_tokens += 1

    @invariant()
    def the_books_are_what_looking_at_everybody_finds(self) -> None:
        decoding = self.decoding
        decoding.check_integrity(self.present)
        assert list(decoding.sequences) == self.present
        at_edge = [one.number for one in self.present if one.computed_tokens % self.block_size_tokens == 0]
        assert sorted(one.number for one in decoding.at_edge()) == at_edge
        assert all(one.number in decoding for one in self.present)

    @invariant()
    def a_batch_is_the_rows_and_their_context(self) -> None:
        context_tokens = sum(one.computed_tokens for one in self.present)
        rows = [one.row for one in self.present]
        assert self.decoding.batch(self.decoding.sequences) == (rows, context_tokens)
        some = self.present[::2]
        assert self.decoding.batch(some) == ([one.row for one in some], sum(one.computed_tokens for one in some))


Steps.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSteps = Steps.TestCase


def test_the_same_tuple_is_given_until_somebody_joins_or_leaves() -> None:
    decoding, one = Decoding(4), Decoder(1, 3)
    decoding.join(one)  # type: ignore[arg-type]
    before = decoding.sequences
    decoding.advance(before)
    one.computed_tokens += 1
    assert decoding.sequences is before
    rows, _ = decoding.batch(before)
    rows.append(None)  # type: ignore[arg-type]
    assert decoding.batch(before)[0] == [one.row]  # a step may add to its own
    decoding.leave(one)  # type: ignore[arg-type]
    assert decoding.sequences == ()
