"""Traffic through one step loop, from the first arrival to the last token."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.in_process.traffic import Offer
from inflightd.clients.load.summary import nearest_rank
from inflightd.daemon.clock import Clock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Submit
from inflightd.profiling.records import StepRecord

_STEP_LIMIT: Final = 1_000_000
_FIRST_WORD, _WORDS = 100, 300  # in the vocabulary of every engine


@dataclass(slots=True)
class Served:
    """What became of one offer.  Times are the clock's nanoseconds."""

    offer: Offer
    sent_ns: int
    first_token_ns: int = 0
    last_token_ns: int = 0
    tokens: int = 0

    @property
    def ttft_ns(self) -> int:
        return self.first_token_ns - self.sent_ns

    @property
    def tpot_ns(self) -> float:
        """0 for an answer of one token, which has no gap."""
        return (self.last_token_ns - self.first_token_ns) / (self.tokens - 1) if self.tokens > 1 else 0.0


@dataclass(slots=True)
class Run:
    """A record for each request, in the order of arrival, and for each step."""

    served: list[Served] = field(default_factory=list)
    gaps_ns: list[tuple[str, int]] = field(default_factory=list)  # class, time between two tokens of a stream
    steps: list[StepRecord] = field(default_factory=list)
    preemptions: int = 0

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        first_ns = min(each.sent_ns for each in self.served)
        return (max(each.last_token_ns for each in self.served) - first_ns) / 1e9

    @property
    def tokens_per_s(self) -> float:
        return sum(each.tokens for each in self.served) / self.duration_s

    @property
    def recomputed_percent(self) -> float:
        """Of the tokens prefilled: those that had been computed before."""
        prefilled = sum(step.prefill_tokens for step in self.steps)
        return 100 * sum(step.recomputed_tokens for step in self.steps) / prefilled

    def itl_ms(self, percent: float, service_class: str | None = None) -> float:
        return nearest_rank(sorted(self.gaps_ms(service_class)), percent)

    def gaps_ms(self, service_class: str | None = None) -> list[float]:
        """Of one class, or of all."""
        return [gap_ns / 1e6 for name, gap_ns in self.gaps_ns if service_class in (None, name)]

    def of_class(self, service_class: str | None = None) -> list[Served]:
        return [each for each in self.served if service_class in (None, each.offer.service_class)]

    def ttft_s(self, percent: float, service_class: str | None = None) -> float:
        return nearest_rank(sorted(each.ttft_ns for each in self.of_class(service_class)), percent) / 1e9

    def mean_ttft_s(self) -> float:
        return sum(each.ttft_ns for each in self.served) / len(self.served) / 1e9

    def tpot_ms(self, percent: float, service_class: str | None = None) -> float:
        return nearest_rank(sorted(each.tpot_ns for each in self.of_class(service_class)), percent) / 1e6


def serve(loop: StepLoop, clock: Clock, offers: Sequence[Offer], *, users: int | None = None, salt: int = 0) -> Run:
    """Serve all offers on a loop that has nothing to do.

    users None: an open loop, each offer comes at its time (they are in that order).  Otherwise a closed loop: that many
    users send the offers in turn, each its next one when its last has ended.  Another `salt`, other prompts.
    Raises RuntimeError if the policy is replaced for a fault, makes no progress, or loses or adds a token.
    """
    policy, preemptions_before = loop.policies.current, loop.state().preemptions
    coming = deque(enumerate(offers))
    run = Run()
    live: dict[int, Served] = {}
    begin_ns = clock.now_ns()

    def send(number: int, offer: Offer) -> None:
        sent_ns = clock.now_ns() if users else begin_ns + round(offer.arrival_s * 1e9)
        live[number] = Served(offer, sent_ns)
        run.served.append(live[number])
        loop.submit(_submit(number, offer, sent_ns, salt))

    for _ in range(min(users or 0, len(coming))):
        send(*coming.popleft())
    for _ in range(_STEP_LIMIT):
        now_ns = clock.now_ns()
        while not users and coming and begin_ns + coming[0][1].arrival_s * 1e9 <= now_ns:
            send(*coming.popleft())
        if not loop.has_work:
            if not coming:
                break
            clock.sleep_ns(begin_ns + round(coming[0][1].arrival_s * 1e9) - now_ns + 1)
            continue
        frame, faults = loop.step()
        if loop.policies.current is not policy:
            raise RuntimeError(f"{policy.name} was replaced: {faults}")
        if frame is None or frame.step is None:
            raise RuntimeError(f"{policy.name} does nothing: {loop.reasons}")
        run.steps.append(frame.step)
        end_ns = clock.now_ns()
        for delta in frame.tokens:
            served = live[delta.number]
            if served.tokens:
                run.gaps_ns.append((served.offer.service_class, end_ns - served.last_token_ns))
            else:
                served.first_token_ns = end_ns
            served.last_token_ns = end_ns
            served.tokens += 1
        for finished in frame.finished:
            served = live.pop(finished.number)
            if served.tokens != served.offer.output_tokens:
                raise RuntimeError(f"{served.tokens} of {served.offer.output_tokens} tokens came")
            if users and coming:
                send(*coming.popleft())
    else:
        raise RuntimeError(f"{policy.name}: not finished after {_STEP_LIMIT} steps")
    run.preemptions = loop.state().preemptions - preemptions_before
    return run


def _submit(number: int, offer: Offer, sent_ns: int, salt: int) -> Submit:
    """Greedy.  A modelled engine reads the length of the answer from the seed; where max_tokens is that length, it
    ends there whatever the model says."""
    sampling = SamplingParams(
        temperature=0.0,
        seed=offer.output_tokens,
        max_tokens=offer.max_tokens or offer.output_tokens,
        ignore_eos=not offer.max_tokens,
    )
    return Submit(
        number=number,
        prompt_ids=_prompt_ids(number, offer, salt),
        sampling=sampling,
        service_class=offer.service_class,
        arrival_ns=sent_ns,
    )


def _prompt_ids(number: int, offer: Offer, salt: int) -> list[int]:
    """The prefix that it has in common with others, then two words that no other prompt of the run has."""
    prefix = [_FIRST_WORD + salt % _WORDS] * offer.prefix_tokens
    own = [_FIRST_WORD + salt % _WORDS, _FIRST_WORD + number // _WORDS % _WORDS]
    own += [_FIRST_WORD + number % _WORDS] * (offer.prompt_tokens - offer.prefix_tokens)
    return prefix + own[: offer.prompt_tokens - offer.prefix_tokens]
