"""A report as titled texts and tables: what the terminal and the page show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inflightd.profiling.report.findings import Percentiles, Report
from inflightd.profiling.wording import counted, duration, share

LITTLE: Final = 0.02  # of the time with work: whoever reads "top cause" would go after nothing
MOST_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where on the timeline a row belongs; one field is set."""

    span_ns: tuple[int, int] | None = None  # on the trace's own clock
    since_start_ns: int | None = None
    step: int | None = None
    victim: int | None = None  # a request: all its preemptions


@dataclass(frozen=True, slots=True)
class Row:
    cells: Sequence[str]
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A heading that begins with "<" is of a column of words, all others of numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    left_out: int = 0  # rows


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    title: str
    texts: Sequence[str] = ()
    tables: Sequence[Table] = field(default_factory=tuple)
    alarming: bool = False


def headline(report: Report) -> str:
    """The top cause in one sentence."""
    if not report.totals.steps:
        return "No step in this trace computed anything."
    if not report.lost:
        return "No time was lost that this trace could show."
    top = report.lost[0]
    told = f"{top.cause}, {share(top.share)} ({duration(top.ns)}). {_sentence(top.detail)}"
    return f"Little time was lost; most by {told}" if top.share < LITTLE else f"Top cause of lost time: {told}"


def time_split(report: Report) -> Sequence[tuple[str, int, float]]:
    """(name, nanoseconds, share of the whole) of busy, bubble and idle time, and of time nobody told of."""
    told = (("busy", report.busy_ns), ("bubble", report.bubble_ns), ("idle", report.idle_ns))
    return [(name, ns, ns / report.span_ns if report.span_ns else 0.0) for name, ns in told]


def sections(report: Report, most_rows: int = MOST_ROWS) -> Sequence[Section]:
    """Those that have something to say; of long tables the first `most_rows` rows, which are the worst."""
    every = (
        _lost(report),
        _bubbles(report, most_rows),
        _interference(report, most_rows),
        _preemptions(report, most_rows),
        _queue(report, most_rows),
        _swaps(report, most_rows),
        _kernels(report),
        _latency(report),
        _totals(report),
        _counters(report),
        Section("notes", "Notes", [_sentence(note) for note in report.notes]),
    )
    return [section for section in every if section.texts or section.tables]


def _lost(report: Report) -> Section:
    rows = [Row((str(lost.cause), duration(lost.ns), share(lost.share), lost.detail)) for lost in report.lost]
    tables = [Table("", ("<cause", "lost", "share", "<what"), rows)] if rows else []
    said = "Shares are of the time in which somebody was here." if rows else ""
    return Section("lost", "Lost time", [said] if said else [], tables)


def _bubbles(report: Report, most_rows: int) -> Section:
    rows = [
        Row(
            (
                str(bubble.cause),
                duration(bubble.total_ns),
                share(bubble.total_ns / report.span_ns if report.span_ns else 0.0),
                f"{bubble.count:,}",
                duration(bubble.longest_ns),
                _step(bubble.longest_step),
            ),
            Place(span_ns=(bubble.longest_at_ns, bubble.longest_at_ns + bubble.longest_ns)),
        )
        for bubble in report.bubbles
    ]
    headings = ("<cause", "total", "of the trace", "times", "longest", "at step")
    return Section("bubbles", "Time without computing, by cause", (), _tables("", headings, rows, most_rows))


def _interference(report: Report, most_rows: int) -> Section:
    found = report.interference
    if not found.mixed_steps:
        return Section("interference", "Prefill interference")
    if found.base_ns is None:
        text = (
            f"{counted(found.mixed_steps, 'step')} computed prompts beside decodes; there are too few decode-only "
            "steps to tell what that cost."
        )
    else:
        text = (
            f"{counted(found.mixed_steps, 'step')} computed prompts beside decodes and took {duration(found.added_ns)} "
            f"longer than the decodes alone would have (typically {duration(found.base_ns)} a step). The streams "
            f"waited {duration(found.waited_ns)} in all. An estimate."
        )
    prompts = [
        Row(
            (
                f"{by.request:,}",
                f"{by.tokens:,}",
                f"{by.steps:,}",
                duration(by.delay_ns),
                duration(by.worst_ns),
                f"{by.worst_step:,}",
                f"{by.decodes:,}",
            ),
            Place(step=by.worst_step),
        )
        for by in found.by_prefill
    ]
    streams = [
        Row((f"{of.request:,}", duration(of.delay_ns), f"{of.steps:,}", f"{of.worst_by_request:,}"))
        for of in found.by_decode
    ]
    heads = ("request", "tokens", "steps", "added", "worst step", "at step", "streams")
    tables = [
        *_tables("Prompts that held up others", heads, prompts, most_rows),
        *_tables("Streams that were held up", ("request", "waited", "steps", "most by request"), streams, most_rows),
    ]
    return Section("interference", "Prefill interference", [text], tables)


