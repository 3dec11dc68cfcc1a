"""What has started is never evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inflightd.schedulers.admission import Admission, AdmissionOptions, fair_order
from inflightd.schedulers.api import Plan, View
from inflightd.schedulers.budget import StepBudget
from inflightd.schedulers.fit import Fit, Reservation
from inflightd.schedulers.future_peak import PASSING, FuturePeak
from inflightd.schedulers.options import option
from inflightd.schedulers.standing import standing_plan


@dataclass(frozen=True, slots=True)
class ConservativeAdmissionOptions(AdmissionOptions):
    """Options of `ConservativeAdmission`."""

    mode: str = option(
        "reserve",
        choices=("reserve", "future-peak"),
        help="keep blocks for prompt + max_tokens, or for the peak expected under recent output lengths",
    )
    length_quantile: float = option(
        0.9, minimum=0.0, maximum=1.0, help="future-peak: quantile of the recent output lengths that is expected"
    )


class ConservativeAdmission:
    """Start a request only if it can run to its very end beside all that run already.

    Idea: mode `reserve` keeps blocks for prompt + max_tokens of every sample, so that nothing it started ever has to
    be evicted.  Mode `future-peak` keeps them for the most that will be held at any time if outputs are as long as
    `length_quantile` of recent ones (max_tokens while too few are known); longer ones than expected may then cost an
    eviction.  No class evicts another.  On a pool that another
    policy overcommitted it admits nothing until the reservations fit, and inherited sequences may be evicted until
    then.
    Source: Orca (OSDI 2022), TensorRT-LLM's GUARANTEED_NO_EVICT; LightLLM's Past-Future scheduler (ASPLOS 2025).
    Optimises: steady streams, no prompt computed twice.
    Starves: waiting requests when max_tokens is declared far above what is generated: the pool stays half empty
    (NVIDIA/TensorRT-LLM#2866; `future-peak` is the remedy).  A higher class waits for lower ones that run, and a lower
    one for all higher ones until it has aged (`aging_s`).
    """

    name: ClassVar[str] = "conservative-admission"
    Options: ClassVar[type[ConservativeAdmissionOptions]] = ConservativeAdmissionOptions

    def __init__(self, options: ConservativeAdmissionOptions) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        """See `inflightd.schedulers.api.Policy`."""
        if (standing := standing_plan(view, PASSING)) is not None:
            return standing
        options = self.options
        budget = StepBudget(view, preemption=options.preemption, aging_s=options.aging_s)
        budget.grow()
        if budget.prefilling:
            prompts = budget.prompts_in_order()
            budget.hold(prompts)
            for sequence in prompts:
                budget.feed(sequence)
            budget.unblock()
        if view.waiting or view.preempted:
            order = fair_order(options)
            Admission(budget, self._fit(budget), max_overtakes=options.max_overtakes, order=order).run()
        return budget.plan()

    def _fit(self, budget: StepBudget) -> Fit:
        if self.options.mode == "future-peak":
            return FuturePeak(budget, self.options.length_quantile)
        return Reservation(budget)
