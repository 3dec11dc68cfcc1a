"""Nested ranges flattened: at each moment of the engine thread, one phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from inflightd.profiling import ranges
from inflightd.profiling.nsys.nesting import Node
from inflightd.profiling.trace import Phase, Span

# What a range says of the time in it that no inner range covers.
_PHASES: Final[Mapping[str, Phase]] = {
    ranges.LOAD: Phase.LOAD,
    ranges.STEP: Phase.BOOKKEEPING,
    ranges.SCHEDULE: Phase.SCHEDULE,
    ranges.SWAP_OUT: Phase.KV_SWAP,
    ranges.SWAP_IN: Phase.KV_SWAP,
    ranges.SAMPLE: Phase.SAMPLE,
    ranges.PUBLISH: Phase.PUBLISH,
    ranges.SNAPSHOT: Phase.POLICY_SWAP,
    ranges.IDLE: Phase.IDLE,
    ranges.HELD: Phase.HELD,
    ranges.FRONT_BEHIND: Phase.FRONT_BEHIND,
}
RANGES: Final = frozenset(_PHASES) | ranges.FORWARDS
BETWEEN_STEPS: Final = frozenset(
    (ranges.LOAD, ranges.PUBLISH, ranges.SNAPSHOT, ranges.IDLE, ranges.HELD, ranges.FRONT_BEHIND)
)


def flattened(node: Node, forward_ns: int | None = None) -> list[Span]:
    """The innermost phase at each moment of `node`.

    forward_ns: how much of the forward range the engine has computed.  What was published meanwhile cost nothing; from
    then on publishing is late, and the rest is bookkeeping.  None: all of the range.
    """
    return _joined(_spans(node, forward_ns))


def _spans(node: Node, forward_ns: int | None) -> list[Span]:
    if node.name in ranges.FORWARDS:
        return _forward(node, forward_ns)
    phase = _PHASES[node.name]
    spans: list[Span] = []
    at_ns = node.start_ns
    for inner in node.inner:
        spans.append(Span(phase, at_ns, inner.start_ns, node.payload))
        spans += _spans(inner, forward_ns)
        at_ns = inner.end_ns
    spans.append(Span(phase, at_ns, node.end_ns, node.payload))
    return spans


def _forward(node: Node, forward_ns: int | None) -> list[Span]:
    computed_ns = node.end_ns if forward_ns is None else min(node.end_ns, node.start_ns + forward_ns)
    spans = [Span(Phase.FORWARD, node.start_ns, computed_ns, node.payload)]
    at_ns = computed_ns
    for inner in node.inner:
        if inner.end_ns <= computed_ns:
            continue
        spans.append(Span(Phase.BOOKKEEPING, at_ns, max(at_ns, inner.start_ns)))
        spans.append(Span(_PHASES[inner.name], max(at_ns, inner.start_ns), inner.end_ns, inner.payload))
        at_ns = inner.end_ns
    spans.append(Span(Phase.BOOKKEEPING, at_ns, node.end_ns))
    return spans


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Without empty ones; bookkeeping in one piece, whatever ranges it is the rest of."""
    joined: list[Span] = []
    for span in spans:
        if not span.duration_ns:
            continue
        if span.phase is not Phase.BOOKKEEPING:
            joined.append(span)
        elif joined and joined[-1].phase is Phase.BOOKKEEPING:
            joined[-1] = Span(Phase.BOOKKEEPING, joined[-1].start_ns, span.end_ns)
        else:
            joined.append(Span(Phase.BOOKKEEPING, span.start_ns, span.end_ns))
    return joined


def total_payload(node: Node, name: str) -> int:
    """Of the ranges of this name in `node`."""
    return sum(inner.payload for inner in node.all_inner() if inner.name == name)
