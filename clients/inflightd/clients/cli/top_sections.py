"""What `inflightd top` says of a picture, a line for each thing, in blocks of lines that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from inflightd.clients.cli.top_figures import (
    Glyphs,
    age_text,
    bar_parts,
    count_text,
    percent_text,
    plain,
    rate_text,
    sparkline,
    time_text,
)
from inflightd.clients.cli.top_keys import Screen
from inflightd.clients.cli.top_rates import Picture
from inflightd.clients.status import LatencyStats, StatsSample

LABEL: Final = 11  # columns of a line's name
_STATE_STYLES: Final = {"ready": "bold green", "failed": "bold red"}
_PART_STYLES: Final = ("green", "cyan", "yellow")
_ROWS: Final = ("decode", "prefill", "padding")


def sections(screen: Screen, picture: Picture, width: int, glyphs: Glyphs, reasons: int) -> list[list[Text]]:
    """Blocks of lines, the most important first; `reasons`: lines for why sequences wait."""
    return [
        _daemon(screen, picture, glyphs),
        _speed(picture, width, glyphs),
        _latency(picture),
        _memory(picture, width, glyphs),
        _queue(picture, glyphs, reasons),
        _trouble(picture),
    ]


def _daemon(screen: Screen, picture: Picture, glyphs: Glyphs) -> list[Text]:
    scheduler, engine = picture.sample.scheduler, picture.sample.engine
    options = ", ".join(f"{name}={value}" for name, value in sorted(scheduler.options.items()))
    differs = ", not the configured one" if scheduler.differs_from_config else ""
    lines = [
        head_line(screen, picture, glyphs),
        named_line(
            "policy",
            (plain(scheduler.name, glyphs), "bold"),
            f", generation {scheduler.generation}{differs}",
            (f"  {plain(options, glyphs) or 'no options'}", "dim"),
        ),
    ]
    if picture.sample.state in ("loading", "restarting"):
        stage = plain(engine.load_stage, glyphs) or "starting"
        lines.append(named_line("loading", f"{stage}, {percent_text(engine.load_fraction)}"))
    return lines


def head_line(screen: Screen, picture: Picture, glyphs: Glyphs) -> Text:
    sample, engine = picture.sample, picture.sample.engine
    parts: list[str | tuple[str, str]] = [
        (plain(sample.state, glyphs), _STATE_STYLES.get(sample.state, "bold yellow")),
        f", up {age_text(sample.uptime_ns)}",
    ]
    if screen.silent_s:
        parts.append((f"  NO ANSWER FOR {screen.silent_s} s", "bold red"))
    if screen.paused:
        parts.append(("  PAUSED", "bold yellow"))
    restarts = f", {engine.restarts} restart{'s' if engine.restarts > 1 else ''}" if engine.restarts else ""
    parts.append(
        f"   {plain(engine.name, glyphs)} engine, pid {engine.pid}{restarts}, model {plain(engine.model, glyphs)}"
    )
    return named_line("inflightd", *parts)


def _speed(picture: Picture, width: int, glyphs: Glyphs) -> list[Text]:
    interval, engine, rates = picture.sample.interval, picture.sample.engine, picture.rates
    steps = interval.steps or 1

    def trace(name: str, now: float, unit: str, values: Sequence[float]) -> Text:
        line = sparkline(values, width - LABEL - 21, glyphs)
        return named_line(name, (f"{rate_text(now):>9}", "bold"), f" {unit:<9}  ", (line, "cyan"))

    history = picture.history
    amounts = (interval.decode_sequences, interval.prefill_tokens, interval.padding_tokens)
    rows = [f"{rate_text(amount / steps)} {name}" for amount, name in zip(amounts, _ROWS, strict=True)]
    return [
        trace("steps", rates.steps, "per s", [each.steps for each in history]),
        trace("decode", rates.generated_tokens, "tokens/s", [each.generated_tokens for each in history]),
        trace("prefill", rates.prefill_tokens, "tokens/s", [each.prefill_tokens for each in history]),
        named_line("a step", _step_times(picture.sample)),
        named_line(
            "its batch",
            *_bar(amounts, sum(amounts), width, glyphs),
            *_legend(rows, " + "),
            f" of {count_text(engine.max_num_tokens)}",
        ),
    ]


def _step_times(sample: StatsSample) -> str | tuple[str, str]:
    interval = sample.interval
    if not interval.steps:
        return ("none has ended, although sequences run", "bold yellow") if sample.counters.running else "none"
    engine, scheduling = (
        percent_text(min(1.0, part_ns / (interval.duration_ns or 1)))
        for part_ns in (interval.engine_ns, interval.schedule_ns)
    )
    return (
        f"{time_text(interval.step_ns / interval.steps)} mean, {time_text(interval.longest_step_ns)} longest;"
        f" engine {engine}, scheduling {scheduling} of time"
    )


def _memory(picture: Picture, width: int, glyphs: Glyphs) -> list[Text]:
    kv = picture.sample.kv
    held, empty = kv.blocks_total - kv.blocks_free, kv.blocks_free - kv.blocks_cached
    lines = [
        named_line(
            "KV blocks",
            *_bar((held, kv.blocks_cached), kv.blocks_total, width, glyphs),
            *_legend((f"{count_text(held)} held", f"{count_text(kv.blocks_cached)} cached")),
            f", {count_text(empty)} empty of {count_text(kv.blocks_total)}",
        )
    ]
    if kv.host_blocks_total:
        used = kv.host_blocks_total - kv.host_blocks_free
        lines.append(
            named_line(
                "host pool",
                *_bar((used,), kv.host_blocks_total, width, glyphs),
                *_legend((f"{count_text(used)} used",)),
                f" of {count_text(kv.host_blocks_total)}",
            )
        )
    return lines


def _queue(picture: Picture, glyphs: Glyphs, reasons: int) -> list[Text]:
    sample, counters = picture.sample, picture.sample.counters
    swapped = f" ({counters.swapped} swapped out)" if counters.swapped else ""
    lines = [
        named_line(
            "sequences",
            (f"{counters.running} of {sample.engine.max_batch_size} running", "bold"),
            ", ",
            (f"{count_text(counters.waiting)} waiting", "bold"),
            f", {counters.preempted} preempted{swapped}",
        )
    ]
    most_first = sorted(sample.scheduler.waiting_by_reason.items(), key=lambda item: (-item[1], item[0]))
    shown = most_first if len(most_first) <= reasons else most_first[: max(0, reasons - 1)]
    lines += [named_line("", f"{count_text(count):>9}  {plain(reason, glyphs)}") for reason, count in shown]
    if reasons and (rest := most_first[len(shown) :]):
        lines.append(named_line("", f"{count_text(sum(count for _, count in rest)):>9}  for {len(rest)} other reasons"))
    rates = picture.rates
    lines.append(
        named_line(
            "requests",
            f"{count_text(counters.in_flight)} in flight, {count_text(sample.requests_streaming)} streaming; ",
            f"{rate_text(rates.requests_admitted)}/s in, {rate_text(rates.requests_finished)}/s done, ",
            (f"{rate_text(rates.requests_rejected)}/s rejected", "bold red" if rates.requests_rejected else ""),
        )
    )
    return lines


def _latency(picture: Picture) -> list[Text]:
    interval = picture.sample.interval
    heads = "".join(f"{head:>10}" for head in ("~p50", "~p90", "~p99", "mean"))
    return [
        Text(f"{'latency':<{LABEL}}{heads}{'count':>10}", style="dim"),
        named_line("  TTFT", _latencies(interval.ttft)),
        named_line("  ITL", _latencies(interval.itl)),
    ]


def _latencies(stats: LatencyStats) -> str:
    times = (stats.p50_ns, stats.p90_ns, stats.p99_ns, stats.mean_ns)
    shown = [time_text(each) if stats.count else "-" for each in times]
    return "".join(f"{each:>10}" for each in (*shown, count_text(stats.count)))


def _trouble(picture: Picture) -> list[Text]:
    sample, rates, counters = picture.sample, picture.rates, picture.sample.counters
    recompute, swap = rates.preemptions_recompute, rates.preemptions_swap
    lost: list[str | tuple[str, str]] = [
        ("THRASHING  " if sample.scheduler.thrashing else "", "bold red"),
        (f"{rate_text(recompute)}/s recompute", "bold yellow" if recompute else ""),
        ", ",
        (f"{rate_text(swap)}/s swap", "bold yellow" if swap else ""),
        f"; {count_text(counters.preemptions)} in all; {count_text(rates.recomputed_tokens)} tok/s redone",
    ]
    sure = "sure" if sample.scheduler.cost_sure else "learning"
    faults = counters.policy_faults
    return [
        named_line("preempted", *lost),
        named_line(
            "cost model",
            f"{sure}, {percent_text(sample.scheduler.cost_error)} off; ",
            (f"{faults} policy fault{'' if faults == 1 else 's'}", "bold red" if faults else ""),
        ),
    ]


def named_line(name: str, *parts: str | tuple[str, str]) -> Text:
    return Text.assemble((f"{name:<{LABEL}}", "dim"), *parts)


def _bar(amounts: Sequence[float], whole: float, width: int, glyphs: Glyphs) -> list[tuple[str, str]]:
    cells = max(10, width - LABEL - 57)
    parts = bar_parts(amounts, whole, cells)
    drawn = [
        (glyph * part, style) for glyph, part, style in zip(glyphs.parts, parts, _PART_STYLES, strict=False) if part
    ]
    return [("[", "dim"), *drawn, (glyphs.rest * (cells - sum(parts)), "dim"), ("] ", "dim")]


def _legend(names: Sequence[str], between: str = ", ") -> list[str | tuple[str, str]]:
    """The names of a bar's parts, in their colours."""
    parts: list[str | tuple[str, str]] = []
    for name, style in zip(names, _PART_STYLES, strict=False):
        parts += [between, (name, style)] if parts else [(name, style)]
    return parts
