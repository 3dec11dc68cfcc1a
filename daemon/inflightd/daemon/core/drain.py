"""The policy of last resort."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from inflightd.daemon.core.sequence import worst_case_blocks
from inflightd.schedulers.api import Plan, Preemption, SequenceView, View, is_decoding, uncomputed_tokens
from inflightd.schedulers.priorities import class_priority


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """None: there is nothing to tune."""


class Drain:
    """Decodes, then whole prompts first come first served, each with its worst case reserved.

    Takes over when the current and the previous policy have both failed.  It is simple enough to be obviously right,
    never evicts what it started, and must cope with whatever pool it inherits: while running sequences cannot grow it
    drops the newest.
    """

    name: ClassVar[str] = "drain"
    Options: ClassVar[type[DrainOptions]] = DrainOptions

    def __init__(self, options: DrainOptions) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        ledger = view.kv.ledger()
        budget_tokens = view.limits.max_num_tokens
        keep = list(view.running)
        preempt: list[tuple[SequenceView, Preemption]] = []
        decode: list[SequenceView] = []
        prefill: list[tuple[SequenceView, int]] = []
        for sequence in list(keep):
            if sequence not in keep:
                continue
            tokens = _chunk_tokens(view, budget_tokens, sequence)
            if tokens == 0:
                continue
            while not ledger.take(sequence, tokens):
                victim = keep[-1]
                keep.remove(victim)
                ledger.give_back(victim)
                preempt.append((victim, Preemption.RECOMPUTE))
                if victim is sequence:
                    break
            else:
                budget_tokens -= tokens
                if is_decoding(sequence):
                    decode.append(sequence)
                else:
                    prefill.append((sequence, tokens))
        reason = "running sequences could not grow" if preempt else self._admit(view, keep, budget_tokens, prefill)
        reasons = dict.fromkeys(view.waiting, reason) if reason else {}
        return Plan(prefill=prefill, decode=decode, preempt=preempt, reasons=reasons)

    @staticmethod
    def _admit(
        view: View, keep: list[SequenceView], budget_tokens: int, prefill: list[tuple[SequenceView, int]]
    ) -> str:
        block_size_tokens = view.limits.block_size_tokens
        reserved = sum(_worst_case_blocks(sequence, block_size_tokens) for sequence in keep)
        slots = view.limits.max_batch_size - sum(1 + sequence.forks_to_come for sequence in keep)
        classes = sorted(view.waiting, key=lambda name: (-class_priority(view, name), name))
        for sequence in chain(view.preempted, *(view.waiting[name].by_arrival() for name in classes)):
            reserved += _worst_case_blocks(sequence, block_size_tokens)
            slots -= 1 + sequence.forks_to_come
            tokens = _chunk_tokens(view, budget_tokens, sequence)
            if slots < 0:
                return "no free slot"
            if reserved > view.kv.blocks_total:
                return "not enough free blocks for its worst case"
            if tokens == 0:
                return "the step is full"
            prefill.append((sequence, tokens))
            budget_tokens -= tokens
        return ""


def _chunk_tokens(view: View, budget_tokens: int, sequence: SequenceView) -> int:
    left_tokens = uncomputed_tokens(sequence) - view.kv.cached_tokens(sequence)
    if left_tokens <= budget_tokens:
        return left_tokens
    return budget_tokens - budget_tokens % view.capabilities.chunk_unit_tokens


def _worst_case_blocks(sequence: SequenceView, block_size_tokens: int) -> int:
    return worst_case_blocks(
        sequence.prompt_tokens, sequence.max_new_tokens, 1 + sequence.forks_to_come, block_size_tokens
    )
