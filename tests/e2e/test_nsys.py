"""The daemon under the real Nsight Systems: what is read from its report is what the daemon has counted itself."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TextPrompt, TokenPrompt
from inflightd.clients.status import Counters
from inflightd.profiling.load import load_trace
from inflightd.profiling.nsys.export import export_report
from inflightd.profiling.nsys.reader import read_nsys
from inflightd.profiling.render.page import page
from inflightd.profiling.render.report_json import report_as_json
from inflightd.profiling.report.build import build_report
from inflightd.profiling.report.findings import Report, Totals
from inflightd.profiling.trace import Life, Step, Trace
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon

pytestmark = [
    pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed"),
    pytest.mark.timeout(600),
]

STREAMS, ANSWER_TOKENS = 16, 150
# 16 streams of up to 6 blocks: no more than seven of them fit, and at first they are swapped out when they do not.
SMALL_POOL = ("--kv-blocks", "40", "--max-batch-size", "32", "--set", "preemption=swap")
SECRET = "hunter2-in-the-environment"
TOLD = "correct horse battery staple"

# Field of `Totals` -> of `Counters`.
SAME = {
    "steps": "steps",
    "prefill_tokens": "prefilled_tokens",
    "decode_tokens": "decoded_tokens",
    "padding_tokens": "padding_tokens",
    "recomputed_tokens": "recomputed_tokens",
    "preemptions": "preemptions",
    "preemptions_by_swap": "swap_outs",
    "swapped_out_blocks": "swapped_out_blocks",
    "swapped_in_blocks": "swapped_in_blocks",
    "policy_swaps": "policy_swaps",
}


@dataclass(frozen=True)
class Run:
    """One life of a daemon under `nsys profile`."""

    counters: Counters  # its own, at the end
    export: Path  # of what nsys has seen
    trace: Trace  # read from that
    recording: Path  # what the flight recorder held
    recorded: Trace  # read from that
    nvtx: list[dict[str, object]]  # what was logged of NVTX


@contextlib.contextmanager
def running_under_nsys(*options: str, **settings: Any) -> Iterator[Daemon]:
    """As `running_daemon`.  On a busy machine nsys may give up on its agent before anything runs: then once more."""
    for last in (False, False, True):
        with contextlib.ExitStack() as stack:
            try:
                daemon = stack.enter_context(running_daemon(*options, **settings))
            except AssertionError as error:
                if last or "Local Endpoint is not available" not in str(error):
                    raise
                continue
            yield daemon
            return


def counted(counters: Counters, before: Counters | None = None) -> dict[str, int]:
    return {
        field: getattr(counters, name) - (0 if before is None else getattr(before, name))
        for field, name in SAME.items()
    }


def told(totals: Totals) -> Mapping[str, int]:
    return {field: value for field, value in dataclasses.asdict(totals).items() if field in SAME}


def essence(step: Step) -> tuple[object, ...]:
    """All of a step that no clock decides."""
    return (
        step.number, step.kind, step.prefill_tokens, step.decode_sequences, step.padding_tokens, step.recomputed_tokens,
        step.blocks_free, step.swapped_out_blocks, step.swapped_in_blocks, dict(step.waiting_by_reason),
        list(step.chunks), list(step.started), list(step.resumed),
        [(one.request, one.swapped, one.lost_tokens) for one in step.preempted],
    )  # fmt: skip


async def answered(client: AsyncClient, prompt: TokenPrompt | TextPrompt, tokens: int) -> None:
    options = GenerateOptions(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    async for _ in client.generate(prompt, options):
        pass


async def press(daemon: Daemon, *, text: str = "") -> tuple[Counters, Counters]:
    """The daemon's counters before and after a load that does not fit, with a policy swap in its midst.

    Short answers come first, so that the policy expects more of these and lets everybody in.
    """
    async with AsyncClient(daemon.target) as client, AsyncAdmin(f"unix:{daemon.admin}") as admin:
        before = (await admin.status()).counters
        await asyncio.gather(*(answered(client, TokenPrompt([5 + number, 6]), 2) for number in range(40)))
        if text:
            await answered(client, TextPrompt(text), 2)
        async with asyncio.timeout(200), asyncio.TaskGroup() as tasks:
            for number in range(STREAMS):
                prompt = TokenPrompt([7 + number] * (10 + 5 * number % 40))
                tasks.create_task(answered(client, prompt, ANSWER_TOKENS))
            async for sample in admin.watch(interval_ms=100):
                if sample.counters.swap_outs > before.swap_outs:
                    break
            await admin.swap("throughput-max", {"preemption": "recompute"})
        return before, (await admin.status()).counters


def take_recording(daemon: Daemon, to: Path) -> Path:
    async def take() -> None:
        async with AsyncAdmin(f"unix:{daemon.admin}") as admin:
            to.write_bytes(b"".join([piece async for piece in admin.take_trace()]))

    asyncio.run(take())
    return to


@pytest.fixture(scope="module", params=["scripted", pytest.param("model", marks=pytest.mark.model)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("nsys")
    engine: tuple[str, ...]
    if request.param == "model":
        engine = ("--model", str(request.getfixturevalue("model_path")), "--swap-memory", "4MiB")
    else:
        engine = ("--engine", "scripted", "--scripted-step-ms", "2", "--scripted-host-blocks", "10")
    report = folder / "run.nsys-rep"
    program = (
        *("nsys", "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", f"--output={report}"),
        *(INFLIGHTD, "serve"),
    )
    environment = {"SOME_API_KEY": SECRET}
    with running_under_nsys(*engine, *SMALL_POOL, program=program, environment=environment) as daemon:
        _, counters = asyncio.run(press(daemon, text=TOLD if request.param == "model" else ""))
        recording = take_recording(daemon, folder / "run.jsonl")
        nvtx = daemon.logged("nvtx")
        daemon.stop(timeout_s=180)  # the report is written then
    export = folder / "run.sqlite"
    export_report(report, export)
    return Run(counters, export, read_nsys(export), recording, load_trace(recording), nvtx)


def test_totals_are_the_daemons_own_counters(run: Run) -> None:
    counters = counted(run.counters)
    assert counters["preemptions"] > counters["preemptions_by_swap"] > 0, "both kinds have been forced"
    assert counters["policy_swaps"] == 1
    assert counters["swapped_in_blocks"] > 0
    assert told(build_report(run.trace).totals) == counters


def test_the_recorder_tells_the_same(run: Run) -> None:
    report = build_report(run.recorded)
    assert told(report.totals) == counted(run.counters)
    assert {name for name, (here, theirs) in report.counters.items() if here != theirs} == set()
    assert len(report.counters) == len(SAME)


def test_both_tell_the_same_of_every_step(run: Run) -> None:
    assert [essence(step) for step in run.trace.steps] == [essence(step) for step in run.recorded.steps]


def test_requests_are_followed_from_their_arrival_to_their_end(run: Run) -> None:
    spans = {life: [span for span in run.trace.lives if span.life is life] for life in Life}
    whole = {span.request: span for span in spans[Life.WHOLE]}
    assert len(whole) == len(spans[Life.WHOLE]) == len(run.recorded.requests)
    assert all(span.end_ns is not None for span in run.trace.lives)
    assert len(spans[Life.PREEMPTED]) == run.counters.preemptions
    for span in run.trace.lives:
        assert whole[span.request].start_ns <= span.start_ns


def test_domains_are_real_in_both_processes(run: Run) -> None:
    assert [line["domain"] for line in run.nvtx] == ["Domain", "Domain"]


def test_every_step_is_filled_and_nothing_was_left_out(run: Run) -> None:
    for step in run.trace.steps:
        edges = [edge for span in step.spans for edge in (span.start_ns, span.end_ns)]
        assert (edges[0], edges[-1]) == (step.start_ns, step.end_ns)
        assert edges[1:-1:2] == edges[2::2]
    assert len(run.trace.notes) == 1, run.trace.notes
    assert re.match("NVTX events: ", run.trace.notes[0])


def test_neither_prompts_nor_the_environment_are_in_what_is_shown(run: Run) -> None:
    assert SECRET.encode() in run.export.read_bytes(), "nsys itself keeps the environment, so there is what to leak"
    for trace in (run.trace, run.recorded):
        report = build_report(trace)
        shown = repr(trace) + repr(report) + json.dumps(report_as_json(report)) + page(report, trace)
        assert "decode" in shown
        assert SECRET not in shown
        assert TOLD not in shown
    recording = run.recording.read_text()
    assert '"step"' in recording
    assert SECRET not in recording
    assert TOLD not in recording


def test_a_window_of_a_daemon_launched_under_nsys(tmp_path: Path) -> None:
    options = ("--engine", "scripted", "--scripted-step-ms", "2", "--scripted-host-blocks", "10", *SMALL_POOL)
    with running_under_nsys(*options, "--nsys", "--trace-dir", str(tmp_path)) as daemon:
        asyncio.run(press_in_part(daemon))
        started = daemon.cli("profile", "start", "--name", "window")
        assert started.returncode == 0, started.stderr
        before, after = asyncio.run(press(daemon))
        stopped = daemon.cli("profile", "stop", timeout=180)
        assert stopped.returncode == 0, stopped.stderr
    report: Report = build_report(load_trace(tmp_path / "window.nsys-rep"))
    assert told(report.totals) == counted(after, before)
    assert report.totals.steps > 0


def test_a_window_that_cuts_into_steps_has_only_whole_ones(tmp_path: Path) -> None:
    options = ("--engine", "scripted", "--scripted-step-ms", "30", "--max-batch-size", "8")
    with running_under_nsys(*options, "--nsys", "--trace-dir", str(tmp_path)) as daemon:

        async def collect() -> None:
            async with AsyncClient(daemon.target) as client, AsyncAdmin(f"unix:{daemon.admin}") as admin:
                streams = [asyncio.create_task(answered(client, TokenPrompt([3 + n] * 9), 2000)) for n in range(12)]
                await admin.start_profile(name="window")
                before = (await admin.status()).counters.steps
                async for sample in admin.watch(interval_ms=100):
                    if sample.counters.steps > before + 20:
                        break
                await admin.stop_profile()
                for stream in streams:
                    stream.cancel()
                await asyncio.gather(*streams, return_exceptions=True)

        asyncio.run(collect())
        recorded = load_trace(take_recording(daemon, tmp_path / "run.jsonl"))
    trace = load_trace(tmp_path / "window.nsys-rep")
    numbers = [step.number for step in trace.steps]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(numbers) > 15
    # Of who waits for what only changes are told, and none came before the window.
    assert [essence(dataclasses.replace(step, waiting_by_reason={})) for step in trace.steps] == [
        essence(dataclasses.replace(step, waiting_by_reason={})) for step in recorded.steps if step.number in numbers
    ]
    assert any(note.startswith("steps left out, since the capture has only a part of them") for note in trace.notes)


async def press_in_part(daemon: Daemon) -> None:
    """Steps before the window, which it must not have."""
    async with AsyncClient(daemon.target) as client:
        await answered(client, TokenPrompt([1, 2, 3]), 50)
