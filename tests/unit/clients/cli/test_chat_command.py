"""`inflightd chat` against a stub daemon on a real socket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from click.testing import CliRunner

from inflightd.clients.cli.chat import chat
from inflightd.v1 import inference_pb2 as pb


def _turns(request: pb.GenerateRequest) -> list[tuple[str, str]]:
    return [(each.role, each.content) for each in request.chat.messages]


def test_the_whole_conversation_is_sent_each_time(daemon, tokens) -> None:
    daemon.messages = tokens("Hel", "lo")
    result = CliRunner().invoke(
        chat, ["--target", daemon.target, "--system", "be brief"], input="one\n\ntwo\n/exit\nnever\n"
    )
    assert result.exit_code == 0
    assert result.stdout == "Hello\nHello\n"
    assert _turns(daemon.requests[0]) == [("system", "be brief"), ("user", "one")]
    assert _turns(daemon.requests[1]) == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "Hello"),
        ("user", "two"),
    ]
    assert len(daemon.requests) == 2


def test_reset_forgets_all_but_the_system_message(daemon, tokens) -> None:
    daemon.messages = tokens("x")
    CliRunner().invoke(chat, ["--target", daemon.target, "--system", "s"], input="one\n/reset\ntwo\n")
    assert _turns(daemon.requests[-1]) == [("system", "s"), ("user", "two")]


def test_json_is_a_line_per_answer(daemon, tokens) -> None:
    daemon.messages = tokens("Hel", "lo", finish=pb.FINISH_REASON_STOP)
    result = CliRunner().invoke(chat, ["--target", daemon.target, "--json"], input="one\ntwo\n")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["content"], each["finish_reason"]) for each in answers] == [("Hello", "stop")] * 2
    assert answers[0]["usage"]["completion_tokens"] == 2


def test_a_refused_turn_leaves_the_conversation_as_it_was(daemon, tokens) -> None:
    daemon.find_fault()
    result = CliRunner().invoke(chat, ["--target", daemon.target], input="too long\nagain\n")
    assert result.exit_code == 0
    assert "INVALID_ARGUMENT" in result.stderr
    assert [_turns(each) for each in daemon.requests] == [[("user", "too long")], [("user", "again")]]


def test_nobody_listening_exits_69() -> None:
    assert CliRunner().invoke(chat, ["--target", "127.0.0.1:1"], input="hi\n").exit_code == 69


def test_ctrl_c_cancels_the_answer_and_not_the_program(daemon, tokens) -> None:
    daemon.messages, daemon.hangs = [pb.GenerateResponse(text="partial", token_ids=[1])], True
    code = "from inflightd.clients.cli.chat import chat; chat()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "--target", daemon.target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.read(7) == b"partial"
        process.send_signal(signal.SIGINT)
        assert daemon.cancelled.wait(5)
        daemon.messages, daemon.hangs = tokens("done"), False
        out, err = process.communicate(b"two\n/exit\n", timeout=10)
    assert process.returncode == 0, err
    assert out == b"\ndone\n"
    assert b"(cancelled)" in err
    assert _turns(daemon.requests[-1]) == [("user", "one"), ("assistant", "partial"), ("user", "two")]
