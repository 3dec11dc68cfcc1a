"""The commands as shells start them: pipes that end, no standard input or output, bytes that are no text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inflightd.profiling.recording_file import save_recording
from inflightd.v1 import inference_pb2 as pb
from tests.support import traces

GENERATE = "from inflightd.clients.cli.generate import generate; generate()"
CHAT = "from inflightd.clients.cli.chat import chat; chat()"


def run(code: str, *arguments: str | bytes, shell: str = "", **settings) -> subprocess.CompletedProcess[bytes]:
    """The command; `shell` is what a shell would have after it, such as ">&-"."""
    command = [sys.executable, "-c", code, *arguments]
    if shell:
        command = ["/bin/sh", "-c", f'"$@" {shell}', "sh", *command]
    return subprocess.run(command, capture_output=True, timeout=20, check=False, **settings)


def test_a_reader_that_has_enough_ends_the_program_and_cancels_the_request(daemon) -> None:
    daemon.messages, daemon.hangs = [pb.GenerateResponse(text="x" * 1000, token_ids=[1])] * 400, True
    for flags in ((), ("--json",)):
        daemon.cancelled.clear()
        done = run(GENERATE, "--target", daemon.target, "--raw", "hi", *flags, shell="| head -c 10")
        assert (len(done.stdout), done.stderr) == (10, b"")
        assert daemon.cancelled.wait(5)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_without_standard_output_a_command_does_its_work(daemon, tokens, flags) -> None:
    daemon.messages = tokens("x")
    done = run(GENERATE, "--target", daemon.target, "--raw", "hi", *flags, shell=">&-")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert len(daemon.requests) == 1


def test_without_standard_input_there_is_no_prompt_and_no_conversation(daemon) -> None:
    done = run(GENERATE, "--target", daemon.target, "--raw", "-", shell="<&-")
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert run(CHAT, "--target", daemon.target, shell="<&-").returncode == 0


@pytest.mark.parametrize("option", ["--stop", "--system", "--model", "--request-id", "--tenant"])
def test_an_argument_that_is_not_utf8_is_wrong_usage(daemon, tokens, option) -> None:
    daemon.messages = tokens("x")
    done = run(GENERATE, "--target", daemon.target, "--chat", "hi", option, b"\xff")
    assert done.returncode == 2
    assert b"not UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_line_that_is_not_utf8_does_not_end_the_conversation(daemon, tokens) -> None:
    daemon.messages = tokens("x")
    for errors in ("strict", "surrogateescape"):  # as the locale has it
        environment = {**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"}
        done = run(CHAT, "--target", daemon.target, input=b"a\n\xff\nb\n", env=environment)
        assert (done.returncode, done.stdout.count(b"x\n")) == (0, 2)
        assert b"not UTF-8" in done.stderr
    assert run(CHAT, "--target", daemon.target, "--system", b"\xff", input=b"a\n").returncode == 2


def test_a_terminal_with_fewer_characters_shows_the_others_by_number(daemon, tokens) -> None:
    daemon.messages = tokens("é", "中")
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = run(GENERATE, "--target", daemon.target, "--raw", "hi", env=environment)
    assert (done.returncode, done.stdout) == (0, b"\xe9\\u4e2d\n")
    lines = run(GENERATE, "--target", daemon.target, "--raw", "hi", "--json", env=environment).stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines[:2]] == ["é", "中"]


def test_an_error_in_a_conversation_is_in_the_line_of_its_answer(daemon) -> None:
    daemon.find_fault()
    done = run(CHAT, "--target", daemon.target, "--json", input=b"a\nb\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["error"]["code"] for each in answers] == ["INVALID_ARGUMENT"] * 2
    assert run(CHAT, "--target", daemon.target, input=b"a\n").stdout == b""


@pytest.mark.parametrize(
    "arguments", [("version",), ("trace", "report", "FILE"), ("trace", "report", "FILE", "--json")]
)
def test_a_full_disk_is_one_line_and_a_status_of_its_own(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    save_recording(traces.healthy(), tmp_path / "a.jsonl")
    given = [str(tmp_path / "a.jsonl") if each == "FILE" else each for each in arguments]
    done = run("from inflightd.clients.cli.group import main; main()", *given, shell=">/dev/full")
    assert (done.returncode, done.stderr) == (74, b"Error: the output: No space left on device\n")
