"""Bounds for a report, as a command line says them."""

from __future__ import annotations

import pytest

from inflightd.profiling.from_recording import trace_of
from inflightd.profiling.report.build import build_report
from inflightd.profiling.report.findings import Report
from inflightd.profiling.report.thresholds import MEASURES, ThresholdError, judge, parse_threshold
from inflightd.profiling.trace import Trace
from tests.support import traces


@pytest.fixture(scope="module")
def behind() -> Report:
    return build_report(trace_of(traces.front_behind()))


@pytest.fixture(scope="module")
def storm() -> Report:
    return build_report(trace_of(traces.preemption_storm()))


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("bubble>80%", True),
        ("bubble>90%", False),
        ("front-behind > 50 %", True),
        ("scheduling>5%", False),
        ("itl-p99>50ms", True),
        ("itl-p99>0.05s", True),
        ("itl-p99>900000us", False),
        ("ttft-p99>10s", False),
        ("queue-p99>=50060000ns", True),
        ("queue-p99>50060000ns", False),
        ("idle>0%", False),
        ("idle>=0%", True),
        ("preemptions>0", False),
    ],
)
def test_a_bound_is_met_or_not(behind: Report, text: str, met: bool) -> None:
    assert judge(behind, parse_threshold(text)).met is met


@pytest.mark.parametrize("text", ["preemptions>10", "recompute>50%", "kv-held>10%", "step-p99>5ms"])
def test_a_storm_is_seen(storm: Report, text: str) -> None:
    assert judge(storm, parse_threshold(text)).met


def test_a_verdict_tells_which_value_and_bound(behind: Report) -> None:
    assert str(judge(behind, parse_threshold("front-behind>10%"))) == "front-behind>10%: front-behind is 87.1%"
    assert str(judge(behind, parse_threshold("preemptions>=0"))) == "preemptions>=0: preemptions is 0"
    assert str(judge(behind, parse_threshold("step-p99>1ms"))).endswith("step-p99 is 44.2 ms")


def test_every_name_can_be_judged_whatever_the_report() -> None:
    empty = build_report(Trace("nsys", 0, 0, (), ()))
    for name, measure in MEASURES.items():
        verdict = judge(empty, parse_threshold(f"{name}>5{measure.unit}"))
        assert not verdict.met
    unjudged = judge(empty, parse_threshold("ttft-p99>5ms"))
    assert (unjudged.value, unjudged.met) == (None, False)
    assert "cannot be judged" in str(unjudged)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bubble", "'bubble' is not NAME>VALUE"),
        ("bubble<5%", "is not NAME>VALUE"),
        ("bubble>", "is not NAME>VALUE"),
        ("bubble>-5%", "is not NAME>VALUE"),
        ("bubble>5%%", "is not NAME>VALUE"),
        ("", "is not NAME>VALUE"),
        ("bubbel>5%", "no figure is called 'bubbel'; known: bubble, idle"),
        ("bubble>5ms", "bubble is a percentage (%), and '5ms' is not"),
        ("bubble>5", "bubble is a percentage (%), and '5' is not"),
        ("itl-p99>5", "itl-p99 is a time (us, ms or s), and '5' is not"),
        ("preemptions>5%", "preemptions is a number, and '5%' is not"),
    ],
)
def test_a_wrong_one_is_refused_by_the_part_that_is_wrong(text: str, part: str) -> None:
    with pytest.raises(ThresholdError) as refused:
        parse_threshold(text)
    assert part in str(refused.value)
