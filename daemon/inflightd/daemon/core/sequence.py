"""A sequence: one token stream of a request, its states and the one table of allowed transitions."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from inflightd.daemon.core.wire import Submit
from inflightd.daemon.engines.api import Draw, Row

if TYPE_CHECKING:
    from inflightd.daemon.core.kv.manager import KvManager
    from inflightd.daemon.core.sampling.state import SamplingState


class State(Enum):
    WAITING = "waiting"  # never ran
    RUNNING = "running"  # holds blocks (or is about to) and a batch slot
    PREEMPTED = "preempted"  # lost its blocks; its tokens are prefilled again
    SWAPPED = "swapped"  # its blocks are in host memory
    FINISHED = "finished"


_TRANSITIONS: Final = {
    State.WAITING: {State.RUNNING, State.FINISHED},
    State.RUNNING: {State.PREEMPTED, State.SWAPPED, State.FINISHED},
    State.PREEMPTED: {State.RUNNING, State.FINISHED},
    State.SWAPPED: {State.RUNNING, State.PREEMPTED, State.FINISHED},
    State.FINISHED: set[State](),
}


def worst_case_blocks(prompt_tokens: int, max_new_tokens: int, samples: int, block_size_tokens: int) -> int:
    """Blocks that `samples` streams of one prompt hold when each has generated all it may; full prompt blocks are
    shared."""
    shared = prompt_tokens // block_size_tokens
    each = -(-(prompt_tokens + max_new_tokens) // block_size_tokens)
    return shared + samples * (each - shared)


class Sequence:
    """Owned by the step loop; a policy sees it as `inflightd.schedulers.api.SequenceView`.

    Progress is counters, not states: `computed_tokens` chases `total_tokens`.  `row` is this sequence's part of a
    step, kept for its whole life so that a steady decode builds nothing.
    """

    __slots__ = (
        "_kv",
        "_tables",
        "arrival_ns",
        "cached_tokens",
        "charged_tokens",
        "computed_tokens",
        "deadline_ns",
        "first_token_ns",
        "forks_to_come",
        "generated_tokens",
        "last_token_ns",
        "max_new_tokens",
        "number",
        "overtaken",
        "preemptions",
        "prompt_tokens",
        "recompute_until_tokens",
        "request",
        "row",
        "sample",
        "samples",
        "sampling",
        "scheduled_ns",
        "service_class",
        "state",
        "stop_token_ids",
        "tenant",
        "token_ids",
        "total_tokens",
    )

    def __init__(
        self, number: int, submit: Submit, sampling: SamplingState, stop_token_ids: frozenset[int], kv: KvManager
    ) -> None:
        params = submit.sampling
        self._kv = kv
        self._tables = kv.tables
        self.number = number
        self.request = submit.number  # the front's number, shared by the samples of a request
        self.sample = sampling.sample
        self.samples: tuple[int, ...] = tuple(range(params.n))  # what it stands for: its own, and those to split off
        self.sampling = sampling
        self.service_class = submit.service_class
        self.tenant = submit.tenant
        self.arrival_ns = submit.arrival_ns
        self.deadline_ns = submit.deadline_ns
        self.max_new_tokens = params.max_tokens
        self.stop_token_ids = stop_token_ids
        self.forks_to_come = params.n - 1
        self.token_ids = list(submit.prompt_ids)
        self.prompt_tokens = len(self.token_ids)
        self.total_tokens = self.prompt_tokens
        self.generated_tokens = 0
        self.computed_tokens = 0
        self.cached_tokens = 0
        self.charged_tokens = 0  # of the generated ones, to the tenant
        self.recompute_until_tokens = 0  # tokens below this were computed once already
        self.preemptions = 0
        self.overtaken = 0
        self.scheduled_ns: int | None = None
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.state = State.WAITING
        self.row = Row(number, (), 0, (), ())  # the block table is the manager's own list, set when blocks are taken

    def move(self, to: State) -> None:
        """Change state; a transition that is not in the table is a programming error."""
        if to not in _TRANSITIONS[self.state]:
            raise RuntimeError(f"sequence {self.number} cannot go from {self.state.value} to {to.value}")
        self.state = to

    @property
    def held_blocks(self) -> int:
        table = self._tables.get(self.number)  # (a policy may ask this of everybody in every step)
        return 0 if table is None else len(table.blocks) + len(table.fork_blocks)

    @property
    def exclusive_blocks(self) -> int:
        return self._kv.exclusive_blocks(self.number)

    @property
    def swapped(self) -> bool:
        return self.state is State.SWAPPED

    def draws(self) -> list[Draw]:
        """The tokens to sample when this sequence's known tokens have been computed: one, or one for each sample."""
        first = Draw(self.sampling, self.generated_tokens)
        return [first, *(Draw(self.sampling.fork(sample), 0) for sample in self.samples[1:])]

    def prepare_decode(self) -> None:
        """Make the row that of a decode, which mostly the step before has done."""
        self.row.token_ids, self.row.past_tokens, self.row.draws = (
            self.token_ids[-1:],
            self.computed_tokens,
            self.draws(),
        )

    def drop_sample(self, sample: int) -> None:
        """One of several samples is not wanted any more, before they split; the others' tokens stay what they were."""
        self.samples = tuple(other for other in self.samples if other != sample)
        self.forks_to_come = len(self.samples) - 1
        if self.sample == sample:
            self.sample = self.samples[0]
            self.sampling = self.sampling.fork(self.sample)

    def resume(self, sampling: SamplingState, token_ids: list[int], first_ns: int | None, last_ns: int | None) -> None:
        """Before it is anywhere: one sample goes on after `token_ids`, which another engine process made of it."""
        self.sample, self.samples, self.sampling = sampling.sample, (sampling.sample,), sampling
        sampling.resume(token_ids)
        self.forks_to_come = 0
        self.token_ids += token_ids
        self.total_tokens = len(self.token_ids)
        self.generated_tokens = self.charged_tokens = len(token_ids)
        self.first_token_ns, self.last_token_ns = first_ns, last_ns

    def fork(self, number: int, sampling: SamplingState) -> Sequence:
        """Another sample of the same request, at the end of the prompt; its blocks are the caller's business."""
        other = object.__new__(Sequence)
        for name in Sequence.__slots__:
            setattr(other, name, getattr(self, name))
        other.number, other.sample, other.sampling = number, sampling.sample, sampling
        other.samples = (sampling.sample,)
        other.token_ids = self.token_ids[: self.prompt_tokens]
        other.forks_to_come = 0
        other.row = Row(number, (), 0, (), ())
        return other

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.number} {self.state.value.upper()}, "
            f"computed {self.computed_tokens} of {self.total_tokens}, "
            f"generated {self.generated_tokens} of {self.max_new_tokens}, {self.held_blocks} blocks>"
        )
