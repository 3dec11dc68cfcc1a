"""Random plans on a ledger and for real, against a plain model that knows what each block truly holds.

The ledger and the manager agree in each answer, no sequence ever reads another's tokens, and what is found by content
is what a plain dictionary says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from inflightd.daemon.core.kv.ledger import KvLedger
from inflightd.daemon.core.kv.manager import KvManager
from inflightd.daemon.core.kv.view import KvPoolView
from inflightd.daemon.engines.api import BlockMove, MoveKind
from inflightd.schedulers.api import Preemption

BLOCKS, BLOCK_SIZE, HOST_BLOCKS = 12, 4, 6
FLOOD = 1_000_000  # the number of one who fills blocks with something else
INDEX = st.integers(0, 7)
PREEMPTIONS = st.lists(st.tuples(INDEX, st.sampled_from(list(Preemption))), max_size=2)
TAKES = st.lists(st.tuples(INDEX, st.integers(1, 9)), max_size=10)

Key = tuple[str, tuple[int, ...]]  # a salt, and all tokens up to a place: what that place holds


class Machine(RuleBasedStateMachine):
    """A step loop without an engine."""

    make_sequence: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.manager = KvManager(BLOCKS, BLOCK_SIZE, host_blocks_total=HOST_BLOCKS)
        self.memory: dict[int, list[Key | None]] = {block: [None] * BLOCK_SIZE for block in range(BLOCKS)}
        self.host_memory: dict[int, list[Key | None]] = {block: [None] * BLOCK_SIZE for block in range(HOST_BLOCKS)}
        self.found: dict[Key, int] = {}  # by the key of a full block's last place: where it is found
        self.sequences: dict[int, Any] = {}
        self.texts: dict[int, list[int]] = {}  # all known tokens
        self.offered: dict[int, int] = {}  # full blocks that the cache was shown, while running
        self.moves: list[BlockMove] = []  # not done yet
        self.next_number = 0

    # --- what may happen ------------------------------------------------------------------------------------------

    @rule(
        beginning=st.integers(0, 3),
        tokens=st.integers(1, 8),
        tenant=st.sampled_from("ab"),
        forks=st.sampled_from([0, 0, 0, 2]),
    )
    def submit(self, beginning: int, tokens: int, tenant: str, forks: int) -> None:
        """Most begin alike, and some are alike."""
        if len(self.sequences) < 8:
            text = [7] * (beginning * BLOCK_SIZE) + [tokens] * tokens
            number = self._new(text, prompt_tokens=len(text), forks_to_come=forks, tenant=tenant)
            self.manager.prefix.enter(number, tenant, text)

    @precondition(lambda self: self.sequences)
    @rule(index=INDEX)
    def leave(self, index: int) -> None:
        number = self._pick(index)
        exclusive, free = self.manager.exclusive_blocks(number), self.manager.free_blocks
        self.manager.leave(number)
        assert self.manager.free_blocks == free + exclusive
        assert number not in self.manager.host.held
        del self.sequences[number], self.texts[number]

    @rule(index=INDEX, children=st.integers(1, 2))
    def fork_unbooked(self, index: int, children: int) -> None:
        """Copy-on-write at the first write, not at the fork."""
        running = [number for number in self.manager.tables if self.sequences[number].computed_tokens]
        if running and len(self.sequences) < 8:
            self._fork(running[index % len(running)], children)

    @rule(blocks=st.integers(1, BLOCKS))
    def evict(self, blocks: int) -> None:
        """Somebody else comes, writes and goes."""
        if self.manager.grow(FLOOD, 0, blocks * BLOCK_SIZE) is not None:
            self._taken(self.manager.table(FLOOD).blocks)
            if not self.moves:
                for block in self.manager.table(FLOOD).blocks:
                    self.memory[block] = [None] * BLOCK_SIZE
            self.manager.free(FLOOD)

    @rule(preemptions=PREEMPTIONS, takes=TAKES)
    def plan(self, preemptions: list[tuple[int, Preemption]], takes: list[tuple[int, int]]) -> None:
        """Planned on a ledger, then done; a plan that only preempts leaves its moves to the next."""
        if not self.sequences:
            return
        ledger = KvLedger(self.manager)
        victims = self._plan_preemptions(ledger, preemptions)
        booked = self._plan_takes(ledger, set(victims), takes)
        for number, kind in victims.items():
            self._preempt(number, kind)
        joining = [number for number in booked if number not in self.manager.tables]
        for number in joining:
            if number not in self.manager.host.held:
                sequence = self.sequences[number]
                sequence.computed_tokens = self.manager.claim(number, sequence.total_tokens)
                self.offered[number] = sequence.computed_tokens // BLOCK_SIZE
        for number in joining:
            if number in self.manager.host.held:
                copies = self.manager.swap_in(number)
                assert copies is not None
                self._taken([destination for _, destination in copies])
                self.moves += [(MoveKind.IN, *copy) for copy in copies]
                self.sequences[number].swapped, self.offered[number] = False, 0
        for number, tokens in booked.items():
            self._grow(number, tokens)
        assert self.manager.free_blocks == ledger.free_blocks
        if booked:
            self._compute(booked)

    # --- planning ---------------------------------------------------------------------------------------------------

    def _plan_preemptions(self, ledger: KvLedger, preemptions: list[tuple[int, Preemption]]) -> dict[int, Preemption]:
        victims: dict[int, Preemption] = {}
        for index, kind in preemptions:
            number = self._pick(index)
            sequence, before = self.sequences[number], ledger.free_blocks
            runs = number in self.manager.tables
            if number in victims or not (runs or (sequence.swapped and kind is Preemption.RECOMPUTE)):
                continue
            if kind is Preemption.SWAP and not ledger.can_swap(sequence):
                continue
            assert ledger.give_back(sequence, kind) == ledger.free_blocks - before
            assert not ledger.can_swap(sequence)
            victims[number] = kind
        return victims

    def _plan_takes(self, ledger: KvLedger, gone: set[int], takes: list[tuple[int, int]]) -> dict[int, int]:
        booked: dict[int, int] = {}
        cached = {number: KvPoolView(self.manager).cached_tokens(self.sequences[number]) for number in self.sequences}
        for index, tokens in takes:
            number = self._pick(index)
            sequence = self.sequences[number]
            left = sequence.total_tokens - sequence.computed_tokens - cached[number] - booked.get(number, 0)
            tokens = min(tokens, left)  # noqa: PLW2901
            if number in gone or tokens < 1:
                continue
            assert ledger.pending_tokens(sequence) >= cached[number]
            before, needed = ledger.free_blocks, ledger.blocks_needed(sequence, tokens)
            assert ledger.take(sequence, tokens) == (needed <= before)
            if needed <= before:
                assert ledger.free_blocks == before - needed
                booked[number] = booked.get(number, 0) + tokens
        return booked

    # --- doing ------------------------------------------------------------------------------------------------------

    def _pick(self, index: int) -> int:
        return list(self.sequences)[index % len(self.sequences)]

    def _new(self, text: list[int], **fields: Any) -> int:
        number = self.next_number
        self.next_number += 1
        self.sequences[number] = self.make_sequence(number, **fields)
        self.texts[number] = text
        self.offered[number] = self.sequences[number].computed_tokens // BLOCK_SIZE
        return number

    def _key(self, number: int, position: int) -> Key:
        return self.sequences[number].tenant, tuple(self.texts[number][: position + 1])

    def _taken(self, blocks: list[int]) -> None:
        """They were handed out fresh: nothing is found in them any more."""
        self.found = {key: block for key, block in self.found.items() if block not in blocks}

    def _preempt(self, number: int, kind: Preemption) -> None:
        sequence = self.sequences[number]
        if kind is Preemption.SWAP:
            copies = self.manager.swap_out(number, sequence.computed_tokens)
            self.moves += [(MoveKind.OUT, *copy) for copy in copies]
            sequence.swapped = True
            return
        self.manager.free(number)
        self.manager.host.release(number)
        sequence.computed_tokens, sequence.swapped = 0, False

    def _grow(self, number: int, tokens: int) -> None:
        sequence, manager = self.sequences[number], self.manager
        computed_tokens = sequence.computed_tokens
        forks = sequence.forks_to_come if computed_tokens + tokens == sequence.prompt_tokens else 0
        table = manager.tables.get(number)
        held = set(table.blocks + table.fork_blocks) if table else set()
        needed, before = manager.blocks_needed(number, computed_tokens, tokens, forks), manager.free_blocks
        copies = manager.grow(number, computed_tokens, tokens, forks)
        assert copies is not None
        assert before - manager.free_blocks == needed
        self.moves += [(MoveKind.COPY, *copy) for copy in copies]
        table = manager.table(number)
        self._taken([block for block in table.blocks + table.fork_blocks if block not in held])

    def _fork(self, parent: int, count: int) -> None:
        sequence = self.sequences[parent]
        text = self.texts[parent][: sequence.computed_tokens + 1]
        fields = {"prompt_tokens": len(text), "computed_tokens": sequence.computed_tokens, "tenant": sequence.tenant}
        children = [self._new(list(text), **fields) for _ in range(count)]
        copies = self.manager.fork(parent, children, sequence.computed_tokens)
        self.moves += [(MoveKind.COPY, *copy) for copy in copies]

    def _compute(self, booked: dict[int, int]) -> None:
        for kind, source, destination in self.moves:
            origin = self.host_memory if kind is MoveKind.IN else self.memory
            target = self.host_memory if kind is MoveKind.OUT else self.memory
            target[destination] = list(origin[source])
        self.moves = []
        for number, tokens in booked.items():
            sequence, blocks = self.sequences[number], self.manager.table(number).blocks
            for position in range(sequence.computed_tokens, sequence.computed_tokens + tokens):
                self.memory[blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE] = self._key(number, position)
        for number, tokens in booked.items():
            self._apply(number, tokens)

    def _apply(self, number: int, tokens: int) -> None:
        sequence, blocks = self.sequences[number], self.manager.table(number).blocks
        sequence.computed_tokens += tokens
        self.manager.prefix.fill(number, blocks, sequence.computed_tokens, self.texts[number])
        full = sequence.computed_tokens // BLOCK_SIZE
        for index in range(self.offered[number], full):  # once: one that is not found now because of an equal one
            if blocks[index] not in self.found.values():  # stays so
                self.found.setdefault(self._key(number, index * BLOCK_SIZE + BLOCK_SIZE - 1), blocks[index])
        self.offered[number] = full
        if sequence.computed_tokens < sequence.total_tokens:
            return
        if sequence.forks_to_come:
            room = self.manager.free_blocks
            count, sequence.forks_to_come = sequence.forks_to_come, 0
            self._fork(number, count)
            assert self.manager.free_blocks == room
            assert not self.manager.table(number).fork_blocks
        if sequence.total_tokens < BLOCKS * BLOCK_SIZE // 2:
            self.texts[number].append(number % 3)
            sequence.generated_tokens += 1

    # --- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def books_are_right(self) -> None:
        self.manager.check_integrity()
        figures = self.manager.figures(self.sequences.values())
        assert figures.blocks_free + figures.blocks_held == BLOCKS
        assert figures.blocks_cached <= figures.blocks_free
        assert 0 <= figures.internal_fragmentation <= 1
        in_host = sum(len(blocks) for blocks in self.manager.host.held.values())
        assert KvPoolView(self.manager).host_blocks_free == HOST_BLOCKS - in_host

    @invariant()
    def everybody_reads_their_own_tokens(self) -> None:
        if self.moves:
            return
        for number, sequence in self.sequences.items():
            table = self.manager.tables.get(number)
            memory = self.memory if table else self.host_memory
            blocks = table.blocks if table else self.manager.host.held.get(number, [])
            for position in range(sequence.computed_tokens):
                held = memory[blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE]
                assert held == self._key(number, position), (sequence, position)

    @invariant()
    def what_is_found_is_what_a_dictionary_says(self) -> None:
        view, ledger = KvPoolView(self.manager), KvLedger(self.manager)
        for number, sequence in self.sequences.items():
            if number in self.manager.tables or sequence.swapped:
                assert view.cached_tokens(sequence) == ledger.pending_tokens(sequence) == 0
                continue
            blocks = 0
            while (blocks + 1) * BLOCK_SIZE < sequence.total_tokens:  # the last token is always computed
                if self._key(number, (blocks + 1) * BLOCK_SIZE - 1) not in self.found:
                    break
                blocks += 1
            assert view.cached_tokens(sequence) == blocks * BLOCK_SIZE
            assert blocks * BLOCK_SIZE <= ledger.pending_tokens(sequence) < sequence.total_tokens
            for index, block in enumerate(self.manager.prefix.found(number, sequence.total_tokens)):
                assert self.memory[block] == [self._key(number, index * BLOCK_SIZE + at) for at in range(BLOCK_SIZE)]

    def teardown(self) -> None:
        for number in list(self.sequences):
            self.manager.leave(number)
        assert self.manager.free_blocks == BLOCKS
        assert self.manager.host.free_blocks == HOST_BLOCKS
        assert not self.manager.prefix.texts
        self.manager.check_integrity()


def test_ledger_manager_and_model_agree_in_every_step(make_sequence) -> None:  # type: ignore[no-untyped-def]
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
            phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes and shortens little
        ),
    )
