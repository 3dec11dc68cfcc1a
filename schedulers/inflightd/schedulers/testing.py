"""The conformance suite for scheduler policies.

    from inflightd.schedulers.testing import conformance, swap_conformance

    def test_my_policy() -> None:
        conformance(lambda: MyPolicy(MyOptions()))

Policies are driven over random workloads on the reference model (`inflightd.schedulers.model`), which checks every
rule of the contract at every step.  Everything is seeded: a failure names the seed that shows it again.  To look at one
plan, or at one situation, build a `ModelLoop` of your own and ask your policy for a plan of its `view`:

    loop = ModelLoop([ModelRequest(64, 8, 8)] * 4, limits=Limits(8, 64, 16, 512), blocks_total=20)
    plan = MyPolicy(MyOptions()).plan(loop.view)
    loop.take_step(plan)  # raises ContractError, and changes nothing, if it breaks a rule
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from inflightd.schedulers.api import (
    ALL,
    STANDING_STEPS,
    Capabilities,
    History,
    Limits,
    Plan,
    Policy,
    ServiceClass,
    Standing,
)
from inflightd.schedulers.model import ModelCost, ModelLoop, ModelRequest

PolicyFactory = Callable[[], Policy]

CLASSES: Final = (
    ServiceClass("interactive", priority=10, ttft_ns=200_000_000, itl_ns=20_000_000),
    ServiceClass("default", priority=0),
    ServiceClass("batch", priority=-10, max_running=4, kv_share=0.5),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests and the machine they meet."""

    requests: Sequence[ModelRequest]
    limits: Limits
    blocks_total: int
    capabilities: Capabilities
    cost: ModelCost
    host_blocks_total: int = 0
    output_lengths: Sequence[int] = ()  # of requests that seem to have finished before, sorted

    def loop(self) -> ModelLoop:
        """A fresh model of it."""
        loop = ModelLoop(
            self.requests,
            limits=self.limits,
            blocks_total=self.blocks_total,
            host_blocks_total=self.host_blocks_total,
            classes=CLASSES,
            capabilities=self.capabilities,
            cost=self.cost,
        )
        loop.view.history = History(output_lengths=self.output_lengths)
        return loop

    def most_steps(self) -> int:
        """Bound on the steps of any policy that makes progress: every token in a step of its own, recomputed often."""
        return 500 + 5 * sum(r.prompt_tokens + r.samples * r.output_tokens for r in self.requests)


