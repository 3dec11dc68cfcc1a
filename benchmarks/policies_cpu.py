"""What the policies promise, on the CPU engine: long prompts among streams, and a prefix that many requests share.

Both sides of a comparison run in turn on one loaded engine.  Long prompts: one step loop, whose policy is swapped
between the runs and whose cost model goes on learning, as in the daemon.  Shared prefix: a new loop, with an empty
cache, for each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.charts import Chart, bars, distribution
from benchmarks.harness import Figure, Goal, Result, main, progress
from benchmarks.in_process.runs import Run, serve
from benchmarks.in_process.sides import THROUGHPUT, Side
from benchmarks.in_process.traffic import Offer
from benchmarks.serving import pulled_model
from inflightd.daemon.clock import MonotonicClock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load
from inflightd.daemon.engines.openvino.options import OpenVinoOptions
from inflightd.daemon.models.source import resolve_model
from inflightd.schedulers.api import Limits, ServiceClass

NAME: Final = "policies_cpu"
BLOCKS, MAX_BATCH_SIZE, MAX_NUM_TOKENS = 2048, 64, 2048  # 64k tokens
ROUNDS, QUICK_ROUNDS = 5, 1

STREAMS, STREAM_TOKENS, STREAM_PROMPT_TOKENS = 16, 96, 32
LONG_TOKENS, LONG_OUTPUT_TOKENS, LONG_EVERY_S = (1024, 1536, 2048), 8, 1.25
ITL_MS: Final = 400.0
LATENCY: Final = Side("latency-guarantee", "latency-guarantee", (("itl_ms", ITL_MS),))

PREFIX_TOKENS, OWN_TOKENS, ANSWER_TOKENS, SHARERS = 512, 24, 8, 64
CACHED, UNCACHED = "prefix cache on", "prefix cache off"

ITL_RATIO = "long prompts among streams: p99 ITL, latency-guarantee / throughput-max"
SPEED_RATIO = "long prompts among streams: tokens/s, latency-guarantee / throughput-max"
TTFT_RATIO = "shared prefix: mean TTFT, prefix cache off / on"
GOALS: Final = (Goal(ITL_RATIO, "<=", 1 / 3), Goal(SPEED_RATIO, ">=", 0.9), Goal(TTFT_RATIO, ">=", 3))


@dataclass(frozen=True, slots=True)
class Setting:
    """Of a loop on the engine."""

    engine: OpenVinoEngine
    clock: MonotonicClock

    def loop(self, *, prefix_cache: bool) -> StepLoop:
        """A new loop with empty books; the engine's blocks may hold anything."""
        info = self.engine.info
        limits = Limits(MAX_BATCH_SIZE, MAX_NUM_TOKENS, info.block_size_tokens, info.context_tokens)
        classes = {name: ServiceClass(name) for name in ("default", "long")}
        return StepLoop(
            self.engine,
            THROUGHPUT.build(),
            clock=self.clock,
            limits=limits,
            classes=classes,
            prefix_cache=prefix_cache,
        )


def run(quick: bool) -> Result:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    sharers = SHARERS // 4 if quick else SHARERS
    source = resolve_model(pulled_model())
    engine = load(OpenVinoOptions(source=source, num_blocks=BLOCKS, max_num_tokens=MAX_NUM_TOKENS))
    try:
        setting = Setting(engine, MonotonicClock())
        mixed = among_streams(setting, rounds, quick=quick)
        shared = shared_prefix(setting, rounds, sharers)
        info = engine.info
    finally:
        engine.close()
    return Result(
        (*_stream_figures(mixed), *_prefix_figures(shared)),
        {
            "engine": f"openvino, {source.name}, {info.precision}, KV {info.kv_dtype}, "
            f"{info.detail['threads']} threads, max_num_tokens {MAX_NUM_TOKENS}",
            "long prompts": f"{STREAMS} streams of {STREAM_TOKENS} tokens; a prompt of "
            f"{', '.join(map(str, LONG_TOKENS))} tokens in turn every {LONG_EVERY_S:g} s; "
            f"latency-guarantee with itl_ms={ITL_MS:g}",
            "shared prefix": f"{sharers} requests at once, {PREFIX_TOKENS} common and {OWN_TOKENS} own prompt tokens, "
            f"{ANSWER_TOKENS} tokens out, throughput-max",
        },
        (*_stream_charts(mixed), *_prefix_charts(shared)),
    )


# --- long prompts among streams -----------------------------------------------------------------------------------


def stream_offers(*, quick: bool) -> list[Offer]:
    """The streams at once, long prompts at even times for about as long as the streams last."""
    streams = [Offer(STREAM_PROMPT_TOKENS, STREAM_TOKENS)] * STREAMS
    lengths = LONG_TOKENS if quick else (*LONG_TOKENS, *LONG_TOKENS[:2])
    prompts = [
        Offer(tokens, LONG_OUTPUT_TOKENS, arrival_s=0.5 + LONG_EVERY_S * index, service_class="long")
        for index, tokens in enumerate(lengths)
    ]
    return [*streams, *prompts]


