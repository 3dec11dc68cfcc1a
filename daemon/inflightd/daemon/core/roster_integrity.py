"""Do the roster's books agree with each other?  Asked after each step of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflightd.daemon.core.sequence import State
from inflightd.schedulers.api import is_decoding

if TYPE_CHECKING:
    from inflightd.daemon.core.roster import Roster


def check_roster(roster: Roster) -> None:
    """Raises AssertionError if where sequences are, their states and their blocks do not agree.  O(all of them)."""
    roster.kv.check_integrity()
    places: dict[int, State] = {}
    for sequence in roster.running:
        places[sequence.number] = State.RUNNING
        if is_decoding(sequence):
            row = sequence.row
            assert (row.token_ids, row.past_tokens) == (sequence.token_ids[-1:], sequence.computed_tokens), sequence
            assert [draw.position for draw in row.draws] == [sequence.generated_tokens], sequence
        assert roster.kv.table(sequence.number).blocks is sequence.row.block_table, sequence
    for sequence in roster.preempted:
        places[sequence.number] = sequence.state
        assert sequence.state in (State.PREEMPTED, State.SWAPPED), sequence
    for name, queue in roster.waiting.items():
        assert len(queue), name
        places |= {sequence.number: State.WAITING for sequence in queue.by_arrival()}
    assert {number: sequence.state for number, sequence in roster.live.items()} == places
    roster.decoding.check_integrity([sequence for sequence in roster.running if is_decoding(sequence)])
    by_request = {s.number for samples in roster.requests.values() for s in samples.values()}
    assert by_request == set(roster.live)
    for sequence in roster.live.values():
        assert sequence.total_tokens == len(sequence.token_ids) == sequence.prompt_tokens + sequence.generated_tokens
        assert 0 <= sequence.computed_tokens < sequence.total_tokens, sequence
    assert set(roster.kv.tables) == {sequence.number for sequence in roster.running}
    assert set(roster.kv.host.held) == {s.number for s in roster.preempted if s.state is State.SWAPPED}
    if roster.kv.prefix.enabled:
        assert set(roster.kv.prefix.texts) == set(roster.live)
