"""Whoever fits for all its life, whatever the others grow to, starts in the very next step (vllm#53130: running and
deferred requests reached the limit, nothing was admitted although blocks were free, and all looked healthy).  Who was
preempted holds no slot, and resumes as soon as it fits itself."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from inflightd.daemon.core.sequence import Sequence, State
from inflightd.schedulers.admission import PREFIX, TOKENS
from inflightd.schedulers.api import ServiceClass
from inflightd.schedulers.fit import growth_blocks, life_blocks
from inflightd.schedulers.registry import build
from tests.support.loops import LoopUnderTest, make_loop

BLOCK_TOKENS = 16
CLASSES = (ServiceClass("default"), ServiceClass("interactive", priority=5))
POLICIES = (
    ("throughput-max", {}),
    ("throughput-max", {"preemption": "recompute", "aging_s": 0.0}),
    ("conservative-admission", {}),
    ("conservative-admission", {"mode": "future-peak"}),
)


def first_in_line(under_test: LoopUnderTest) -> Sequence | None:
    """The one that is looked at before all others: of the highest class, who was preempted before who never ran."""
    roster = under_test.loop.roster
    names = {*roster.waiting, *(sequence.service_class for sequence in roster.preempted)}
    if not names:
        return None
    name = max(names, key=lambda name: under_test.loop.view.classes[name].priority)
    resuming = [sequence for sequence in roster.preempted if sequence.service_class == name]
    first: Sequence = next(iter(resuming or roster.waiting[name].by_tenant()))
    return first


def fits_whatever_comes(under_test: LoopUnderTest, sequence: Sequence) -> bool:
    roster = under_test.loop.roster
    slots = sum(1 + running.forks_to_come for running in roster.running) + 1 + sequence.forks_to_come
    growth = sum(max(1, growth_blocks(running, BLOCK_TOKENS)) for running in roster.running)
    free_blocks = roster.kv.free_blocks - growth - life_blocks(sequence, BLOCK_TOKENS)
    return slots <= under_test.loop.limits.max_batch_size and free_blocks >= 0


@pytest.mark.parametrize(("policy", "options"), POLICIES)
@pytest.mark.parametrize("host_blocks", [0, 20])
def test_nobody_waits_who_fits(policy: str, options: dict[str, object], host_blocks: int) -> None:
    could: Counter[State] = Counter()
    for seed in range(4):
        draw = random.Random(seed)
        under_test = make_loop(
            build(policy, options),  # type: ignore[arg-type]
            blocks=60,
            block_size_tokens=BLOCK_TOKENS,
            max_batch_size=(3, 8)[seed % 2],
            max_num_tokens=128,
            host_blocks=host_blocks,
            classes=CLASSES,
        )
        sent = 0
        while sent < 60 or under_test.loop.has_work:
            while sent < 60 and draw.random() < 0.3:
                prompt_ids = [draw.choice((3, sent + 4))] * draw.choice((5, 30, 100, 400))
                under_test.submit(
                    sent,
                    prompt_ids,
                    max_tokens=draw.choice((1, 10, 60)),
                    n=draw.choice((1, 1, 2)),
                    tenant=draw.choice("ab"),
                    service_class=draw.choice(("default", "interactive")),
                )
                sent += 1
            if not under_test.loop.has_work:
                continue
            first = first_in_line(under_test)
            fits = first is not None and fits_whatever_comes(under_test, first)
            before = None if first is None else first.state
            under_test.step()
            if first is None or before is None or not fits:
                continue
            could[before] += 1
            reason = under_test.loop.reasons.get(first.service_class, "")
            assert first.state is not before or reason in (PREFIX, TOKENS), (first, reason)
        under_test.run()
        assert under_test.faults == []
    assert could[State.WAITING] > 50
    if policy == "throughput-max":
        assert could[State.PREEMPTED] + could[State.SWAPPED] > 5
