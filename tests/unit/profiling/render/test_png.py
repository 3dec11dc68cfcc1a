"""The picture: that it is one, that it shows this trace, and what is said where it cannot be drawn."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from inflightd.profiling.render.png import PlotsMissing, covered, write_png
from inflightd.profiling.report.build import build_report
from inflightd.profiling.trace import Phase, Trace
from tests.support import reports, traces


@pytest.mark.parametrize("scene", ["preemption_storm", "policy_swap", "engine_restart", "nothing"])
def test_every_scene_is_drawn(scene: str, tmp_path: Path) -> None:
    trace = traces.trace_of(getattr(traces, scene)())
    write_png(build_report(trace), trace, tmp_path / "trace.png")
    content = (tmp_path / "trace.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (1320, 1045)


def test_another_trace_is_another_picture_and_the_same_one_the_same(tmp_path: Path) -> None:
    report = reports.full_report()
    storm, swap = traces.trace_of(traces.preemption_storm()), traces.trace_of(traces.policy_swap())
    for name, trace in (("a", storm), ("b", storm), ("c", swap)):
        write_png(report, trace, tmp_path / name)
    drawn = {name: (tmp_path / name).read_bytes() for name in "abc"}
    assert drawn["a"] == drawn["b"]
    assert drawn["a"] != drawn["c"]


def test_a_trace_of_many_steps_is_drawn_by_averages(tmp_path: Path) -> None:
    engine = traces.Engine(max_batch_size=4).serve(traces.asks(12, output_tokens=400))
    assert len(engine.steps) > 800
    trace = engine.trace()
    write_png(build_report(trace), trace, tmp_path / "trace.png")
    assert (tmp_path / "trace.png").stat().st_size > 10_000


def test_coverage_is_the_time_of_each_phase() -> None:
    trace = traces.trace_of(traces.engine_restart())
    shares = covered(trace, 50)
    bin_ns = (trace.end_ns - trace.start_ns) / 50
    load_ns = sum(span.duration_ns for span in trace.between if span.phase is Phase.LOAD)
    assert load_ns > 0
    assert shares[Phase.LOAD].sum() * bin_ns == pytest.approx(load_ns)
    decode_ns = sum(
        span.duration_ns
        for step in trace.steps
        if step.kind == "decode"
        for span in step.spans
        if span.phase is Phase.FORWARD
    )
    assert shares["decode"].sum() * bin_ns == pytest.approx(decode_ns)
    assert np.sum(list(shares.values()), axis=0).max() <= 1 + 1e-9
    assert shares[Phase.LOAD].max() == pytest.approx(1)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotsMissing, match=r"pip install 'inflightd\[plots\]'"):
        write_png(reports.full_report(), Trace("nsys", 0, 1, [], []), tmp_path / "trace.png")
    assert not (tmp_path / "trace.png").exists()
