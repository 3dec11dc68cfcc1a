"""The rules of the contract, checked on the reference model before a plan is carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inflightd.schedulers.api import ALL, Ledger, Plan, Preemption, SequenceView, is_decoding
from inflightd.schedulers.model_sequence import ModelSequence, own
from inflightd.schedulers.model_view import ModelView


class ContractError(AssertionError):
    """A plan breaks a rule of the contract; `rule` is the word that the daemon uses too."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {detail}")


def check_plan(plan: Plan, view: ModelView, live: Mapping[int, ModelSequence]) -> list[ModelSequence]:
    """Every rule but none of the policy's own promises; gives the sequences that decode.  Raises `ContractError`."""
    if not isinstance(plan, Plan):
        raise ContractError("type", f"plan() returned {type(plan).__name__}")
    named = [s for s, _ in plan.preempt] + [s for s, _ in plan.prefill]
    if isinstance(plan.decode, Sequence):
        named += plan.decode
    elif plan.decode is not ALL:
        raise ContractError("type", f"decode is {plan.decode!r}, neither ALL nor a sequence")
    numbers = [s.number for s in named]
    for sequence in named:
        if live.get(sequence.number) is not sequence:
            raise ContractError("membership", f"{sequence!r} is not a live sequence")
        if numbers.count(sequence.number) > 1:
            raise ContractError("duplicate", f"{sequence!r} is named twice")
    ledger = view.kv.ledger()
    gone = {s.number for s, _ in plan.preempt}
    for victim, kind in plan.preempt:
        _check_preemption(own(victim), kind, view, ledger)
        ledger.give_back(victim, kind)
    chunked = {s.number for s, _ in plan.prefill}
    if isinstance(plan.decode, Sequence):
        decode = [own(s) for s in plan.decode]
    else:
        decode = [s for s in view.running if is_decoding(s) and s.number not in gone and s.number not in chunked]
    for sequence in decode:
        if not (sequence.running and is_decoding(sequence)):
            raise ContractError("decode", f"{sequence!r} has no single token to decode")
        if not ledger.take(sequence, 1):
            raise ContractError("blocks", f"no free block for the next token of {sequence!r}")
    for sequence, tokens in plan.prefill:
        left = sequence.total_tokens - (sequence.computed_tokens or view.kv.cached_tokens(sequence))
        if not 1 <= tokens <= left:
            raise ContractError("tokens", f"{tokens} tokens planned for {sequence!r}")
        if tokens < left and tokens % view.capabilities.chunk_unit_tokens:
            raise ContractError("chunk", f"{tokens} tokens of {sequence!r} are no whole chunk units")
        if not ledger.take(sequence, tokens):
            raise ContractError("blocks", f"{tokens} tokens of {sequence!r}, {ledger.free_blocks} blocks are free")
    _check_sums(plan, view, len(decode), gone)
    return decode


def _check_preemption(victim: ModelSequence, kind: Preemption, view: ModelView, ledger: Ledger) -> None:
    if not victim.running and not (victim.swapped and kind is Preemption.RECOMPUTE):
        raise ContractError("preempt", f"{victim!r} has nothing to lose by {kind}")
    if kind is Preemption.SWAP and not (view.capabilities.swap and ledger.can_swap(victim)):
        raise ContractError("preempt", f"{victim!r} cannot be swapped out: {view.kv.host_blocks_free} host blocks")


def _check_sums(plan: Plan, view: ModelView, decodes: int, gone: set[int]) -> None:
    if plan.padding_tokens < 0 or (plan.padding_tokens and not view.capabilities.padding):
        raise ContractError("padding", f"{plan.padding_tokens} padding tokens")
    tokens = decodes + sum(tokens for _, tokens in plan.prefill) + plan.padding_tokens
    if tokens > view.limits.max_num_tokens:
        raise ContractError("budget", f"{tokens} tokens planned, at most {view.limits.max_num_tokens}")
    admitted = [s for s, _ in plan.prefill if not own(s).running]
    slots = sum(1 + s.forks_to_come for s in [*view.running, *admitted] if s.number not in gone)
    if admitted and slots > view.limits.max_batch_size:
        raise ContractError("slots", f"{slots} sequences would run, at most {view.limits.max_batch_size}")
    idle = not (decodes or plan.prefill or plan.preempt or plan.wake_ns is not None)
    if idle and (view.running or view.preempted or view.waiting):
        raise ContractError("progress", "nothing is planned, no wake_ns is given, and there is work")
    _check_reasons(plan, view, admitted)


def _check_reasons(plan: Plan, view: ModelView, admitted: Sequence[SequenceView]) -> None:
    """Whoever waits on is told why, by class or by number."""
    for name in plan.reasons:
        if name not in view.classes:
            raise ContractError("reasons", f"{name!r} is no class")
    started = {s.number for s in admitted}
    waiting = {s.number for queue in view.waiting.values() for s in queue.sequences}
    waiting |= {s.number for s in view.preempted}
    for number in plan.passed_over:
        if number not in waiting - started:
            raise ContractError("reasons", f"{number} is passed over and does not wait")
    for name, queue in view.waiting.items():
        left = {s.number for s in queue.sequences} - started
        if not plan.reasons.get(name) and not left <= plan.passed_over.keys():
            raise ContractError("reasons", f"{len(left)} of class {name!r} wait on, and no reason is given")
