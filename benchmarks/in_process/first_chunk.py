"""The admission rule that throughput-max is there to avoid, as a policy to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from inflightd.schedulers.api import Ledger, Plan, Preemption, SequenceView, View, is_decoding, uncomputed_tokens


@dataclass(frozen=True, slots=True)
class FirstChunkOptions:
    """It has none."""


class FirstChunk:
    """Start a request as soon as its first chunk fits; when running ones cannot go on, the last admitted leaves.

    That is vLLM V1's `schedule()` without its full-ISL option: running sequences first, in order of admission, each
    catching up with its tokens; then, only in a step that preempted nobody, those that wait, first come first served
    and those preempted before all others, until one does not fit.
    Source: vLLM, vllm/v1/core/sched/scheduler.py; its failures NVIDIA/TensorRT-LLM#16827, vllm#37307.
    """

    name: ClassVar[str] = "first-chunk"
    Options: ClassVar[type[FirstChunkOptions]] = FirstChunkOptions

    def __init__(self, options: FirstChunkOptions | None = None) -> None:
        self.options = options or FirstChunkOptions()

    def plan(self, view: View) -> Plan:
        """See `inflightd.schedulers.api.Policy`."""
        ledger, left_tokens = view.kv.ledger(), view.limits.max_num_tokens
        running = list(view.running)
        decode: list[SequenceView] = []
        prefill: list[tuple[SequenceView, int]] = []
        preempt: list[tuple[SequenceView, Preemption]] = []
        for sequence in view.running:
            tokens = min(uncomputed_tokens(sequence), left_tokens)
            if tokens == 0 or sequence not in running or not _taken(ledger, sequence, tokens, running, preempt):
                break  # from here on all have been preempted, or there are no tokens for them
            left_tokens -= tokens
            if is_decoding(sequence):
                decode.append(sequence)
            else:
                prefill.append((sequence, tokens))
        slots = view.limits.max_batch_size - len(running)
        for sequence in () if preempt else _next(view):
            tokens = min(sequence.total_tokens - view.kv.cached_tokens(sequence), left_tokens)
            if slots == 0 or tokens == 0 or not ledger.take(sequence, tokens):
                break
            prefill.append((sequence, tokens))
            left_tokens -= tokens
            slots -= 1
        return Plan(prefill, decode, preempt, dict.fromkeys(view.waiting, "its first chunk does not fit"))


def _taken(
    ledger: Ledger,
    sequence: SequenceView,
    tokens: int,
    running: list[SequenceView],
    preempt: list[tuple[SequenceView, Preemption]],
) -> bool:
    """Take the blocks, preempting from the end of `running`; False if `sequence` itself had to go."""
    while not ledger.take(sequence, tokens):
        victim = running.pop()
        preempt.append((victim, Preemption.RECOMPUTE))
        ledger.give_back(victim)
        if victim is sequence:
            return False
    return True


def _next(view: View) -> Iterator[SequenceView]:
    yield from view.preempted
    for queue in view.waiting.values():
        yield from queue.by_arrival()