def random_workload(seed: int) -> Workload:
    """A small machine under pressure: pools from one request's worst case up, a host pool from none up, mixed classes
    and tenants, samples, deadlines, prompts with a prefix in common.
    """
    random = Random(seed)
    block = random.choice((1, 4, 16))
    batch = random.choice((1, 2, 4, 8, 16))
    unit = random.choice((1, 1, 4))
    tokens = random.choice((max(1, batch // 2), batch + unit, 32, 64, 256))
    limits = Limits(batch, max(tokens, unit), block, 512)
    requests: list[ModelRequest] = []
    now_ns = 0
    prefixes = random.choice(("", "", "p", "pq"))
    for _ in range(random.randint(1, 24)):
        now_ns += random.choice((0, 0, 1_000_000, 20_000_000))
        output = random.choice((1, 2, random.randint(1, 40)))
        prompt = random.choice((1, block, random.randint(1, 24), random.randint(1, 200)))
        prefix = random.choice((*prefixes, "")) if prefixes else ""
        requests.append(
            ModelRequest(
                prompt_tokens=prompt,
                output_tokens=output,
                max_new_tokens=output + random.choice((0, 0, 3, 60)),
                arrival_ns=now_ns,
                service_class=random.choice(CLASSES).name,
                tenant=random.choice("ab"),
                samples=min(batch, random.choice((1, 1, 1, 2, 4))),
                deadline_ns=random.choice((None, now_ns + random.randint(1, 10**9))),
                prefix=prefix,
                prefix_tokens=min(prompt, random.choice((block, 64, 200))) if prefix else 0,
            )
        )
    worst = max(_worst_case_blocks(request, block) for request in requests)
    swap = random.random() < 0.5
    return Workload(
        requests,
        limits,
        random.choice((worst, worst + 1, 2 * worst, 10 * worst)),
        Capabilities(swap=swap, chunk_unit_tokens=unit, padding=random.random() < 0.8),
        ModelCost(sure=random.random() < 0.5, swap_block_ns=random.choice((1_000, 10_000_000))),
        host_blocks_total=random.choice((0, 3, worst, 10 * worst)) if swap else 0,
        output_lengths=random.choice(((), (1,) * 32)),  # the second: more is started than can go on
    )


def conformance(make_policy: PolicyFactory, *, seeds: Iterable[int] = range(60)) -> None:
    """Raises AssertionError, telling seed, step and rule, if the policy breaks the contract.

    Checked: every plan is valid, with prompts that are found in the cache and victims that must fit into host memory;
    it is the same from a policy object made a moment ago and from one kept all along; whoever waits on is given a
    reason; the view is not touched; everything finishes within a bound of steps; no block is lost; a request is not
    starved by a stream of others.
    """
    for seed in seeds:
        workload = random_workload(seed)
        loop = workload.loop()
        _run_to_end(loop, make_policy, workload.most_steps(), f"seed {seed}")
    _check_starvation(make_policy)


def swap_conformance(first: PolicyFactory, second: PolicyFactory, *, seeds: Iterable[int] = range(20)) -> None:
    """Raises AssertionError if `second`, put in charge in the middle of `first`'s work, cannot finish it."""
    for seed in seeds:
        workload = random_workload(seed)
        loop = workload.loop()
        steps = Random(seed).randint(1, 60)
        where = f"swap, seed {seed}"
        for _ in range(steps):
            if loop.has_work:
                loop.take_step(_checked_plan(loop, first(), first, where))
        _run_to_end(loop, second, workload.most_steps(), f"{where} after {steps} steps")


def drive(loop: ModelLoop, policy: Policy, most_steps: int = 100_000) -> None:
    """Take steps until nothing is left to do.  Raises AssertionError if that takes more than `most_steps`."""
    for _ in range(most_steps):
        if not loop.has_work:
            return
        loop.take_step(policy.plan(loop.view))
    raise AssertionError(f"{policy.name}: unfinished after {most_steps} steps: {_unfinished(loop)}")


def _run_to_end(loop: ModelLoop, make_policy: PolicyFactory, most_steps: int, where: str) -> None:
    kept = make_policy()
    loop.view.standing = None  # it was another policy's
    for _ in range(most_steps):
        if not loop.has_work:
            break
        changes = loop.changes
        plan = _checked_plan(loop, kept, make_policy, where)
        loop.take_step(plan)
        stands = loop.changes == changes and not plan.prefill and loop.view.step % STANDING_STEPS
        loop.view.standing = Standing(plan.reasons, plan.passed_over) if stands else None
    else:
        raise AssertionError(f"{kept.name}, {where}: unfinished after {most_steps} steps: {_unfinished(loop)}")
    if loop.view.kv.blocks_free != loop.view.kv.blocks_total:
        raise AssertionError(f"{kept.name}, {where}: blocks are held although nothing is left")
    for sequence in loop.sequences:
        if sequence.generated_tokens != sequence.request.output_tokens:
            raise AssertionError(f"{kept.name}, {where}: {sequence!r} did not generate all its tokens")


def _checked_plan(loop: ModelLoop, kept: Policy, make_policy: PolicyFactory, where: str) -> Plan:
    """The plan for the next step; the model checks its rules when it takes the step."""
    before = loop.view.state()
    plan = kept.plan(loop.view)
    place = f"{kept.name}, {where}, step {loop.view.step}"
    if loop.view.state() != before:
        raise AssertionError(f"{place}: plan() changed the view")
    if _signature(make_policy().plan(loop.view)) != _signature(plan):
        raise AssertionError(f"{place}: a policy object just made plans otherwise: state is kept in the policy")
    try:
        loop.check(plan)
    except AssertionError as broken:
        raise AssertionError(f"{place}: {broken}") from broken
    return plan


def _check_starvation(make_policy: PolicyFactory) -> None:
    """One big request among an endless stream of small ones of its class that keep the pool full."""
    small = [ModelRequest(16, 8, 8, arrival_ns=k * 1_000_000) for k in range(600)]
    big = ModelRequest(400, 8, 8, arrival_ns=5_000_000)
    loop = ModelLoop([*small, big], limits=Limits(8, 64, 16, 512), blocks_total=27)
    policy = make_policy()
    drive(loop, policy, 20_000)
    (starved,) = (s for s in loop.sequences if s.request is big)
    before = sum(
        s.number > starved.number and (s.started_step or 0) < (starved.started_step or 0) for s in loop.sequences
    )
    if before > 200:
        raise AssertionError(f"{policy.name}: a big request was starved by {before} smaller ones that came later")


def _signature(plan: Plan) -> tuple[object, ...]:
    decode = [s.number for s in plan.decode] if isinstance(plan.decode, Sequence) else ALL
    return (
        [(s.number, tokens) for s, tokens in plan.prefill],
        decode,
        [(s.number, kind) for s, kind in plan.preempt],
        dict(plan.reasons),
        plan.padding_tokens,
        plan.wake_ns,
        dict(plan.passed_over),
    )


def _unfinished(loop: ModelLoop) -> str:
    view = loop.view
    waiting = sum(map(len, view.waiting.values()))
    return f"{len(view.running)} running, {len(view.preempted)} preempted, {waiting} waiting"


def _worst_case_blocks(request: ModelRequest, block: int) -> int:
    shared = request.prompt_tokens // block
    each = -(-(request.prompt_tokens + request.max_new_tokens) // block)
    return shared + request.samples * (each - shared)
