"""No tenant holds more than its share of the batch while others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from inflightd.schedulers.api import Plan, Preemption, SequenceView, View, is_decoding
from inflightd.schedulers.options import option

LOOKED_AT = 64  # waiting sequences of each class: a step must not take longer the more of them there are


@dataclass(frozen=True, slots=True)
class FairShareOptions:
    share: float = option(0.5, help="Fraction of the batch a tenant may hold while others wait.", minimum=0, maximum=1)


class FairShare:
    """Admits tenant by tenant, and none beyond its share of the batch while others wait.

    Optimises: that one tenant's flood does not keep the others out.  What has begun is never evicted for it: a sequence
    starts when the blocks for all it may ever need are free.  Starves: nobody; but a tenant alone on a small share
    waits for its own sequences to end once others have come.
    """

    name: ClassVar[str] = "fair-share"
    Options: ClassVar[type[FairShareOptions]] = FairShareOptions

    def __init__(self, options: FairShareOptions) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        ledger, left_tokens = view.kv.ledger(), view.limits.max_num_tokens
        running = list(view.running)
        decode: list[SequenceView] = []
        prefill: list[tuple[SequenceView, int]] = []
        preempt: list[tuple[SequenceView, Preemption]] = []
        # Whoever runs goes on.  Only a pool taken over from another policy can be too full for that.
        for sequence in view.running:
            tokens = _chunk_tokens(view, sequence, left_tokens)
            while tokens and sequence in running and not ledger.take(sequence, tokens):
                victim = running.pop()
                ledger.give_back(victim)
                preempt.append((victim, Preemption.RECOMPUTE))
            if tokens and sequence in running:
                left_tokens -= tokens
                (decode.append(sequence) if is_decoding(sequence) else prefill.append((sequence, tokens)))
        if preempt:
            return Plan(prefill, decode, preempt, dict.fromkeys(view.waiting, "those running need the blocks"))
        held = Counter[str]()
        for sequence in running:
            held[sequence.tenant] += 1 + sequence.forks_to_come
        reserved = sum(_most_blocks(view, sequence) for sequence in running)
        for sequence in self._candidates(view, held):
            slots = 1 + sequence.forks_to_come
            reserved += _most_blocks(view, sequence)
            tokens = _chunk_tokens(view, sequence, left_tokens)
            fits = held.total() + slots <= view.limits.max_batch_size and reserved <= view.kv.blocks_total
            if not (fits and tokens and ledger.take(sequence, tokens)):
                break  # it is the next one: nobody goes past it
            held[sequence.tenant] += slots
            left_tokens -= tokens
            prefill.append((sequence, tokens))
        return Plan(prefill, decode, preempt, dict.fromkeys(view.waiting, "no room, or the tenant has its share"))

    def _candidates(self, view: View, held: Counter[str]) -> Iterator[SequenceView]:
        """Those that ran before first, then class by class; `held` grows while this goes on."""
        yield from view.preempted
        names = sorted(view.waiting, key=lambda name: -view.classes[name].priority if name in view.classes else 0)
        waiting = [sequence for name in names for sequence in islice(view.waiting[name].by_tenant(), LOOKED_AT)]
        tenants = {sequence.tenant for sequence in (*view.running, *waiting)}
        share = max(1, int(self.options.share * view.limits.max_batch_size))
        for sequence in waiting:
            if len(tenants) == 1 or not held[sequence.tenant] or held[sequence.tenant] + 1 <= share:
                yield sequence


def _chunk_tokens(view: View, sequence: SequenceView, left_tokens: int) -> int:
    """Of its tokens to compute as many as the step has room for."""
    done = sequence.computed_tokens or view.kv.cached_tokens(sequence)
    tokens = sequence.total_tokens - done
    return tokens if tokens <= left_tokens else left_tokens - left_tokens % view.capabilities.chunk_unit_tokens


def _most_blocks(view: View, sequence: SequenceView) -> int:
    """That it and its samples can ever hold; full blocks of the prompt are shared by the samples."""
    block = view.limits.block_size_tokens
    shared = sequence.prompt_tokens // block
    each = -(-(sequence.prompt_tokens + sequence.max_new_tokens) // block)
    return shared + (1 + sequence.forks_to_come) * (each - shared)
