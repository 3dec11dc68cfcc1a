"""A trace as one picture, for a document: what the engine did, what its batches were made of, KV memory, and lost time.

Needs matplotlib, which inflightd does not install by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from inflightd.profiling.render.sections import headline
from inflightd.profiling.report.findings import Report
from inflightd.profiling.trace import Phase, Span, Trace
from inflightd.profiling.wording import duration, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS: Final = 800  # across the picture; each shows how its time divides
_COLOURS: Final = {
    "decode": "#2aa37a",
    "prefill": "#2b8cd0",
    "mixed": "#5a5fc7",
    Phase.SAMPLE: "#9bd5bf",
    Phase.SCHEDULE: "#f2c230",
    Phase.KV_SWAP: "#a05bb8",
    Phase.BOOKKEEPING: "#c9a66b",
    Phase.PUBLISH: "#e8871e",
    Phase.FRONT_BEHIND: "#cf3a3a",
    Phase.HELD: "#d86aa0",
    Phase.POLICY_SWAP: "#7a4b2a",
    Phase.LOAD: "#8f8578",
    Phase.IDLE: "#dde2e8",
}
_BAR: Final = "#e8871e"


class PlotsMissing(ModuleNotFoundError):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("a PNG needs matplotlib: pip install 'inflightd[plots]'", name="matplotlib")


def write_png(report: Report, trace: Trace, path: Path) -> None:
    """Draw into `path`.

    Raises `PlotsMissing`, and OSError if the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotsMissing from error
    figure = Figure(figsize=(12, 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(headline(report), fontsize=11, x=0.01, ha="left", wrap=True)
    rows = figure.subplots(4, 1, height_ratios=(1.1, 1.3, 1, 1.2))
    engine, batch, blocks, lost = rows
    _draw_engine(engine, trace)
    _draw_batches(batch, trace)
    _draw_blocks(blocks, trace)
    batch.sharex(engine)
    blocks.sharex(engine)
    blocks.set_xlabel("seconds since the trace began")
    _draw_lost(lost, report)
    # Without metadata equal traces give equal bytes.
    figure.savefig(path, format="png", dpi=110, metadata={"Software": None})


def covered(trace: Trace, bins: int) -> dict[str, npt.NDArray[np.float64]]:
    """What share of each of `bins` equal parts of the trace went on each phase, forwards by what they computed."""
    spans: dict[str, list[Span]] = {}
    for step in trace.steps:
        for span in step.spans:
            spans.setdefault(step.kind if span.phase is Phase.FORWARD else span.phase, []).append(span)
    for span in trace.between:
        spans.setdefault(span.phase, []).append(span)
    edges = np.linspace(trace.start_ns, max(trace.end_ns, trace.start_ns + 1), bins + 1)
    return {str(name): _shares(of, edges) for name, of in spans.items()}


def _shares(spans: list[Span], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """By the time covered up to each edge: a line that rises through every span and is level between them."""
    starts = np.array([span.start_ns for span in spans], dtype=np.float64)
    lengths = np.array([span.duration_ns for span in spans], dtype=np.float64)
    order = np.argsort(starts, kind="stable")
    starts, lengths = starts[order], lengths[order]
    ends, sums = starts + lengths, np.cumsum(lengths)
    times = np.stack((starts, ends), axis=1).ravel()
    until = np.stack((sums - lengths, sums), axis=1).ravel()
    shares: npt.NDArray[np.float64] = np.diff(np.interp(edges, times, until, left=0.0)) / (edges[1] - edges[0])
    return shares


def _draw_engine(axes: Axes, trace: Trace) -> None:
    shares = covered(trace, _BINS)
    names = [name for name in _COLOURS if name in shares]
    middles = (np.arange(_BINS) + 0.5) * (trace.end_ns - trace.start_ns) / 1e9 / _BINS
    if names:
        layers = [shares[name] for name in names]
        axes.stackplot(middles, layers, labels=names, colors=[_COLOURS[name] for name in names], step="mid")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, frameon=False)
    axes.set(ylim=(0, 1), ylabel="engine's time", yticks=[0, 0.5, 1], yticklabels=["0%", "50%", "100%"])
    axes.margins(x=0)


def _draw_batches(axes: Axes, trace: Trace) -> None:
    tokens = axes.twinx()
    decodes, prefills = _COLOURS["decode"], _COLOURS["prefill"]
    _draw_steps(axes, trace, [step.decode_sequences for step in trace.steps], decodes, np.maximum)
    _draw_steps(tokens, trace, [step.prefill_tokens for step in trace.steps], prefills, np.maximum)
    if not any(step.prefill_tokens for step in trace.steps):
        tokens.set(ylim=(0, 1), yticks=[0])
    axes.set_ylabel("decode sequences", color=decodes)
    tokens.set_ylabel("prefill tokens", color=prefills)


def _draw_steps(axes: Axes, trace: Trace, values: Sequence[float], colour: str, worst: np.ufunc) -> None:
    """A line of the values; of more than there is room for, the average, and the worst as a pale ground."""
    seconds = np.array([(step.start_ns - trace.start_ns) / 1e9 for step in trace.steps])
    line = ground = np.array(values, dtype=np.float64)
    if len(line) > _BINS:
        bins = np.floor(seconds / seconds[-1] * _BINS)
        firsts = np.flatnonzero(np.diff(bins, prepend=-1))
        line = np.add.reduceat(line, firsts) / np.diff(firsts, append=len(line))
        ground, seconds = worst.reduceat(ground, firsts), seconds[firsts]
    axes.step(seconds, line, where="post", color=colour, linewidth=1)
    axes.fill_between(seconds, ground, step="post", color=colour, alpha=0.2, linewidth=0)
    axes.set_ylim(bottom=0)


def _draw_blocks(axes: Axes, trace: Trace) -> None:
    free = [np.nan if step.blocks_free is None else step.blocks_free for step in trace.steps]
    _draw_steps(axes, trace, free, "#8250df", np.minimum)
    axes.set_ylabel("KV blocks free")
    lost = [(step.start_ns - trace.start_ns) / 1e9 for step in trace.steps if step.preempted]
    if lost:
        across = axes.get_xaxis_transform()
        axes.vlines(lost, 0, 0.12, transform=across, colors="#cf3a3a", linewidth=1, label="preemption")
    for swapped in trace.swaps:
        axes.axvline((swapped.at_ns - trace.start_ns) / 1e9, color="#7a4b2a", linewidth=1, linestyle="--")
    if lost:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, frameon=False)


def _draw_lost(axes: Axes, report: Report) -> None:
    """What the headline's cause is the first of."""
    shown = list(reversed(report.lost))
    bars = axes.barh([str(one.cause) for one in shown], [one.ns / 1e9 for one in shown], color=_BAR)
    axes.bar_label(bars, [f"{duration(one.ns)}, {share(one.share)}" for one in shown], padding=4, fontsize=8)
    axes.set_xlabel("seconds lost, by cause")
    axes.margins(x=0.12)
