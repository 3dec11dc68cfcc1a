"""The gap between tokens spikes now and then: a long prompt is computed in one step with those that decode."""

from __future__ import annotations

import math
from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.doctor.step_cost import StepCost
from inflightd.profiling.records import Header
from inflightd.profiling.trace import Step
from inflightd.profiling.wording import counted, duration, share

MS: Final = 1_000_000
SPIKE: Final = 4.0  # times the typical decode step,
SPIKE_NS: Final = 100 * MS  # and so long that a reader sees the stream stop
OVER_TARGET: Final = 1.5  # times a promised gap; the cost model itself is off by a tenth now and then
HIT: Final = 0.002  # of the tokens come late: a stream of 500 tokens meets it once
ROOM: Final = 2.5  # times the typical decode step, as a target where none is promised
LEAST_CHUNK_TOKENS: Final = 64  # smaller ones pay more for the step than for the tokens
LONG_TOKENS: Final = 2 * LEAST_CHUNK_TOKENS  # of prompts in a step; chunks would not make fewer much shorter


def examine(facts: Facts) -> Finding | None:
    base_ns, cost = facts.decode_step_ns, facts.cost
    if base_ns is None or cost is None:
        return None
    promised_ns = _promised_ns(facts.header)
    limit_ns = max(SPIKE * base_ns, SPIKE_NS) if promised_ns is None else OVER_TARGET * max(promised_ns, base_ns)
    mixed = [step for step in facts.steps if step.kind == "mixed"]
    # What its prompts do not account for was something else: a first run, a pause of the machine.
    spikes = [
        step
        for step in mixed
        if step.prefill_tokens >= LONG_TOKENS
        and min(step.duration_ns, cost.step_ns(step.prefill_tokens, step.decode_sequences)) > limit_ns
    ]
    late = sum(step.decode_sequences for step in spikes)
    decoded = sum(step.decode_sequences for step in facts.steps)
    if not late or late < HIT * decoded:
        return None
    worst = max(spikes, key=lambda step: step.duration_ns)
    evidence = [
        f"A step of decodes takes {duration(base_ns)}, but {counted(len(spikes), 'step')} with a prompt took more than "
        f"{duration(limit_ns)}, at worst {duration(worst.duration_ns)} (step {worst.number}).",
        f"{share(late / decoded)} of the tokens came late because of them.",
    ]
    if worst.chunks:
        largest = max(worst.chunks, key=lambda chunk: chunk.tokens)
        evidence.append(
            f"In step {worst.number} {counted(largest.tokens, 'prompt token')} of request {largest.request} were "
            f"computed beside {counted(worst.decode_sequences, 'stream')}."
        )
    if promised_ns is not None:
        evidence.append(f"The gap that is promised is {duration(promised_ns)}.")
    command, target_ns = _command(facts, cost, base_ns, promised_ns, worst)
    return Finding(
        id="prefill-spikes",
        severity=Severity.FINDING,
        title="The gap between tokens spikes: long prompts block those that decode",
        evidence=tuple(evidence),
        cause="A prompt is computed in one large step, and every stream waits for the end of that step.",
        remedies=(
            Remedy(
                How.RUN,
                command,
                f"Prompts are computed in chunks that keep a step near {duration(target_ns)}; long ones take longer "
                "to their first token.",
            ),
        ),
        lost_ns=sum(step.duration_ns - base_ns for step in spikes),
    )


def _promised_ns(header: Header | None) -> int | None:
    """The tightest gap that a class or the policy promises."""
    if header is None:
        return None
    targets = [each.itl_ns for each in header.classes if each.itl_ns]
    option = header.policy_options.get("itl_ms")
    if header.policy == "latency-guarantee" and isinstance(option, int | float | str) and float(option):
        targets.append(int(float(option) * MS))
    return min(targets, default=None)


def _command(facts: Facts, cost: StepCost, base_ns: int, promised_ns: int | None, worst: Step) -> tuple[str, float]:
    """The target is the promised one where it can be kept, else what leaves room for a chunk."""
    header = facts.header
    decodes_ns = max(base_ns, cost.step_ns(0, worst.decode_sequences))
    token_ns = max(1.0, cost.prefill_token_ns)
    class_ns = min((each.itl_ns for each in facts.classes if each.itl_ns), default=None)
    in_charge = header is not None and header.policy == "latency-guarantee"
    # Under this policy the promise was not kept with what it was told: smaller chunks, not the same again.
    wanted_ns = class_ns if class_ns is not None else promised_ns if in_charge and promised_ns is not None else None
    if wanted_ns is None or wanted_ns <= decodes_ns:
        wanted_ns = math.ceil(max(ROOM * decodes_ns, decodes_ns + LEAST_CHUNK_TOKENS * token_ns) / (5 * MS)) * 5 * MS
    chunk_tokens = max(16, int((wanted_ns - decodes_ns) / token_ns) // 16 * 16)
    settings = f"--set itl_ms={wanted_ns / MS:g} --set chunk_tokens={chunk_tokens}"
    if chunk_tokens < LEAST_CHUNK_TOKENS:
        settings += f" --set floor_tokens={chunk_tokens}"
    return f"inflightd scheduler use latency-guarantee {settings}", wanted_ns
