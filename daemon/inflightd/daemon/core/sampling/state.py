"""What sampling remembers of one sample of a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from inflightd.daemon.core.sampling.params import SamplingParams

if TYPE_CHECKING:
    from inflightd.daemon.core.sampling.edits import LogitEditor
    from inflightd.daemon.core.sampling.tally import TokenTally


class SamplingState:
    """Owned by the loop's sequence; read by the engine's sampler when one of its draws comes.

    The random numbers do not live here: they are keyed by (seed, sample, position), so that nothing has to be
    restored after a preemption, a policy swap or a restart.
    """

    __slots__ = ("editor", "output_ids", "params", "prompt_ids", "sample", "tally")

    def __init__(self, params: SamplingParams, sample: int, prompt_ids: Sequence[int]) -> None:
        self.params = params
        self.sample = sample
        self.prompt_ids = prompt_ids
        self.output_ids: list[int] = []
        self.tally: TokenTally | None = None  # what the penalties are about; None: there are none
        if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty:
            from inflightd.daemon.core.sampling.tally import TokenTally  # (NumPy: a loop without penalties needs none)

            self.tally = TokenTally(prompt_ids if params.repetition_penalty != 1 else ())
        self.editor: LogitEditor | None = None  # made by the sampler when it first needs one

    def observe(self, token_id: int) -> None:
        """The loop accepted `token_id` as this sample's next token."""
        self.output_ids.append(token_id)
        if self.tally is not None:
            self.tally.observe(token_id)

    def resume(self, token_ids: Iterable[int]) -> None:
        """The sample had these tokens when another engine process ended."""
        for token_id in token_ids:
            self.observe(token_id)

    def fork(self, sample: int) -> SamplingState:
        """The state of another sample of the same request, before any token."""
        return SamplingState(self.params, sample, self.prompt_ids)
