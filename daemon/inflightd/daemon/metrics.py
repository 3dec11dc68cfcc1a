"""Figures of the daemon, cheap to count and exported in Prometheus's format.

Counting is plain attribute and list arithmetic on the event loop's thread; the exposition thread only reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from inflightd.daemon.core.wire import LoopState
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.profiling.records import StepRecord

_LATENCY_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip


class Histogram:
    """Counts by bucket; `observe` is one bisection and two additions."""

    __slots__ = ("_counts", "_sum_ns", "bounds_ns")

    def __init__(self, bounds_s: Sequence[float] = _LATENCY_S) -> None:
        self.bounds_ns = [int(bound * 1e9) for bound in bounds_s]
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_ns = 0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, duration_ns: int, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds_ns, duration_ns)] += times
        self._sum_ns += duration_ns * times

    def read(self) -> tuple[list[int], int]:
        """Observations by bucket (the last one is above all bounds), and the sum of all in nanoseconds."""
        return list(self._counts), self._sum_ns

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        total, buckets = 0, []
        for bound_ns, count in zip(self.bounds_ns, self._counts, strict=False):
            total += count
            buckets.append((f"{bound_ns / 1e9:g}", float(total)))
        buckets.append(("+Inf", float(total + self._counts[-1])))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum_ns / 1e9)


class Metrics(Collector):
    """Observer of the request table, and the last state the loop reported."""

    def __init__(self) -> None:
        self.admitted = 0
        self.rejected: Counter[str] = Counter()  # by reason: invalid, overloaded, unavailable
        self.finished: Counter[str] = Counter()  # by terminal reason
        self.prompt_tokens = 0
        self.policy_faults = 0
        self.policy_swaps = 0
        self.thrashing_events = 0
        self.standstills = 0
        self.engine_restarts = 0
        self.resumed_requests = 0
        self.last_resume_ns = 0
        self.ready = False
        self.state: LoopState | None = None
        self.policy = ""
        self.generation = 0
        self.waiting_reasons: dict[str, str] = {}  # by class
        self.waiting_by_reason: dict[str, int] = {}
        self.in_flight = 0
        self.ttft = Histogram()
        self.itl = Histogram()  # the request table observes token gaps itself
        self.e2e = Histogram()
        self.queue = Histogram()
        self.step = Histogram()
        self.resume = Histogram()
        self.step_observers: list[Callable[[StepRecord], None]] = []  # told each step as its record comes
        self._totals = _EngineTotals()

    # --- the observer of the request table

    def admit(self, prompt_tokens: int) -> None:
        self.admitted += 1
        self.prompt_tokens += prompt_tokens
        self.in_flight += 1

    def first_token(self, live: LiveRequest, now_ns: int) -> None:
        self.ttft.observe(now_ns - live.arrival_ns)

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        self.finished[reason] += 1
        self.in_flight -= 1
        self.e2e.observe(now_ns - live.arrival_ns)
        if live.scheduled_ns:
            self.queue.observe(live.scheduled_ns - live.arrival_ns)

    # --- once a step

    def frame(self, state: LoopState, step: StepRecord | None) -> None:
        self.state = state
        if step is not None:
            self.step.observe(step.end_ns - step.start_ns)
            for tell in self.step_observers:
                tell(step)
            self.waiting_reasons, self.waiting_by_reason = step.reasons, step.waiting_by_reason
        elif not (state.waiting or state.preempted):
            self.waiting_reasons, self.waiting_by_reason = {}, {}

    def use_policy(self, name: str, generation: int) -> None:
        self.policy, self.generation = name, generation

    def engine_lost(self) -> None:
        """The next process counts from zero again: keep what this one had counted."""
        self.engine_restarts += 1
        if self.state is not None:
            self._totals.add(self.state)
            self.state = None
        self.waiting_reasons, self.waiting_by_reason = {}, {}

    def resumed(self, requests: int, duration_ns: int) -> None:
        """After the death of an engine process there are tokens again."""
        self.resumed_requests += requests
        self.last_resume_ns = duration_ns
        self.resume.observe(duration_ns)

    def totals(self) -> dict[str, int]:
        """The loop's counters over all engine processes of this daemon."""
        return self._totals.with_state(self.state)

    # --- exposition

    def collect(self) -> Iterable[Metric]:
        counters = {
            "admitted": ("requests_admitted", "Requests admitted.", self.admitted),
            "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests.", self.prompt_tokens),
            "restarts": ("engine_restarts", "Engine processes that ended unasked.", self.engine_restarts),
            "resumed": (
                "requests_resumed",
                "Requests that went on in another engine process.",
                self.resumed_requests,
            ),
            "faults": ("policy_faults", "Policies replaced because they failed.", self.policy_faults),
            "policy_swaps": ("policy_swaps", "Policies put in charge by a swap.", self.policy_swaps),
            "thrashing": ("thrashing_events", "How often thrashing began.", self.thrashing_events),
            "standstills": (
                "queue_standstills",
                "How often nobody had started for 1024 steps although the first in line would fit.",
                self.standstills,
            ),
        }
        for name, text, value in counters.values():
            yield CounterMetricFamily(f"inflightd_{name}", text, value=value)
        for name, value in self.totals().items():
            yield CounterMetricFamily(f"inflightd_{name}", _TOTALS[name], value=value)
        yield _by_reason("inflightd_requests_finished", "Requests by terminal reason.", self.finished)
        yield _by_reason("inflightd_requests_rejected", "Requests not admitted, by reason.", self.rejected)
        yield GaugeMetricFamily("inflightd_ready", "1 if requests are served.", value=float(self.ready))
        yield GaugeMetricFamily("inflightd_requests_in_flight", "Requests that are alive.", value=self.in_flight)
        state = self.state
        if state is not None:
            for name, (field, text) in _GAUGES.items():
                yield GaugeMetricFamily(f"inflightd_{name}", text, value=float(getattr(state, field)))
            waiting = GaugeMetricFamily(
                "inflightd_sequences_waiting_by_reason", "Sequences waiting, by reason.", labels=["reason"]
            )
            for reason, count in self.waiting_by_reason.items():
                waiting.add_metric([reason], count)
            yield waiting
            generation = GaugeMetricFamily(
                "inflightd_scheduler_generation", "Generation of the policy, by its name.", labels=["policy"]
            )
            generation.add_metric([self.policy], self.generation)
            yield generation
        yield self.ttft.family("inflightd_ttft_seconds", "Arrival to first token.")
        yield self.itl.family("inflightd_itl_seconds", "Gap between tokens of a sample.")
        yield self.e2e.family("inflightd_e2e_seconds", "Arrival to terminal record.")
        yield self.queue.family("inflightd_queue_seconds", "Arrival to first step.")
        yield self.step.family("inflightd_step_seconds", "Duration of a step.")
        yield self.resume.family("inflightd_resume_seconds", "Death of an engine process to the next token.")


