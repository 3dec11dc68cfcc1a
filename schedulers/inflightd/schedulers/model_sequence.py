"""Requests and sequences of the reference model."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from inflightd.schedulers.api import SequenceView


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request of a workload.  It ends after `output_tokens` of each sample, which nobody knows beforehand.

    Requests that name the same `prefix` have their first `prefix_tokens` in common, as far as both have them.
    """

    prompt_tokens: int
    output_tokens: int
    max_new_tokens: int
    arrival_ns: int = 0
    service_class: str = "default"
    tenant: str = ""
    samples: int = 1
    deadline_ns: int | None = None
    prefix: str = ""
    prefix_tokens: int = 0


@dataclass(slots=True, eq=False)
class ModelBlock:
    """One block, and how many sequences hold it."""

    holders: int = 0


@dataclass(slots=True, eq=False)
class ModelSequence:
    """Implements `inflightd.schedulers.api.SequenceView`."""

    number: int
    request: ModelRequest
    prompt_tokens: int
    max_new_tokens: int
    service_class: str
    tenant: str
    arrival_ns: int
    deadline_ns: int | None
    forks_to_come: int
    total_tokens: int
    computed_tokens: int = 0
    generated_tokens: int = 0
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    preemptions: int = 0
    overtaken: int = 0
    swapped: bool = False
    running: bool = False
    started_step: int | None = None  # the first time
    first_token_step: int | None = None
    finished_step: int | None = None
    recompute_until_tokens: int = 0  # tokens below this were computed once already
    blocks: list[ModelBlock] = field(default_factory=list)
    host_blocks: int = 0  # of its copy, while it is swapped out

    @property
    def held_blocks(self) -> int:
        return len(self.blocks)

    @property
    def exclusive_blocks(self) -> int:
        return sum(block.holders == 1 for block in self.blocks)

    def shared_blocks_with(self, other: ModelSequence, block_size_tokens: int) -> int:
        """Full leading blocks that both prompts have in common; the last token of this one does not count."""
        mine, its = self.request, other.request
        if not mine.prefix or mine.prefix != its.prefix:
            return 0
        return min(mine.prefix_tokens, its.prefix_tokens, self.total_tokens - 1) // block_size_tokens

    def state(self) -> tuple[object, ...]:
        """All that a policy may read, for comparison."""
        state: tuple[object, ...] = _SEQUENCE_STATE(self)
        return state

    def __repr__(self) -> str:
        where = "running" if self.running else "swapped" if self.swapped else "not running"
        return (
            f"<sequence {self.number} {where}, computed {self.computed_tokens} of {self.total_tokens}, "
            f"{self.held_blocks} blocks>"
        )


_SEQUENCE_STATE: Final = attrgetter(*(name for name in vars(SequenceView) if not name.startswith("_")))


def own(sequence: SequenceView) -> ModelSequence:
    """The model's own object behind a view of it."""
    assert isinstance(sequence, ModelSequence)
    return sequence
