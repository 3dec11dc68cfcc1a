"""What is left of one step, carried through one planning pass: try to add one, stop when it says no.

The shape is that of mini-sglang's `PrefillAdder`; that progress is counters (`computed_tokens` chasing
`total_tokens`) is vLLM V1's idea.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inflightd.schedulers.api import ALL, Plan, Preemption, SequenceView, View, is_decoding, uncomputed_tokens
from inflightd.schedulers.fit import GROWTH
from inflightd.schedulers.preemption import Victims, preemption_kind
from inflightd.schedulers.priorities import Priorities


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that this plan starts or resumes."""

    sequence: SequenceView
    tokens: int  # computed in this step
    left_tokens: int  # to be computed in all, this step's included
    blocks: int  # booked for them


class StepBudget:
    """Tokens, slots and blocks of one step.

    A decode costs nothing unless it stands at a block's edge.  Nothing is booked twice: a
    running prompt's blocks are held whole (`hold`) before anyone new is looked at.  `preemption` is how victims lose
    their blocks (`inflightd.schedulers.preemption`), `aging_s` how fast priority grows (`Priorities`).
    """

    def __init__(self, view: View, *, decodes: bool = True, preemption: str = "auto", aging_s: float = 0.0) -> None:
        limits = view.limits
        self.view = view
        self.ledger = view.kv.ledger()
        self.block_size_tokens = limits.block_size_tokens
        self.priorities = Priorities(view, aging_s)
        self.prefill: list[tuple[SequenceView, int]] = []
        self.admitted: list[Admitted] = []
        self.preempt: list[tuple[SequenceView, Preemption]] = []
        self.reasons: dict[str, str] = {}
        self.passed_over: dict[int, str] = {}
        self.padding_tokens = 0
        self.closed_from_tokens: int | None = None
        self.freed_blocks = 0  # by preemptions
        self.short_priority: int | None = None  # highest class of which somebody who ran did not get all blocks
        self._preemption = preemption
        self._victims = Victims(view, self.priorities)
        self._held: set[int] = set()
        self._booked: list[tuple[SequenceView, int]] = []
        self._below: dict[int, bool] = {}  # priority -> somebody of a lower class runs
        running = view.running
        self.prefilling: Sequence[SequenceView] = ()
        if len(running) > len(view.decoding):
            self.prefilling = [sequence for sequence in running if not is_decoding(sequence)]
        self._growing = list(view.growing)  # a decode in the middle of its block needs nothing
        self._chosen: list[SequenceView] | None = None if decodes else []
        self.decoding = len(view.decoding) if decodes else 0
        if self.decoding > limits.max_num_tokens:
            self._choose_decodes()
        self.tokens_left = limits.max_num_tokens - self.decoding
        self.slots_left = limits.max_batch_size - len(running)
        if self.prefilling:
            self.slots_left -= sum(sequence.forks_to_come for sequence in self.prefilling)

    def _choose_decodes(self) -> None:
        """More decodes than a step may hold tokens: those that have waited longest."""
        decoding = sorted(self.view.decoding, key=lambda sequence: (sequence.last_token_ns or 0, sequence.number))
        self._chosen = decoding[: self.view.limits.max_num_tokens]
        self.decoding = len(self._chosen)
        chosen = {sequence.number for sequence in self._chosen}
        self._growing = [sequence for sequence in self._growing if sequence.number in chosen]

    # --- running sequences ------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Book the blocks that decodes need; where they do not suffice, preempt the least worth keeping.

        Those most worth keeping are served first, so that a victim has never been served itself; as soon as what is
        free and given back suffices, nobody else is touched (sglang#14972).
        """
        if len(self._growing) > self.ledger.free_blocks:
            self._growing.sort(key=self._victims.worth, reverse=True)
        for sequence in self._growing:
            while self.stays(sequence):
                if self.ledger.take(sequence, 1):
                    self._booked.append((sequence, 1))
                    break
                self._is_short(self._preempt(self._victims.least_worth()))

    def prompts_in_order(self) -> list[SequenceView]:
        """Running prompts that stay, by priority and then in order of arrival."""
        prompts = [sequence for sequence in self.prefilling if self.stays(sequence)]
        if len(prompts) > 1:
            prompts.sort(key=lambda sequence: (-self.priorities.level(sequence), sequence.number))
        return prompts

    def hold(self, prompts: Iterable[SequenceView]) -> None:
        """Book all blocks that the running prompts still need, best first, so that nobody new takes them."""
        for sequence in prompts:
            if not self.stays(sequence):
                continue
            tokens = uncomputed_tokens(sequence)
            if self.ledger.take(sequence, tokens):
                self._booked.append((sequence, tokens))
                self._held.add(sequence.number)
            else:
                self._is_short(sequence)

    def feed(self, sequence: SequenceView, most_tokens: int | None = None, *, may_evict: bool = False) -> bool:
        """Plan the next chunk of a running prompt.  False if there are no tokens or no blocks for it."""
        if not self.stays(sequence):
            return False
        tokens = self.chunk_tokens(uncomputed_tokens(sequence), most_tokens)
        if tokens == 0:
            return False
        if sequence.number not in self._held:
            if not self.ledger.take(sequence, tokens):
                short_blocks = self.ledger.blocks_needed(sequence, tokens) - self.ledger.free_blocks
                if not (may_evict and self.evict_below(sequence, short_blocks)):
                    return False
                if not self.ledger.take(sequence, tokens):
                    return False
            self._booked.append((sequence, tokens))
        self.prefill.append((sequence, tokens))
        self.tokens_left -= tokens
        return True

    def unblock(self) -> None:
        """Half-prefilled prompts that hold what the others need, and nobody decodes: preempt until one goes on."""
        if self.decoding or self.prefill:
            return
        prompts = [sequence for sequence in self.prefilling if self.stays(sequence)]
        if not prompts:
            return
        best = max(prompts, key=self._victims.worth)
        while not self.feed(best):
            victim = self._victims.least_worth()
            self._is_short(self._preempt(victim))
            if victim is best:
                return

    # --- new and resumed sequences ----------------------------------------------------------------------------------

    def chunk_tokens(self, left_tokens: int, most_tokens: int | None = None) -> int:
        """Tokens of a prompt with `left_tokens` to go that this step can take: all, or whole chunk units."""
        room = self.tokens_left if most_tokens is None else min(self.tokens_left, most_tokens)
        if room >= left_tokens:
            return left_tokens
        return max(0, room - room % self.view.capabilities.chunk_unit_tokens)

    def left_tokens(self, sequence: SequenceView) -> int:
        """Tokens that a waiting or preempted sequence has to compute, cached ones taken off."""
        if sequence.swapped:
            return uncomputed_tokens(sequence)
        return sequence.total_tokens - self.view.kv.cached_tokens(sequence)

    def awaits_prefix(self, sequence: SequenceView, left_tokens: int) -> bool:
        """True if a block or more of what `sequence` has left is being computed for another one.

        Whoever computes it runs, or starts in this step.  Waiting for it takes no longer than computing it as well, so
        that there is nothing to lose; and once nobody computes it any more nobody waits for it.
        """
        if sequence.swapped or not (self.prefilling or self.admitted):
            return False
        pending_tokens = self.ledger.pending_tokens(sequence)
        return pending_tokens - (sequence.total_tokens - left_tokens) >= self.block_size_tokens

    def admit(self, sequence: SequenceView, tokens: int, left_tokens: int) -> bool:
        """Plan the first chunk, holding the blocks of the whole prompt.  False and unchanged if they do not fit."""
        free_blocks = self.ledger.free_blocks
        if not self.ledger.take(sequence, left_tokens):
            return False
        self._booked.append((sequence, left_tokens))
        self.admitted.append(Admitted(sequence, tokens, left_tokens, free_blocks - self.ledger.free_blocks))
        self.prefill.append((sequence, tokens))
        self.tokens_left -= tokens
        self.slots_left -= 1 + sequence.forks_to_come
        return True

    def evict_below(
        self,
        sequence: SequenceView,
        short_blocks: int,
        short_slots: int = 0,
        relief_blocks: Callable[[SequenceView], int] = lambda victim: 0,
    ) -> bool:
        """Preempt sequences below `sequence` until `short_blocks` and `short_slots` are made up for.

        False, and nobody is touched, if all of them would not suffice.  `relief_blocks` is what a victim's leaving
        saves besides its own blocks.
        """
        if not self.has_below(self.priority(sequence)):
            return False  # mostly, and then nobody need be ranked
        victims = self._victims.below(sequence, short_blocks, short_slots, relief_blocks)
        for victim in victims:
            self._preempt(victim)
        if victims:
            self._rebook()
        return bool(victims)

    # --- result -----------------------------------------------------------------------------------------------------

    @property
    def running_after(self) -> int:
        """Sequences that will be running once this plan is carried out, forks not yet made left out."""
        return len(self.view.running) - len(self.preempt) + len(self.admitted)

    def stays(self, sequence: SequenceView) -> bool:
        """True if this plan does not preempt `sequence`."""
        return self._victims.stays(sequence)

    def has_below(self, priority: int) -> bool:
        """True if a sequence of a strictly lower class is running; with one class for all it costs nothing."""
        below = self._below.get(priority)
        if below is None:
            below = False
            if any(service_class.priority < priority for service_class in self.view.classes.values()):
                names = {sequence.service_class for sequence in self.view.running}
                below = any(self.priorities.of_class(name) < priority for name in names)
            self._below[priority] = below
        return below

    def priority(self, sequence: SequenceView) -> int:
        """Of its class; an unknown class counts as 0."""
        return self.priorities.of(sequence)

    def plan(self, wake_ns: int | None = None) -> Plan:
        """The plan as gathered.  A class of which nobody waited until now waits for what was taken from it."""
        for victim, _ in self.preempt:
            self.reasons.setdefault(victim.service_class, GROWTH)
        decode = ALL if self._chosen is None else [s for s in self._chosen if self.stays(s)]
        return Plan(
            self.prefill,
            decode,
            self.preempt,
            self.reasons,
            self.padding_tokens,
            wake_ns,
            self.passed_over,
            self.closed_from_tokens,
        )

    # --- preemption -------------------------------------------------------------------------------------------------

    def _preempt(self, victim: SequenceView) -> SequenceView:
        kind = preemption_kind(self.view, self.ledger, victim, self._preemption)
        self._victims.leave(victim)
        self.preempt.append((victim, kind))
        self.freed_blocks += self.ledger.give_back(victim, kind)
        self.slots_left += 1 + victim.forks_to_come
        if is_decoding(victim) and (self._chosen is None or any(victim is chosen for chosen in self._chosen)):
            self.decoding -= 1
            self.tokens_left += 1
        return victim

    def _is_short(self, sequence: SequenceView) -> None:
        """Running sequences, this one among them, need more blocks than there are."""
        priority = self.priorities.of(sequence)
        self.short_priority = priority if self.short_priority is None else max(priority, self.short_priority)

    def _rebook(self) -> None:
        """Withdraw the victims' parts of the plan: a fresh ledger with only what still stands."""
        self.tokens_left += sum(tokens for sequence, tokens in self.prefill if not self.stays(sequence))
        self.prefill = [(sequence, tokens) for sequence, tokens in self.prefill if self.stays(sequence)]
        self._booked = [(sequence, tokens) for sequence, tokens in self._booked if self.stays(sequence)]
        self.ledger = self.view.kv.ledger()
        self.freed_blocks = sum(self.ledger.give_back(victim, kind) for victim, kind in self.preempt)
        for sequence, tokens in self._booked:
            self.ledger.take(sequence, tokens)
