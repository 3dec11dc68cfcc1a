"""The page as text; what it does in a browser is tested with one."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from inflightd.profiling.render.page import page
from inflightd.profiling.report.build import build_report
from inflightd.profiling.trace import Trace
from tests.support import reports, traces


class Outline(HTMLParser):
    """Elements, cells of tables as rows, and where a row leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.places: dict[tuple[str, ...], dict[str, str | None]] = {}
        self._place: dict[str, str | None] = {}
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
            self._place = dict(attrs)
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False
        elif tag == "tr":
            self.places[tuple(self.rows[-1])] = self._place

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traces.trace_of(traces.preemption_storm())


def test_the_findings_are_there_as_in_the_terminal(trace: Trace) -> None:
    outline = Outline(page(reports.full_report(), trace))
    for row in (
        ["front behind", "500 ms", "25%", "11", "210 ms", "312"],
        ["41", "1,500", "3", "66.0 ms", "61.0 ms", "314", "8"],
        ["315 to 335", "70.0 ms", "31", "6", "2,929"],
        [reports.HOSTILE, "999 ms", "95%"],
        ["preemptions", "5,106", "5,113", "-7"],
    ):
        assert row in outline.rows, row


def test_names_cannot_become_part_of_the_page(trace: Trace) -> None:
    plain, hostile = page(build_report(trace), trace), page(reports.full_report(), trace)
    assert reports.HOSTILE not in hostile
    assert hostile.count("</script>") == plain.count("</script>") == 2
    assert "b" not in Outline(hostile).tags


def test_nothing_is_loaded_and_the_page_forbids_it(trace: Trace) -> None:
    text = page(build_report(trace), trace)
    outline = Outline(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "audio", "video"} & set(outline.tags)
    assert not [
        name for name, _ in outline.attributes if name in ("src", "href", "style", "srcset") or name[:2] == "on"
    ]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert set(rules) == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    assert all(re.fullmatch(r"'none'|'sha256-[A-Za-z0-9+/=]+'", rule) for rule in rules.values())


def test_uplot_brings_its_licence(trace: Trace) -> None:
    text = page(build_report(trace), trace)
    assert "Copyright (c) 2022 Leon Sorokin" in text
    assert "this permission notice shall be included" in text


def test_rows_lead_to_their_place(trace: Trace) -> None:
    report = build_report(trace)
    outline = Outline(page(report, trace))
    bubble = report.bubbles[0]
    (place,) = [at for row, at in outline.places.items() if row[0] == bubble.cause and len(row) == 6]
    assert float(place["data-from"] or "") == pytest.approx((bubble.longest_at_ns - trace.start_ns) / 1e6)
    victim = report.preemptions.victims[0]
    times = [step for step in trace.steps if any(one.request == victim.request for one in step.preempted)]
    row = (f"{victim.request}", f"{victim.times}", f"{victim.lost_tokens}")
    place = outline.places[row]
    assert float(place["data-from"] or "") == pytest.approx((times[0].start_ns - trace.start_ns) / 1e6)
    assert float(place["data-to"] or "") == pytest.approx((times[-1].end_ns - trace.start_ns) / 1e6)
    assert float(place["data-at"] or "") == pytest.approx((times[-1].start_ns - trace.start_ns) / 1e6)


def test_a_policy_swap_leads_to_the_steps_around_it() -> None:
    trace = traces.trace_of(traces.policy_swap())
    outline = Outline(page(build_report(trace), trace))
    (place,) = [at for row, at in outline.places.items() if row[-1] == "latency-guarantee"]
    before, after = float(place["data-from"] or ""), float(place["data-to"] or "")
    assert before < float(place["data-at"] or "") < after


def test_what_is_left_out_is_said_and_has_no_link(trace: Trace) -> None:
    report = build_report(trace)
    whole, cut = page(report, trace), page(report, trace, most_rows=400)
    assert "left out" not in whole
    (said,) = re.findall(r"the timeline draws the last (\d+) steps only, (\d+) before them are left out", cut)
    assert sum(map(int, said)) == len(trace.steps)
    assert len(cut) < len(whole)
    assert cut.count("data-from") < whole.count("data-from")


def test_a_trace_of_nothing_has_a_page() -> None:
    trace = traces.trace_of(traces.nothing())
    assert "No step in this trace computed anything." in page(build_report(trace), trace)