def _preemptions(report: Report, most_rows: int) -> Section:
    found = report.preemptions
    total = found.recompute + found.swap
    if not total and not found.recomputed_tokens:
        return Section("preemptions", "Preemptions")
    causes = ", ".join(f"{cause or 'not told'} {number:,}" for cause, number in found.by_cause.items())
    text = (
        f"{counted(total, 'preemption')}: {found.recompute:,} by recompute, {found.swap:,} by swap"
        f"{f' (cause: {causes})' if causes else ''}."
    )
    if found.recomputed_tokens:
        text += (
            f" {counted(found.recomputed_tokens, 'token')} computed again, {share(found.recomputed_fraction)} of all "
            f"prefill, about {duration(found.recompute_ns)}."
        )
    victims = [
        Row((f"{of.request:,}", f"{of.times:,}", f"{of.lost_tokens:,}"), Place(victim=of.request))
        for of in found.victims
    ]
    storms = [
        Row(
            (
                f"{storm.first_step:,} to {storm.last_step:,}",
                duration(storm.end_ns - storm.start_ns),
                f"{storm.preemptions:,}",
                f"{storm.requests:,}",
                f"{storm.lost_tokens:,}",
            ),
            Place(span_ns=(storm.start_ns, storm.end_ns)),
        )
        for storm in found.storms
    ]
    storm_heads = ("steps", "lasted", "preemptions", "requests", "lost tokens")
    tables = [
        *_tables("Storms", storm_heads, storms, most_rows),
        *_tables("Victims", ("request", "times", "lost tokens"), victims, most_rows),
    ]
    return Section("preemptions", "Preemptions", [text], tables, alarming=bool(storms))


def _queue(report: Report, most_rows: int) -> Section:
    found = report.queue
    if not found.requests and not found.by_reason:
        return Section("queue", "Queue waits")
    text = (
        f"{counted(found.requests, 'request')} began to run: waited {duration(found.mean_ns)} on average, "
        f"p50 {duration(found.p50_ns)}, p99 {duration(found.p99_ns)}, longest {duration(found.longest_ns)}."
    )
    whole_ns = sum(found.by_reason.values())
    worst_first = sorted(found.by_reason.items(), key=lambda item: -item[1])
    rows = [Row((reason, duration(ns), share(ns / whole_ns if whole_ns else 0.0))) for reason, ns in worst_first]
    tables = _tables("", ("<waited for", "over all sequences", "share"), rows, most_rows)
    return Section("queue", "Queue waits", [text], tables)


def _swaps(report: Report, most_rows: int) -> Section:
    rows = [
        Row((duration(at_ns), f"{generation:,}", name), Place(since_start_ns=at_ns))
        for at_ns, generation, name in report.swaps
    ]
    return Section(
        "swaps", "Policy swaps", (), _tables("", ("after", "generation", "<policy in charge"), rows, most_rows)
    )


def _kernels(report: Report) -> Section:
    found = report.kernels
    if found is None:
        return Section("kernels", "GPU")
    at = f" (step {found.worst_step:,})" if found.worst_step is not None else ""
    text = (
        f"Kernels ran for {duration(found.busy_ns)}. Without a kernel: {duration(found.idle_in_steps_ns)} inside "
        f"steps, {duration(found.idle_between_steps_ns)} between them; at worst {duration(found.worst_ns)} in one "
        f"step{at}."
    )
    place = Place(step=found.worst_step) if found.worst_step is not None else None
    row = Row((duration(found.busy_ns), duration(found.idle_in_steps_ns), duration(found.idle_between_steps_ns)), place)
    return Section("kernels", "GPU", [text], [Table("", ("kernels", "idle in steps", "idle between"), [row])])


def _latency(report: Report) -> Section:
    measured: tuple[tuple[str, Percentiles | None], ...] = (
        ("step", report.step_ns),
        ("time to first token", report.ttft_ns),
        ("between tokens", report.itl_ns),
    )
    rows = [
        Row((name, f"{of.count:,}", *(duration(ns) for ns in (of.p50_ns, of.p90_ns, of.p99_ns, of.max_ns))))
        for name, of in measured
        if of is not None
    ]
    tables = _tables("", ("<of", "number", "p50", "p90", "p99", "longest"), rows, len(rows))
    return Section("latency", "Durations", (), tables)


def _totals(report: Report) -> Section:
    of = report.totals
    text = (
        f"{counted(of.steps, 'step')} computed {of.prefill_tokens:,} prefill and {of.decode_tokens:,} decode tokens "
        f"({of.padding_tokens:,} rows of padding, {of.recomputed_tokens:,} tokens again); {of.preemptions:,} "
        f"preemptions, {of.preemptions_by_swap:,} of them by swap ({of.swapped_out_blocks:,} blocks out, "
        f"{of.swapped_in_blocks:,} in); {counted(of.policy_swaps, 'policy swap')}."
    )
    return Section("totals", "Counted", [text])


def _counters(report: Report) -> Section:
    if not report.counters:
        return Section("counters", "Counters compared")
    differ = {name: both for name, both in report.counters.items() if both[0] != both[1]}
    if not differ:
        return Section(
            "counters", "Counters compared", [f"All {len(report.counters)} equal the daemon's own counters."]
        )
    rows = [
        Row((name, f"{here:,}", f"{own:,}", f"{here - own:+,}" if here != own else "equal"))
        for name, (here, own) in report.counters.items()
    ]
    text = f"WARNING: {len(differ)} of {len(rows)} differ from the daemon's own counters: this trace is not complete."
    tables = [Table("", ("<counter", "this trace", "the daemon", "difference"), rows)]
    return Section("counters", "Counters compared", [text], tables, alarming=True)


def _tables(title: str, headings: Sequence[str], rows: Sequence[Row], most_rows: int) -> Sequence[Table]:
    """One table, or none if it would be empty."""
    return [Table(title, headings, rows[:most_rows], max(0, len(rows) - most_rows))] if rows else []


def _step(number: int | None) -> str:
    return f"{number:,}" if number is not None else "-"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