_TOTALS: Final = {
    "steps": "Steps.",
    "prefilled_tokens": "Prompt tokens computed.",
    "recomputed_tokens": "Tokens computed again after a preemption.",
    "generated_tokens": "Tokens generated.",
    "decoded_tokens": "Sequences that decoded, summed over the steps.",
    "padding_tokens": "Rows computed and thrown away.",
    "preemptions": "Preemptions.",
    "swap_outs": "Preemptions by swap.",
    "swapped_out_blocks": "KV blocks copied to host memory.",
    "swapped_in_blocks": "KV blocks copied back from host memory.",
    "started_prompt_tokens": "Prompt tokens of sequences that started.",
    "cached_prompt_tokens": "Prompt tokens of sequences that started, found in the prefix cache.",
    "resumed_cached_tokens": "Tokens found in the prefix cache after a preemption by recompute.",
}

# Name to field of `LoopState` and help.
_GAUGES: Final = {
    "sequences_running": ("running", "Sequences running."),
    "sequences_waiting": ("waiting", "Sequences waiting."),
    "sequences_preempted": ("preempted", "Sequences preempted."),
    "sequences_swapped": ("swapped", "Sequences in host memory, preempted by swap."),
    "kv_blocks": ("blocks_total", "KV blocks in the pool."),
    "kv_blocks_free": ("blocks_free", "KV blocks free or evictable."),
    "kv_blocks_cached": ("blocks_cached", "KV blocks that the prefix cache finds."),
    "kv_host_blocks": ("host_blocks_total", "KV blocks in host memory."),
    "kv_host_blocks_free": ("host_blocks_free", "KV blocks in host memory, free."),
    "thrashing": ("thrashing", "1 if too much of what is prefilled was computed before."),
    "cost_model_sure": ("cost_sure", "1 if the cost model has seen enough steps to be decided by."),
    "cost_model_error_ratio": ("cost_error", "Recent mean of |measured - expected| / measured of a step."),
}


class _EngineTotals:
    """Sums of `LoopState` counters of the engine processes that are gone."""

    def __init__(self) -> None:
        self._past: Counter[str] = Counter()

    def add(self, state: LoopState) -> None:
        for name in _TOTALS:
            self._past[name] += getattr(state, name)

    def with_state(self, state: LoopState | None) -> dict[str, int]:
        return {name: self._past[name] + (getattr(state, name) if state is not None else 0) for name in _TOTALS}


def _by_reason(name: str, text: str, counts: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["reason"])
    for reason, count in sorted(counts.items()):
        family.add_metric([reason], count)
    return family


class MetricsServer:
    """The HTTP endpoint; scrapes are answered on a thread of its own."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """Raises OSError if the address cannot be bound."""
        registry = CollectorRegistry()
        registry.register(metrics)
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