def among_streams(setting: Setting, rounds: int, *, quick: bool) -> dict[Side, list[Run]]:
    loop = setting.loop(prefix_cache=False)
    offers = stream_offers(quick=quick)
    for side in (THROUGHPUT, LATENCY):  # warm-up: each shape's first batch compiles, the cost model becomes sure
        loop.use_policy(0, side.build())
        serve(loop, setting.clock, offers)
    runs: dict[Side, list[Run]] = {THROUGHPUT: [], LATENCY: []}
    for number in range(rounds):
        for side in (THROUGHPUT, LATENCY)[:: 1 if number % 2 else -1]:  # a drift of the machine hits both
            loop.use_policy(0, side.build())
            one = serve(loop, setting.clock, offers)
            runs[side].append(one)
            progress(
                f"round {number + 1}, {side.label}: p99 ITL {one.itl_ms(99):.0f} ms, {one.tokens_per_s:.0f} tokens/s"
            )
    return runs


def _stream_figures(runs: dict[Side, list[Run]]) -> Iterator[Figure]:
    fast, smooth = runs[THROUGHPUT], runs[LATENCY]
    yield Figure(ITL_RATIO, "x", [b.itl_ms(99, "default") / a.itl_ms(99, "default") for a, b in _pairs(fast, smooth)])
    yield Figure(SPEED_RATIO, "x", [b.tokens_per_s / a.tokens_per_s for a, b in _pairs(fast, smooth)])
    for side, each in runs.items():
        name = f"long prompts among streams: {{}}, {side.label}"
        yield Figure(name.format("p99 ITL"), "ms", [one.itl_ms(99, "default") for one in each])
        yield Figure(name.format("p50 ITL"), "ms", [one.itl_ms(50, "default") for one in each])
        yield Figure(name.format("p50 TTFT of long prompts"), "s", [one.ttft_s(50, "long") for one in each])
        yield Figure(name.format("tokens/s"), "tokens/s", [one.tokens_per_s for one in each])


def _stream_charts(runs: dict[Side, list[Run]]) -> Iterator[Chart]:
    lines = {
        side.label: distribution([gap for one in each for gap in one.gaps_ms("default")]) for side, each in runs.items()
    }
    title = f"Gaps between tokens of {STREAMS} streams while long prompts arrive, CPU engine"
    yield Chart("long_prompts", title, "inter-token latency, ms", "% of gaps at or below", lines, log_x=True)


# --- a shared prefix ----------------------------------------------------------------------------------------------


def shared_prefix(setting: Setting, rounds: int, sharers: int) -> dict[str, list[Run]]:
    offers = [Offer(PREFIX_TOKENS + OWN_TOKENS, ANSWER_TOKENS, prefix_tokens=PREFIX_TOKENS)] * sharers
    runs: dict[str, list[Run]] = {CACHED: [], UNCACHED: []}
    for number in range(rounds):
        for label in (CACHED, UNCACHED)[:: 1 if number % 2 else -1]:
            one = serve(setting.loop(prefix_cache=label == CACHED), setting.clock, offers, salt=number)
            runs[label].append(one)
            progress(f"round {number + 1}, {label}: mean TTFT {one.mean_ttft_s():.2f} s")
    return runs


def _prefix_figures(runs: dict[str, list[Run]]) -> Iterator[Figure]:
    pairs = _pairs(runs[UNCACHED], runs[CACHED])
    yield Figure(TTFT_RATIO, "x", [off.mean_ttft_s() / on.mean_ttft_s() for off, on in pairs])
    for label, each in runs.items():
        yield Figure(f"shared prefix: mean TTFT, {label}", "s", [one.mean_ttft_s() for one in each])
        yield Figure(f"shared prefix: p99 TTFT, {label}", "s", [one.ttft_s(99) for one in each])
        computed = [float(sum(step.prefill_tokens for step in one.steps)) for one in each]
        yield Figure(f"shared prefix: prompt tokens computed, {label}", "tokens", computed)


def _prefix_charts(runs: dict[str, list[Run]]) -> Iterator[Chart]:
    heights = {
        label: {f"p{percent}": sum(one.ttft_s(percent) for one in each) / len(each) for percent in (1, 25, 50, 75, 99)}
        for label, each in runs.items()
    }
    title = f"First token of requests that come at once and share {PREFIX_TOKENS} prompt tokens, CPU engine"
    yield bars("shared_prefix", title, "percentile of the requests", "TTFT, s", heights)


def _pairs(first: Sequence[Run], second: Sequence[Run]) -> list[tuple[Run, Run]]:
    return list(zip(first, second, strict=True))


if __name__ == "__main__":
    main(NAME, GOALS, run)
