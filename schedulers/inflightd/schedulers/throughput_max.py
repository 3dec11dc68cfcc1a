"""Keep every step full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inflightd.schedulers.admission import Admission
from inflightd.schedulers.api import Plan, View
from inflightd.schedulers.budget import StepBudget
from inflightd.schedulers.fit import Reservation, WholePrompt
from inflightd.schedulers.options import option


@dataclass(frozen=True, slots=True)
class ThroughputMaxOptions:
    """Options of `ThroughputMax`."""

    max_overtakes: int = option(
        32, minimum=0, help="times a request that does not fit may be overtaken by smaller ones of its class"
    )


class ThroughputMax:
    """Fill each step to max_num_tokens: all decodes, then running prompts, then as many new ones as there is room for.

    Idea: a prompt starts only if the blocks of its whole uncached part, plus one step's growth of all running, are
    free; it is computed in chunks of what the step has left.  Outputs are not reserved: when running sequences cannot
    grow, the least computed of the lowest class is preempted.  While the loop reports thrashing, outputs are reserved
    too.
    Source: vLLM V1 (no phases), Sarathi-Serve's full-prompt admission (OSDI 2024), TensorRT-LLM's MAX_UTILIZATION and
    what went wrong with it (NVIDIA/TensorRT-LLM#16827, vllm#37307, vllm#54644).
    Optimises: tokens per second.
    Starves: the inter-token latency of running streams, for as long as prompts of max_num_tokens keep coming: a gap
    is bounded by one step of max_num_tokens.  Lower classes, for as long as higher ones fill the pool.  A big prompt
    waits for at most `max_overtakes` smaller ones.
    """

    name: ClassVar[str] = "throughput-max"
    Options: ClassVar[type[ThroughputMaxOptions]] = ThroughputMaxOptions

    def __init__(self, options: ThroughputMaxOptions) -> None:
        self.options = options

    def plan(self, view: View) -> Plan:
        """See `inflightd.schedulers.api.Policy`."""
        budget = StepBudget(view)
        budget.grow()
        if budget.prefilling:
            prompts = budget.prompts_in_order()
            budget.hold(prompts)
            for sequence in prompts:
                budget.feed(sequence, may_evict=True)
            budget.unblock()
        if view.waiting or view.preempted:
            fit = Reservation(budget) if view.history.thrashing else WholePrompt(budget)
            Admission(budget, fit, max_overtakes=self.options.max_overtakes, may_evict=True).run()
        return budget.plan()
