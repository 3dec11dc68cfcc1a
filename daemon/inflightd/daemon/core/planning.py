"""A plan is checked before anything changes: replayed on the same ledger that policies plan with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, cast

from inflightd.daemon.core.sequence import State
from inflightd.daemon.core.wire import sendable
from inflightd.daemon.errors import PlanError
from inflightd.schedulers.api import ALL, Plan, Preemption, SequenceView, is_decoding

if TYPE_CHECKING:
    from inflightd.daemon.core.sequence import Sequence
    from inflightd.daemon.core.view import LoopView


@dataclass(slots=True)
class CheckedPlan:
    """A plan that can be carried out as it stands."""

    prefill: list[tuple[Sequence, int]]
    decode: Collection[Sequence]
    growing: Collection[Sequence]  # of those that decode: they stand at a block's edge and take a block
    preempt: list[tuple[Sequence, Preemption]]
    padding_tokens: int
    reasons: dict[str, str]
    passed_over: dict[int, str]
    wake_ns: int | None
    closed_from_tokens: int | None

    @property
    def is_empty(self) -> bool:
        return not (self.prefill or self.decode)


class PlanChecker:
    """Checks the plans of one policy for one step.  Every broken rule is a `PlanError` naming policy, rule, sequence.

    Rules: type, membership, duplicate, preempt, decode, tokens, chunk, budget, slots, blocks, padding, reasons,
    progress.  It is made before the policy plans.
    """

    def __init__(self, policy: str, view: LoopView, live: Mapping[int, Sequence]) -> None:
        self._policy = policy
        self._view = view
        self._running = view.running
        self._live = live
        self._ledger = view.kv.ledger()

    def check(self, plan: Plan) -> CheckedPlan:
        """Raises `PlanError`; changes nothing."""
        if not isinstance(plan, Plan):
            self._fail("type", None, f"plan() returned {type(plan).__name__}, not Plan")
        preempt = self._check_preemptions(plan)
        taken = {sequence.number for sequence, _ in preempt}
        prefill = [(self._member(named), tokens) for named, tokens in plan.prefill]
        for sequence, _ in prefill:
            if sequence.number in taken:
                self._fail("duplicate", sequence, "named twice in the plan")
            taken.add(sequence.number)
        decode, growing = self._check_decodes(plan, taken)
        budget_tokens = self._view.limits.max_num_tokens - len(decode)
        for sequence, tokens in prefill:
            self._check_prefill(sequence, tokens)
            budget_tokens -= tokens
        if type(plan.padding_tokens) is not int or plan.padding_tokens < 0:
            self._fail("padding", None, f"{plan.padding_tokens!r} padding tokens")
        if plan.padding_tokens and not self._view.capabilities.padding:
            self._fail("padding", None, "the engine computes no padding rows")
        budget_tokens -= plan.padding_tokens
        if budget_tokens < 0:
            limit = self._view.limits.max_num_tokens
            self._fail("budget", None, f"{limit - budget_tokens} tokens planned, max_num_tokens is {limit}")
        self._check_slots(prefill, preempt)
        reasons, passed_over = self._check_said(plan)
        checked = CheckedPlan(
            prefill,
            decode,
            growing,
            preempt,
            plan.padding_tokens,
            reasons,
            passed_over,
            plan.wake_ns,
            plan.closed_from_tokens,
        )
        self._check_progress(checked)
        return checked

    def _check_preemptions(self, plan: Plan) -> list[tuple[Sequence, Preemption]]:
        preempt: list[tuple[Sequence, Preemption]] = []
        seen: set[int] = set()
        for named, kind in plan.preempt:
            sequence = self._member(named)
            if sequence.number in seen:
                self._fail("duplicate", sequence, "preempted twice")
            self._check_preemption(sequence, kind)
            seen.add(sequence.number)
            self._ledger.give_back(sequence, kind)
            preempt.append((sequence, kind))
        return preempt

    def _check_preemption(self, sequence: Sequence, kind: Preemption) -> None:
        if kind is Preemption.SWAP:
            if sequence.state is not State.RUNNING:
                self._fail("preempt", sequence, f"is {sequence.state.value}, only a running one can be swapped out")
            if not self._view.capabilities.swap:
                self._fail("preempt", sequence, "the engine cannot swap")
            if not self._ledger.can_swap(sequence):
                self._fail("preempt", sequence, "host memory has no room for its blocks")
        elif kind is not Preemption.RECOMPUTE:
            self._fail("preempt", sequence, f"{kind!r} is no kind of preemption")
        elif sequence.state not in (State.RUNNING, State.SWAPPED):
            self._fail("preempt", sequence, f"is {sequence.state.value}, it has no blocks to lose")

    def _check_decodes(self, plan: Plan, taken: set[int]) -> tuple[Collection[Sequence], Collection[Sequence]]:
        """Who decodes, and who of them takes a block."""
        decode: Collection[Sequence]
        growing: Collection[Sequence]
        if plan.decode is ALL:
            decode, growing = self._view.decoding, self._view.growing
            if any(is_decoding(self._live[number]) for number in taken):
                decode = [sequence for sequence in decode if sequence.number not in taken]
                growing = [sequence for sequence in growing if sequence.number not in taken]
        else:
            decode = [self._member(named) for named in cast("list[SequenceView]", plan.decode)]
            for sequence in decode:
                if sequence.number in taken:
                    self._fail("duplicate", sequence, "named twice in the plan")
                taken.add(sequence.number)
                if sequence.state is not State.RUNNING or not sequence.generated_tokens:
                    self._fail("decode", sequence, "has no token to decode from")
                if sequence.total_tokens - sequence.computed_tokens != 1:
                    self._fail("decode", sequence, "has more than one token to compute")
            block_size_tokens = self._view.limits.block_size_tokens
            growing = [sequence for sequence in decode if sequence.computed_tokens % block_size_tokens == 0]
        # The tokens of the others go into blocks that these have to themselves: forks copy at once.
        for sequence in growing:
            if not self._ledger.take(sequence, 1):
                self._fail("blocks", sequence, "no free block for its next token")
        return decode, growing

    def _check_prefill(self, sequence: Sequence, tokens: int) -> None:
        left = sequence.total_tokens - sequence.computed_tokens
        if sequence.state is not State.RUNNING:
            left -= self._view.kv.cached_tokens(sequence)
        if type(tokens) is not int or not 1 <= tokens <= left:
            self._fail("tokens", sequence, f"{tokens!r} tokens planned, {left} are left to compute")
        unit = self._view.capabilities.chunk_unit_tokens
        if tokens != left and tokens % unit:
            self._fail("chunk", sequence, f"a chunk of {tokens} tokens is no multiple of {unit}")
        if not self._ledger.take(sequence, tokens):
            self._fail("blocks", sequence, f"{tokens} tokens do not fit into {self._ledger.free_blocks} free blocks")

    def _check_slots(self, prefill: list[tuple[Sequence, int]], preempt: list[tuple[Sequence, Preemption]]) -> None:
        admitted = [sequence for sequence, _ in prefill if sequence.state is not State.RUNNING]
        if not admitted:
            return
        gone = {sequence.number for sequence, _ in preempt}
        slots = sum(1 + s.forks_to_come for s in self._running if s.number not in gone)
        slots += sum(1 + s.forks_to_come for s in admitted)
        if slots > self._view.limits.max_batch_size:
            limit = self._view.limits.max_batch_size
            self._fail("slots", admitted[-1], f"{slots} sequences would run, max_batch_size is {limit}")

    def _check_said(self, plan: Plan) -> tuple[dict[str, str], dict[int, str]]:
        standing = self._view.standing
        if standing is not None and plan.reasons is standing.reasons and plan.passed_over is standing.passed_over:
            return self._view.said  # it was checked in an earlier step
        if plan.closed_from_tokens is not None and type(plan.closed_from_tokens) is not int:
            self._fail("reasons", None, f"closed_from_tokens is {plan.closed_from_tokens!r}, not a whole number")
        return self._check_reasons(plan.reasons), self._check_passed_over(plan.passed_over)

    def _check_reasons(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """They go into the step's record, which must be sendable when the step has been computed."""
        if not isinstance(reasons, Mapping):
            self._fail("reasons", None, f"a {type(reasons).__name__}, not a mapping")
        checked: dict[str, str] = {}
        for name, reason in reasons.items():
            if not (isinstance(name, str) and isinstance(reason, str)):
                self._fail("reasons", None, f"{name!r}: {reason!r} are not both text")
            checked[sendable(name)] = sendable(reason)
        return checked

    def _check_passed_over(self, passed_over: Mapping[int, str]) -> dict[int, str]:
        if not isinstance(passed_over, Mapping):
            self._fail("reasons", None, f"a {type(passed_over).__name__}, not a mapping")
        checked: dict[int, str] = {}
        texts: dict[str, str] = {}  # few reasons for many
        for number, reason in passed_over.items():
            if not (type(number) is int and isinstance(reason, str)):
                self._fail("reasons", None, f"{number!r}: {reason!r} are not a sequence's number and a text")
            if reason not in texts:
                texts[reason] = sendable(reason)
            checked[number] = texts[reason]
        return checked

    def _check_progress(self, checked: CheckedPlan) -> None:
        """A plan that does nothing must say until when: anything else is a hang, or a loop that spins."""
        if checked.wake_ns is not None and type(checked.wake_ns) is not int:
            self._fail("progress", None, f"wake_ns is {checked.wake_ns!r}, not a whole number")
        if checked.prefill or checked.decode or checked.preempt:
            return
        if checked.wake_ns is not None and checked.wake_ns > self._view.now_ns:
            return
        if self._running or self._view.preempted or self._view.waiting:
            self._fail("progress", None, f"nothing is planned, wake_ns is {checked.wake_ns}, and there is work")

    def _member(self, named: SequenceView) -> Sequence:
        sequence = self._live.get(getattr(named, "number", -1))
        if sequence is None or sequence is not named:
            self._fail("membership", None, f"{named!r} is not a live sequence")
        return sequence

    def _fail(self, rule: str, sequence: Sequence | None, detail: str) -> NoReturn:
        raise PlanError(self._policy, rule, None if sequence is None else sequence.number, detail)
