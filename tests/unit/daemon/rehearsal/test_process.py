"""A rehearsal in its child process, whatever the policy does to it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from inflightd.daemon.core.snapshot import encode_snapshot, take_snapshot
from inflightd.daemon.errors import SwapRefused
from inflightd.daemon.rehearsal import process as process_module
from inflightd.daemon.rehearsal.messages import Job
from inflightd.daemon.rehearsal.process import RehearsalProcess, rehearse
from inflightd.schedulers.registry import build
from tests.support.loops import make_loop

pytestmark = pytest.mark.usefixtures("_faulty_plugins")


CURIOUS = """
import os
held = []
for fd in os.listdir("/proc/self/fd"):
    try:
        held.append(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass  # the listing's own
raise RuntimeError(held)
"""


def busy_snapshot() -> bytes:
    under_test = make_loop(build("throughput-max", {}))
    for number in range(20):
        under_test.submit(number, [number + 1] * 40, max_tokens=100)
    for _ in range(5):
        under_test.step()
    return encode_snapshot(take_snapshot(under_test.loop, 10**9))


def job(policy: str, **options: object) -> Job:
    return Job(policy=policy, options=options, snapshot=busy_snapshot(), plan_limit_ns=300_000_000)  # type: ignore[arg-type]


def test_a_good_policy_is_reported_with_what_it_is_and_how_it_did() -> None:
    report = RehearsalProcess(job("static-batch", slots="4")).report()
    assert (report.name, report.options["slots"]) == ("static-batch", 4)
    assert report.steps > 32
    assert report.summary
    assert "slots" in [option.name for option in report.described]
    assert report.source.endswith("static_batch.py")


@pytest.mark.parametrize(
    ("policy", "options", "rule", "words"),
    [
        ("nowhere", {}, "unknown", "installed: "),
        ("import-raises", {}, "import", "RuntimeError: not on this machine"),
        ("import-exits", {}, "import", "SystemExit: 4"),
        ("import-dies", {}, "crashed", "its process ended with status 5 while being imported"),
        ("no-policy", {}, "contract", "NoPolicy.Options"),
        ("faulty", {"way": "gently"}, "options", "must be one of"),
        ("faulty", {"at": "init", "way": "raises"}, "construct", "RuntimeError: told to; it wrote: my last words"),
        ("faulty", {"at": "init", "way": "exits"}, "construct", "SystemExit"),
        ("faulty", {"at": "init", "way": "segfault"}, "crashed", "was ended by signal 11 while being built"),
        ("faulty", {"way": "raises"}, "raised", "RuntimeError: told to; it wrote: my last words"),
        ("faulty", {"way": "dies"}, "crashed", "ended with status 3 while planning"),
        ("faulty", {"way": "spins"}, "stalled", "no plan within 300 ms"),
        ("faulty", {"way": "sleeps"}, "stalled", "no plan within 300 ms"),
        ("faulty", {"way": "plans-badly"}, "tokens", "1000000 tokens planned"),
    ],
)
def test_a_policy_that_fails_is_refused_with_the_rule_and_the_reason(
    policy: str, options: dict[str, object], rule: str, words: str
) -> None:
    with pytest.raises(SwapRefused) as caught:
        RehearsalProcess(job(policy, **options)).report()
    assert caught.value.rule == rule
    assert words in caught.value.detail


@pytest.mark.parametrize(
    ("policy", "options", "doing"),
    [
        ("import-hangs", {}, "being imported"),
        ("faulty", {"at": "init", "way": "sleeps"}, "being built"),
        ("faulty", {"at": "init", "way": "floods"}, "being built"),
    ],
)
def test_a_policy_that_hangs_is_killed_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, policy: str, options: dict[str, object], doing: str
) -> None:
    monkeypatch.setattr(process_module, "LIMIT_S", 1.5)
    process = RehearsalProcess(job(policy, **options))
    with pytest.raises(SwapRefused) as caught:
        process.report()
    assert caught.value.rule == "stalled"
    assert caught.value.detail.startswith(f"it was still {doing} after 1.5 s")
    assert len(caught.value.detail) < 2000
    assert process._process is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(process._process.pid, 0)


@pytest.mark.asyncio(loop_scope="function")
async def test_a_caller_that_is_cancelled_ends_the_process() -> None:
    task = asyncio.create_task(rehearse(job("import-hangs")))
    await asyncio.sleep(0.5)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.get_running_loop().shutdown_default_executor()  # waits for its thread
    assert time.monotonic() - began < 5, "it was waited for"


def test_the_process_holds_no_descriptor_of_ours(tmp_path: Path) -> None:
    (tmp_path / "curious.py").write_text(CURIOUS)
    held = os.open(tmp_path / "curious.py", os.O_RDONLY)
    os.set_inheritable(held, True)
    os.environ["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"
    try:
        with pytest.raises(SwapRefused) as caught:
            RehearsalProcess(job("curious:Policy")).report()
    finally:
        os.close(held)
    assert "memfd:inflightd-rehearsal" in caught.value.detail
    assert "curious.py" not in caught.value.detail
    assert "socket:" not in caught.value.detail


def test_a_class_is_rehearsed_by_its_module_and_told_by_its_name() -> None:
    report = RehearsalProcess(job("faulty_policies.planning:Faulty")).report()
    assert (report.name, report.options["way"]) == ("faulty", "none")
