"""What sampling remembers of one sample of a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inflightd.daemon.core.sampling.params import SamplingParams


class SamplingState:
    """Owned by the loop's sequence; read by the engine's sampler when one of its draws comes.

    The random numbers do not live here: they are keyed by (seed, sample, position), so that nothing has to be
    restored after a preemption, a policy swap or a restart.
    """

    __slots__ = ("counts", "output_ids", "params", "prompt_ids", "sample")

    def __init__(self, params: SamplingParams, sample: int, prompt_ids: Sequence[int]) -> None:
        self.params = params
        self.sample = sample
        self.prompt_ids = prompt_ids
        self.output_ids: list[int] = []
        self.counts: Counter[int] | None = (
            Counter() if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty else None
        )

    def observe(self, token_id: int) -> None:
        """The loop accepted `token_id` as this sample's next token."""
        self.output_ids.append(token_id)
        if self.counts is not None:
            self.counts[token_id] += 1

    def fork(self, sample: int) -> SamplingState:
        """The state of another sample of the same request, before any token."""
        return SamplingState(self.params, sample, self.prompt_ids)
