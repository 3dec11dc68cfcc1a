"""The page of a trace report in a real browser: it draws, zooms, moves and says the numbers of a step."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from inflightd.profiling.render.page import page
from inflightd.profiling.report.build import build_report
from inflightd.profiling.trace import Span, Step, Trace
from tests.support import traces
from tests.support.browser import CHROMIUM, Browser, chromium

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"), pytest.mark.timeout(240)]

Timed = TypeVar("Timed", Step, Span)

# How many different colours are on the first canvas.
COLOURS_DRAWN = """(() => {
  const canvas = document.querySelector("#lanes canvas");
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return new Set(pixels).size;
})()"""
CANVAS = "document.querySelector('#lanes canvas').toDataURL()"
LANES = """(() => { const box = document.querySelector("#lanes .u-over").getBoundingClientRect();
  return [box.left, box.top, box.width, box.height]; })()"""


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traces.trace_of(traces.preemption_storm())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def file(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "trace.html"
    path.write_text(page(build_report(trace), trace), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Browser]:
    """The page freshly loaded; in the end it must have loaded nothing else and complained of nothing."""
    browser.errors.clear()
    browser.requested.clear()
    browser.open(file)
    yield browser
    browser.settle()
    assert browser.errors == []
    assert browser.requested == [file.as_uri()]


def view(browser: Browser) -> tuple[float, float]:
    """What is in view, in milliseconds."""
    browser.settle()
    start, end = browser.evaluate(
        "(({from, to}) => [Number(from), Number(to)])(document.getElementById('range').dataset)"
    )
    return start, end


def place(browser: Browser, fraction: float) -> tuple[float, float]:
    """On the lane of the engine's phases, that far from its left."""
    left, top, width, _ = browser.evaluate(LANES)
    return left + fraction * width, top + 20


def details(browser: Browser) -> str:
    text: str = browser.evaluate("document.getElementById('details').innerText")
    return text


def test_it_has_every_step_and_draws_them(opened: Browser, trace: Trace) -> None:
    assert opened.evaluate("document.body.dataset.steps") == str(len(trace.steps))
    length_ms = (trace.end_ns - trace.start_ns) / 1e6
    assert view(opened) == pytest.approx((0, length_ms))
    assert opened.evaluate("document.querySelectorAll('canvas').length") == 5
    assert opened.evaluate(COLOURS_DRAWN) > 10
    legend = opened.evaluate("document.getElementById('legend').innerText")
    assert {"prefill", "decode", "mixed", "schedule", "sample", "bookkeeping", "publish"} <= set(legend.split())
    assert "idle" not in legend  # never in this trace


def test_the_wheel_zooms_about_the_pointer(opened: Browser) -> None:
    start, end = view(opened)
    before = opened.evaluate(CANVAS)
    opened.wheel(*place(opened, 0.25), -240)
    closer = view(opened)
    assert closer[1] - closer[0] < 0.8 * (end - start)
    at = start + 0.25 * (end - start)
    assert closer[0] + 0.25 * (closer[1] - closer[0]) == pytest.approx(at, abs=0.005 * (end - start))
    assert opened.evaluate(CANVAS) != before
    opened.wheel(*place(opened, 0.25), 2000)
    assert view(opened) == pytest.approx((start, end))


def test_dragging_marks_a_stretch_to_zoom_to_and_with_shift_moves(opened: Browser) -> None:
    _, end = view(opened)
    opened.drag(place(opened, 0.4), place(opened, 0.6))
    zoomed = view(opened)
    assert zoomed == pytest.approx((0.4 * end, 0.6 * end), abs=0.005 * end)
    opened.drag(place(opened, 0.5), place(opened, 0.25), modifiers=8)
    moved = view(opened)
    assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0])
    assert moved[0] - zoomed[0] == pytest.approx(0.25 * (zoomed[1] - zoomed[0]), rel=0.05)
    assert opened.evaluate("document.getElementById('details').hidden")


def test_buttons_and_keys_zoom_move_and_reset(opened: Browser) -> None:
    whole = view(opened)
    for action in ("closer", "closer", "right"):
        opened.evaluate(f"document.querySelector('[data-do={action}]').click()")
        opened.settle()
    start, end = view(opened)
    assert end - start == pytest.approx((whole[1] - whole[0]) / 4)
    assert start == pytest.approx(whole[1] * (0.375 + 0.125))
    for key, expected in (("-", whole[1] / 2), ("+", whole[1] / 4), ("0", whole[1])):
        opened.key(key)
        after = view(opened)
        assert after[1] - after[0] == pytest.approx(expected), key


def test_a_click_on_a_step_says_its_numbers(opened: Browser, trace: Trace) -> None:
    step = next(
        step
        for step in trace.steps
        if step.kind == "mixed" and step.resumed and not step.preempted and (step.blocks_free or 0) > 0
    )
    whole_ns = trace.end_ns - trace.start_ns
    opened.click(*place(opened, ((step.start_ns + step.end_ns) / 2 - trace.start_ns) / whole_ns))
    said = details(opened)
    lines = [line.split("\t") for line in said.splitlines()]
    assert said.startswith(f"Step {step.number}, mixed")
    for line in (
        ["prefill tokens", f"{step.prefill_tokens}"],
        ["decode sequences", f"{step.decode_sequences}"],
        ["KV blocks free", f"{step.blocks_free}"],
        ["waiting", f"{step.waiting}"],
        ["ran again", ", ".join(map(str, step.resumed))],
        ["prompt chunks", ", ".join(f"{chunk.request} ({chunk.tokens} tokens)" for chunk in step.chunks)],
        ["waiting for", ", ".join(f"{why}: {many}" for why, many in step.waiting_by_reason.items())],
    ):
        assert line in lines, line
    opened.evaluate("document.querySelector('#details button[title=\"the next step\"]').click()")
    assert details(opened).startswith(f"Step {step.number + 1},")


