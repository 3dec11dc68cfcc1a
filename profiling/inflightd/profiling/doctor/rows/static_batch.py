"""Low utilisation and low tokens/s: rows of a static batch that have ended, and those who wait for it to end."""

from __future__ import annotations

from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.trace import Phase
from inflightd.profiling.wording import counted, duration, share
from inflightd.schedulers.static_batch import BATCH_CLOSED, QUEUE_DELAY

PADDED: Final = 0.05  # of the rows; in-flight batching pads none, and a static batch of equal outputs next to none
CLOSED: Final = (
    0.10  # of the time: somebody waits although slots are free; less is the end of one batch in a long trace
)


def examine(facts: Facts) -> Finding | None:
    padding = sum(step.padding_tokens for step in facts.steps)
    decodes = sum(step.decode_sequences for step in facts.steps)
    padded = padding / max(1, padding + decodes)
    closed, delayed = facts.waits({BATCH_CLOSED}), facts.waits({QUEUE_DELAY})
    waited_share = (closed.ns + delayed.ns) / facts.worked_ns
    if padded < PADDED and waited_share < CLOSED:
        return None
    evidence = []
    if padding:
        evidence.append(
            f"{share(padded)} of the decode rows were padding: {counted(padding, 'row')} of sequences that had ended, "
            f"beside {decodes:,} that made a token."
        )
    if closed.ns:
        evidence.append(
            f"{closed.sequences:.1f} requests on average waited for {duration(closed.ns)} because the batch was closed "
            f"until its last sequence ends; {closed.running:.1f} ran meanwhile."
        )
    if delayed.ns:
        evidence.append(f"For {duration(delayed.ns)} the engine waited for a batch to be filled.")
    wasted_ns = sum(
        _computing_ns(facts, index) * step.padding_tokens // max(1, step.padding_tokens + step.decode_sequences)
        for index, step in enumerate(facts.steps)
        if step.padding_tokens
    )
    effect = "Whoever waits takes the place of a sequence in the step after it has ended"
    if PADDED <= padded < 1:
        effect += f"; with enough waiting up to {1 / (1 - padded):.1f} times the tokens/s of the same steps"
    return Finding(
        id="static-batch",
        severity=Severity.FINDING,
        title="Few tokens/s: the batch is static",
        evidence=tuple(evidence),
        cause="A static batch computes the rows of finished sequences until its last one ends, and takes nobody in.",
        remedies=(Remedy(How.RUN, "inflightd scheduler use throughput-max", f"{effect}."),),
        lost_ns=wasted_ns + delayed.ns,
    )


def _computing_ns(facts: Facts, index: int) -> int:
    return sum(span.duration_ns for span in facts.steps[index].spans if span.phase is Phase.FORWARD)
