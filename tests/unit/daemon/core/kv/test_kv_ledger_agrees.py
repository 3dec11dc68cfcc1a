"""Random plans on a ledger and for real: both agree in each answer, and no sequence ever reads another's tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from inflightd.daemon.core.kv.ledger import KvLedger
from inflightd.daemon.core.kv.manager import KvManager

BLOCKS, BLOCK_SIZE = 12, 4
PLANS = st.lists(
    st.tuples(st.sampled_from(["take", "take", "take", "give_back"]), st.integers(0, 7), st.integers(1, 9)), max_size=12
)


class Machine(RuleBasedStateMachine):
    """A step loop without an engine; the blocks hold (sample, position) of the token written there."""

    make_sequence: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.manager = KvManager(BLOCKS, BLOCK_SIZE)
        self.memory: dict[tuple[int, int], object] = {}  # (block, offset) -> token
        self.sequences: dict[int, Any] = {}
        self.tokens: dict[int, list[object]] = {}  # what each sequence has computed, in order
        self.pending_copies: list[tuple[int, int]] = []
        self.next_number = 0

    def _new(self, **fields: Any) -> int:
        number = self.next_number
        self.next_number += 1
        self.sequences[number] = self.make_sequence(number, **fields)
        self.tokens[number] = []
        return number

    @rule(prompt_tokens=st.integers(1, 14), forks=st.sampled_from([0, 0, 1, 2]))
    def submit(self, prompt_tokens: int, forks: int) -> None:
        if len(self.sequences) < 8:
            self._new(prompt_tokens=prompt_tokens, forks_to_come=forks)

    @rule(index=st.integers(0, 7))
    def finish(self, index: int) -> None:
        if self.sequences:
            number = list(self.sequences)[index % len(self.sequences)]
            exclusive = self.manager.exclusive_blocks(number)
            assert self.manager.free(number) == exclusive
            assert self.manager.free(number) == 0
            del self.sequences[number], self.tokens[number]

    @rule(index=st.integers(0, 7), children=st.integers(1, 2))
    def fork_unbooked(self, index: int, children: int) -> None:
        """Copy-on-write at the first write, not at the fork."""
        running = [number for number in self.sequences if self.sequences[number].computed_tokens]
        if running and len(self.sequences) < 8:
            parent = running[index % len(running)]
            self._fork(parent, children)

    def _fork(self, parent: int, count: int) -> None:
        sequence = self.sequences[parent]
        children = [
            self._new(prompt_tokens=sequence.prompt_tokens, computed_tokens=sequence.computed_tokens)
            for _ in range(count)
        ]
        self.pending_copies += self.manager.fork(parent, children, sequence.computed_tokens)
        for child in children:
            self.tokens[child] = list(self.tokens[parent])

    @rule(plan=PLANS)
    def step(self, plan: list[tuple[str, int, int]]) -> None:
        manager, ledger = self.manager, KvLedger(self.manager)
        answers: list[tuple[str, int, int, int]] = []  # operation, number, tokens booked so far, free blocks after
        booked: dict[int, int] = {}
        preempted: set[int] = set()
        refused = []
        numbers = list(self.sequences)
        for operation, index, tokens in plan if numbers else []:
            number = numbers[index % len(numbers)]
            sequence = self.sequences[number]
            if operation == "give_back":
                before = ledger.free_blocks
                assert ledger.give_back(sequence) == ledger.free_blocks - before
                booked.pop(number, None)
                preempted.add(number)
                answers.append(("free", number, 0, ledger.free_blocks))
                continue
            start = booked.get(number, 0) + (0 if number in preempted else sequence.computed_tokens)
            if sequence.forks_to_come:
                tokens = min(tokens, sequence.prompt_tokens - start)  # a chunk ends with the prompt  # noqa: PLW2901
                if tokens < 1:
                    continue
            if ledger.take(sequence, tokens):
                booked[number] = booked.get(number, 0) + tokens
                answers.append(("grow", number, booked[number], ledger.free_blocks))
            else:
                refused.append(number)
                answers.append(("refused", number, booked.get(number, 0) + tokens, ledger.free_blocks))

        copies = self.pending_copies
        self.pending_copies = []
        for operation, number, tokens, free_blocks in answers:
            sequence = self.sequences[number]
            if operation == "free":
                manager.free(number)
                sequence.computed_tokens = 0
                self.tokens[number] = []
            else:
                end = sequence.computed_tokens + tokens
                forks = sequence.forks_to_come if end == sequence.prompt_tokens else 0
                needed = manager.blocks_needed(number, sequence.computed_tokens, tokens, forks)
                before = manager.free_blocks
                grown = manager.grow(number, sequence.computed_tokens, tokens, forks)
                assert (grown is None) == (operation == "refused") == (needed > before)
                if grown is not None:
                    assert before - manager.free_blocks == needed
                    copies += grown
            assert manager.free_blocks == free_blocks
            manager.check_integrity()
        self._execute(copies, booked)

    def _execute(self, copies: list[tuple[int, int]], booked: dict[int, int]) -> None:
        for source, destination in copies:
            for offset in range(BLOCK_SIZE):
                self.memory[destination, offset] = self.memory.get((source, offset))
        for number, tokens in booked.items():
            blocks = self.manager.table(number).blocks
            for position in range(
                self.sequences[number].computed_tokens, self.sequences[number].computed_tokens + tokens
            ):
                token = (number, position)
                self.memory[blocks[position // BLOCK_SIZE], position % BLOCK_SIZE] = token
                self.tokens[number].append(token)
        for number, tokens in booked.items():
            sequence = self.sequences[number]
            sequence.computed_tokens += tokens
            if sequence.forks_to_come and sequence.computed_tokens == sequence.prompt_tokens:
                room = self.manager.free_blocks
                count, sequence.forks_to_come = sequence.forks_to_come, 0
                self._fork(number, count)
                assert self.manager.free_blocks == room
                assert not self.manager.table(number).fork_blocks
        for number, tokens_written in self.tokens.items():
            table = self.manager.tables.get(number)
            if table is not None and not self.pending_copies:
                read = [
                    self.memory[table.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE]
                    for position in range(len(tokens_written))
                ]
                assert read == tokens_written

    @invariant()
    def books_are_right(self) -> None:
        self.manager.check_integrity()
        figures = self.manager.figures(self.sequences.values())
        assert figures.blocks_free + figures.blocks_cached + figures.blocks_held == BLOCKS
        assert 0 <= figures.internal_fragmentation <= 1

    def teardown(self) -> None:
        for number in self.sequences:
            self.manager.free(number)
        assert self.manager.free_blocks == BLOCKS
        self.manager.check_integrity()


def test_ledger_and_manager_agree_in_every_step(make_sequence) -> None:  # type: ignore[no-untyped-def]
    class Bound(Machine):
        pass

    Bound.make_sequence = staticmethod(make_sequence)
    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=250,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
        ),
    )
