"""Keep every step full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inflightd.schedulers.admission import Admission, AdmissionOptions, fair_order
from inflightd.schedulers.api import Plan, View
from inflightd.schedulers.budget import StepBudget
from inflightd.schedulers.future_peak import PASSING, expected_fit
from inflightd.schedulers.standing import standing_plan


@dataclass(frozen=True, slots=True)
class ThroughputMaxOptions(AdmissionOptions):
    """Options of `ThroughputMax`."""


class ThroughputMax:
    """Fill each step to max_num_tokens: all decodes, then running prompts, then as many new ones as there is room for.

    Idea: a prompt starts only if the blocks of its whole uncached part, plus one step's growth of all running, are
    free, and if the pool holds the peak of all that run and itself with outputs as long as the median of recent ones
    (512 tokens while too few are known, at most max_tokens); it is computed in chunks of what the step has left.  When
    running sequences cannot grow all the same, the least computed of the lowest class is preempted, swapped out where
    that is cheaper than computing it again.  While the loop reports thrashing, nine in ten outputs are planned for.  A
    higher class takes the place of strictly lower ones at once.
    Source: vLLM V1 (no phases), Sarathi-Serve's full-prompt admission (OSDI 2024), LightLLM's Past-Future scheduler
    (ASPLOS 2025), TensorRT-LLM's MAX_UTILIZATION and what went wrong with it (NVIDIA/TensorRT-LLM#16827, vllm#37307,
    vllm#54644); between tenants VTC (OSDI 2024).
    Optimises: tokens per second.
    Starves: the inter-token latency of running streams, for as long as prompts of max_num_tokens keep coming: a gap
    is bounded by one step of max_num_tokens.  Lower classes, while higher ones fill the pool, until they have aged
    (`aging_s`).  A big prompt waits for at most `max_overtakes` smaller ones once it is its turn.
    """

    name: ClassVar[str] = "throughput-max"
    Options: ClassVar[type[ThroughputMaxOptions]] = ThroughputMaxOptions

    def __init__(self, options: ThroughputMaxOptions) -> None:
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
                budget.feed(sequence, may_evict=True)
            budget.unblock()
        if view.waiting or view.preempted:
            Admission(
                budget,
                expected_fit(budget),
                max_overtakes=options.max_overtakes,
                may_evict=True,
                order=fair_order(options),
            ).run()
        return budget.plan()