def test_a_preemption_in_a_table_leads_to_it(opened: Browser, trace: Trace) -> None:
    # A victim that was preempted once.
    rows = "[...[...document.querySelectorAll('#preemptions table')].at(-1).querySelectorAll('tr[data-from]')]"
    row = f"{rows}.find(row => row.cells[1].innerText === '1')"
    request = int(opened.evaluate(f"{row}.cells[0].innerText"))
    (step,) = [step for step in trace.steps if any(one.request == request for one in step.preempted)]
    opened.evaluate(f"{row}.click()")
    start, end = view(opened)
    assert start < (step.start_ns - trace.start_ns) / 1e6 < (step.end_ns - trace.start_ns) / 1e6 < end
    assert end - start < 5 * step.duration_ns / 1e6
    said = details(opened)
    assert said.startswith(f"Step {step.number},")
    assert f"{request} (by recompute" in said


def test_a_bubble_in_a_table_leads_to_it(opened: Browser, trace: Trace) -> None:
    bubble = build_report(trace).bubbles[0]
    opened.evaluate("document.querySelector('#bubbles tr[data-from]').click()")
    start, end = view(opened)
    at = (bubble.longest_at_ns - trace.start_ns) / 1e6
    assert start <= at < at + bubble.longest_ns / 1e6 <= end
    assert end - start < 10 * bubble.longest_ns / 1e6


def test_a_step_is_found_by_its_number(opened: Browser, trace: Trace) -> None:
    step = trace.steps[200]
    opened.evaluate(
        f"(form => {{ form.elements.step.value = '{step.number}'; form.requestSubmit(); }})(document.forms.go)"
    )
    start, end = view(opened)
    assert start < (step.start_ns - trace.start_ns) / 1e6 < (step.end_ns - trace.start_ns) / 1e6 < end
    assert details(opened).startswith(f"Step {step.number},")


def test_it_is_dark_where_the_system_is_and_the_button_changes_that(opened: Browser, file: Path) -> None:
    def ground() -> list[int]:
        colour: str = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        return [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]

    light = opened.evaluate(CANVAS)
    assert min(ground()) > 200
    opened.open(file, dark=True)
    opened.requested.pop()
    assert max(ground()) < 50
    assert opened.evaluate(CANVAS) != light
    opened.evaluate("document.getElementById('theme').click()")
    opened.settle()
    assert min(ground()) > 200
    assert opened.evaluate(CANVAS) == light


def test_it_fits_a_narrow_window(opened: Browser, file: Path) -> None:
    opened.open(file, width=480)
    opened.requested.pop()
    assert opened.evaluate("document.documentElement.scrollWidth") <= 480


def test_a_name_without_end_is_folded(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    report = build_report(trace)
    lost = dataclasses.replace(report.lost[0], detail="headline" * 500)
    path = tmp_path / "long.html"
    path.write_text(page(dataclasses.replace(report, lost=[lost], notes=["note" * 1000]), trace), encoding="utf-8")
    browser.open(path, width=480)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 480


def moved(timed: Timed, by_ns: int) -> Timed:
    return dataclasses.replace(timed, start_ns=timed.start_ns + by_ns, end_ns=timed.end_ns + by_ns)


def test_a_hundred_thousand_steps_can_be_zoomed(browser: Browser, tmp_path: Path) -> None:
    """The same steps over and over: what counts is how many they are."""
    scene = traces.trace_of(traces.preemption_storm())
    length_ns = scene.end_ns - scene.start_ns
    rounds = 100_000 // len(scene.steps) + 1
    steps: list[Step] = []
    between: list[Span] = []
    for number in range(rounds):
        shift_ns = number * length_ns
        between += [moved(span, shift_ns) for span in scene.between]
        for step in scene.steps:
            spans = [moved(span, shift_ns) for span in step.spans]
            steps.append(dataclasses.replace(moved(step, shift_ns), number=len(steps) + 1, spans=spans))
    end_ns = scene.start_ns + rounds * length_ns
    long = dataclasses.replace(scene, steps=steps[:100_000], between=between, lives=(), end_ns=end_ns)
    report = build_report(scene)
    path = tmp_path / "long.html"
    path.write_text(page(report, long), encoding="utf-8")
    assert path.stat().st_size < 12_000_000
    browser.errors.clear()
    browser.open(path)
    assert browser.evaluate("document.body.dataset.steps") == "100000"
    for _ in range(12):
        browser.wheel(*place(browser, 0.5), -240)
    start, end = view(browser)
    assert end - start < 0.01 * rounds * length_ns / 1e6
    browser.click(*place(browser, 0.5))
    assert details(browser).startswith("Step ")
    assert browser.errors == []


def test_a_trace_of_nothing_draws_too(browser: Browser, tmp_path: Path) -> None:
    trace = traces.trace_of(traces.nothing())
    path = tmp_path / "nothing.html"
    path.write_text(page(build_report(trace), trace), encoding="utf-8")
    browser.errors.clear()
    browser.open(path)
    assert browser.evaluate("document.body.dataset.steps") == "0"
    assert base64.b64decode(browser.screenshot()).startswith(b"\x89PNG")
    assert browser.errors == []


def test_what_is_put_into_the_page_does_not_run(opened: Browser) -> None:
    """The content security policy is in force, and nothing can be fetched."""
    opened.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert opened.evaluate("window.ran") is None
    assert opened.evaluate("fetch('data:text/plain,a').then(() => 'fetched', () => 'refused')") == "refused"
    opened.settle()
    assert any("Content Security Policy" in error for error in opened.errors)
    opened.errors.clear()
