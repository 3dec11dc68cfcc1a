"""What is left of one step, carried through one planning pass: try to add one, stop when it says no.

The shape is that of mini-sglang's `PrefillAdder`; that progress is counters (`computed_tokens` chasing
`total_tokens`) is vLLM V1's idea.  Least computed first as the victim wastes the least work (vllm#54644).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inflightd.schedulers.api import ALL, Plan, Preemption, SequenceView, View, is_decoding, uncomputed_tokens


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that this plan starts or resumes."""

    sequence: SequenceView
    tokens: int  # computed in this step
    left_tokens: int  # to be computed in all, this step's included


class StepBudget:
    """Tokens, slots and blocks of one step.

    Reads `view.running` once; a decode costs nothing unless it stands at a block's edge.  Nothing is booked twice: a
    running prompt's blocks are held whole (`hold`) before anyone new is looked at.
    """

    def __init__(self, view: View, *, decodes: bool = True) -> None:
        limits = view.limits
        self.view = view
        self.ledger = view.kv.ledger()
        self.block_size_tokens = block = limits.block_size_tokens
        self.prefill: list[tuple[SequenceView, int]] = []
        self.admitted: list[Admitted] = []
        self.preempt: list[tuple[SequenceView, Preemption]] = []
        self.reasons: dict[str, str] = {}
        self.padding_tokens = 0
        self.prompts_held = True  # every running prompt has all its blocks
        self.freed_blocks = 0  # by preemptions
        self._gone: set[int] = set()
        self._held: set[int] = set()
        self._booked: list[tuple[SequenceView, int]] = []
        self._ranked: list[SequenceView] | None = None
        self._lowest: int | None = None  # priority among the running
        running = view.running
        # A steady decode in the middle of its own block needs nothing.  The others: at a block's edge, the first
        # decode (its last block may still be shared with other samples), or with more than one token to compute.
        unsettled = [
            sequence
            for sequence in running
            if sequence.computed_tokens % block == 0
            or sequence.generated_tokens < 2
            or sequence.total_tokens - sequence.computed_tokens != 1
        ]
        self.prefilling = [sequence for sequence in unsettled if not is_decoding(sequence)]
        self._growing = [sequence for sequence in unsettled if is_decoding(sequence)]
        self._chosen: list[SequenceView] | None = None if decodes else []
        self.decoding = len(running) - len(self.prefilling) if decodes else 0
        if self.decoding > limits.max_num_tokens:
            self._choose_decodes(running)
        self.tokens_left = limits.max_num_tokens - self.decoding
        self.slots_left = limits.max_batch_size - len(running)
        if self.prefilling:
            self.slots_left -= sum(sequence.forks_to_come for sequence in self.prefilling)

    def _choose_decodes(self, running: Sequence[SequenceView]) -> None:
        """More decodes than a step may hold tokens: those that have waited longest."""
        decoding = [sequence for sequence in running if is_decoding(sequence)]
        decoding.sort(key=lambda sequence: (sequence.last_token_ns or 0, sequence.number))
        self._chosen = decoding[: self.view.limits.max_num_tokens]
        self.decoding = len(self._chosen)
        chosen = {sequence.number for sequence in self._chosen}
        self._growing = [sequence for sequence in self._growing if sequence.number in chosen]

    # --- running sequences ------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Book the blocks that decodes need; where they do not suffice, preempt the least worth keeping.

        Those most worth keeping are served first, so that a victim has never been served itself.
        """
        if len(self._growing) > self.ledger.free_blocks:
            self._growing.sort(key=self._worth, reverse=True)
        for sequence in self._growing:
            while sequence.number not in self._gone:
                if self.ledger.take(sequence, 1):
                    self._booked.append((sequence, 1))
                    break
                self._preempt(self._least_worth())

    def prompts_in_order(self) -> list[SequenceView]:
        """Running prompts that stay, by class priority and then in order of arrival."""
        prompts = [sequence for sequence in self.prefilling if sequence.number not in self._gone]
        prompts.sort(key=lambda sequence: (-self.priority(sequence), sequence.number))
        return prompts

    def hold(self, prompts: Iterable[SequenceView]) -> None:
        """Book all blocks that the running prompts still need, best first, so that nobody new takes them."""
        for sequence in prompts:
            if sequence.number in self._gone:
                continue
            tokens = uncomputed_tokens(sequence)
            if self.ledger.take(sequence, tokens):
                self._booked.append((sequence, tokens))
                self._held.add(sequence.number)
            else:
                self.prompts_held = False

    def feed(self, sequence: SequenceView, most_tokens: int | None = None, *, may_evict: bool = False) -> bool:
        """Plan the next chunk of a running prompt.  False if there are no tokens or no blocks for it."""
        if sequence.number in self._gone:
            return False
        tokens = self.chunk_tokens(uncomputed_tokens(sequence), most_tokens)
        if tokens == 0:
            return False
        if sequence.number not in self._held and not self.ledger.take(sequence, tokens):
            needed = -(-(sequence.computed_tokens + tokens) // self.block_size_tokens) - sequence.held_blocks
            if not (may_evict and self.evict_below(self.priority(sequence), needed - self.ledger.free_blocks)):
                return False
            if not self.ledger.take(sequence, tokens):
                return False
        if sequence.number not in self._held:
            self._booked.append((sequence, tokens))
        self.prefill.append((sequence, tokens))
        self.tokens_left -= tokens
        return True

    def unblock(self) -> None:
        """Half-prefilled prompts that hold what the others need, and nobody decodes: preempt until one goes on."""
        if self.decoding or self.prefill:
            return
        prompts = [sequence for sequence in self.prefilling if sequence.number not in self._gone]
        if not prompts:
            return
        best = max(prompts, key=self._worth)
        while not self.feed(best):
            victim = self._least_worth()
            self._preempt(victim)
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

    def admit(self, sequence: SequenceView, tokens: int, left_tokens: int) -> bool:
        """Plan the first chunk, holding the blocks of the whole prompt.  False and unchanged if they do not fit."""
        if not self.ledger.take(sequence, left_tokens):
            return False
        self._booked.append((sequence, left_tokens))
        self.admitted.append(Admitted(sequence, tokens, left_tokens))
        self.prefill.append((sequence, tokens))
        self.tokens_left -= tokens
        self.slots_left -= 1 + sequence.forks_to_come
        return True

    def evict_below(
        self,
        priority: int,
        short_blocks: int,
        short_slots: int = 0,
        relief_blocks: Callable[[SequenceView], int] = lambda victim: 0,
    ) -> bool:
        """Preempt sequences of strictly lower classes until `short_blocks` and `short_slots` are made up for.

        False, and nobody is touched, if all of them would not suffice.  `relief_blocks` is what a victim's leaving
        saves besides its own blocks.
        """
        victims: list[SequenceView] = []
        for victim in reversed(self._ranks()):
            if short_blocks <= 0 and short_slots <= 0:
                break
            if self.priority(victim) >= priority:
                return False
            if victim.number in self._gone:
                continue
            victims.append(victim)
            short_blocks -= victim.exclusive_blocks + relief_blocks(victim)
            short_slots -= 1 + victim.forks_to_come
        if short_blocks > 0 or short_slots > 0:
            return False
        for victim in victims:
            self._preempt(victim)
        self._rebook()
        return True

    # --- result -----------------------------------------------------------------------------------------------------

    @property
    def running_after(self) -> int:
        """Sequences that will be running once this plan is carried out, forks not yet made left out."""
        return len(self.view.running) - len(self._gone) + len(self.admitted)

    def stays(self, sequence: SequenceView) -> bool:
        """True if this plan does not preempt `sequence`."""
        return sequence.number not in self._gone

    def has_below(self, priority: int) -> bool:
        """True if a sequence of a strictly lower class is running; with one class for all it costs nothing."""
        if all(service_class.priority >= priority for service_class in self.view.classes.values()):
            return False
        if self._lowest is None:
            names = {sequence.service_class for sequence in self.view.running}
            self._lowest = min((class_priority(self.view, name) for name in names), default=priority)
        return self._lowest < priority

    def priority(self, sequence: SequenceView) -> int:
        """Of its class; an unknown class counts as 0."""
        return class_priority(self.view, sequence.service_class)

    def plan(self, wake_ns: int | None = None) -> Plan:
        """The plan as gathered."""
        decode = ALL if self._chosen is None else [s for s in self._chosen if s.number not in self._gone]
        return Plan(self.prefill, decode, self.preempt, self.reasons, self.padding_tokens, wake_ns)

    # --- preemption -------------------------------------------------------------------------------------------------

    def _worth(self, sequence: SequenceView) -> tuple[int, int, int]:
        return self.priority(sequence), sequence.computed_tokens, -sequence.number

    def _ranks(self) -> list[SequenceView]:
        """All running, those most worth keeping first; computed in the rare step that needs it."""
        if self._ranked is None:
            self._ranked = sorted(self.view.running, key=self._worth, reverse=True)
        return self._ranked

    def _least_worth(self) -> SequenceView:
        return next(victim for victim in reversed(self._ranks()) if victim.number not in self._gone)

    def _preempt(self, victim: SequenceView) -> None:
        self._gone.add(victim.number)
        self.preempt.append((victim, self._kind(victim)))
        self.freed_blocks += self.ledger.give_back(victim)
        self.slots_left += 1 + victim.forks_to_come
        if is_decoding(victim) and (self._chosen is None or any(victim is chosen for chosen in self._chosen)):
            self.decoding -= 1
            self.tokens_left += 1

    def _kind(self, victim: SequenceView) -> Preemption:
        """Swap costs both ways; recompute costs the prefill of all it had."""
        cost = self.view.cost
        if not (self.view.capabilities.swap and cost.sure):
            return Preemption.RECOMPUTE
        swapping_ns = 2 * cost.swap_ns(victim.held_blocks)
        return Preemption.SWAP if swapping_ns < cost.prefill_ns(victim.computed_tokens) else Preemption.RECOMPUTE

    def _rebook(self) -> None:
        """Withdraw the victims' parts of the plan: a fresh ledger with only what still stands."""
        self.tokens_left += sum(tokens for sequence, tokens in self.prefill if sequence.number in self._gone)
        self.prefill = [(sequence, tokens) for sequence, tokens in self.prefill if sequence.number not in self._gone]
        self._booked = [(sequence, tokens) for sequence, tokens in self._booked if sequence.number not in self._gone]
        self.ledger = self.view.kv.ledger()
        self.freed_blocks = sum(self.ledger.give_back(victim) for victim, _ in self.preempt)
        for sequence, tokens in self._booked:
            self.ledger.take(sequence, tokens)


def class_priority(view: View, name: str) -> int:
    """Priority of a service class; higher goes first, an unknown class counts as 0."""
    service_class = view.classes.get(name)
    return 0 if service_class is None else service_class.priority
