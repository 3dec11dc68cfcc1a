"""Two samples of the counters as figures per second, and the last of them in a row."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflightd.clients.status import StatsSample

KEPT = 240  # pictures: more columns than a sparkline has


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, between two samples of one daemon.  Its counters go on over a restart of the engine."""

    steps: float = 0.0
    prefill_tokens: float = 0.0
    generated_tokens: float = 0.0
    recomputed_tokens: float = 0.0
    requests_admitted: float = 0.0
    requests_rejected: float = 0.0
    requests_finished: float = 0.0
    preemptions_recompute: float = 0.0
    preemptions_swap: float = 0.0


def rates_between(before: StatsSample, after: StatsSample) -> Rates:
    seconds = (after.monotonic_ns - before.monotonic_ns) / 1e9
    if seconds <= 0:
        return Rates()
    old, new = before.counters, after.counters
    swaps = new.swap_outs - old.swap_outs
    return Rates(
        steps=(new.steps - old.steps) / seconds,
        prefill_tokens=(new.prefilled_tokens - old.prefilled_tokens) / seconds,
        generated_tokens=(new.generated_tokens - old.generated_tokens) / seconds,
        recomputed_tokens=(new.recomputed_tokens - old.recomputed_tokens) / seconds,
        requests_admitted=(new.requests_admitted - old.requests_admitted) / seconds,
        requests_rejected=(new.requests_rejected - old.requests_rejected) / seconds,
        requests_finished=(sum(new.requests_finished.values()) - sum(old.requests_finished.values())) / seconds,
        preemptions_recompute=(new.preemptions - old.preemptions - swaps) / seconds,
        preemptions_swap=swaps / seconds,
    )


@dataclass(frozen=True, slots=True)
class Picture:
    """One sample with what came before it; oldest first."""

    sample: StatsSample
    rates: Rates
    history: tuple[Rates, ...] = field(default=(), repr=False)

    def then(self, sample: StatsSample) -> Picture:
        """The next picture.  The first sample of a stream covers no time: there is nothing to show of it."""
        if sample.interval.duration_ns == 0:
            return self
        rates = rates_between(self.sample, sample)
        return Picture(sample, rates, (*self.history, rates)[-KEPT:])


def first_picture(sample: StatsSample) -> Picture:
    return Picture(sample, Rates())
