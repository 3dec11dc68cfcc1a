"""`inflightd generate` against a stub daemon on a real socket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from inflightd.clients.cli.generate import generate
from inflightd.v1 import inference_pb2 as pb


def _json_lines(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


def test_json_is_a_line_per_delta_and_one_at_the_end(daemon, tokens) -> None:
    daemon.messages = tokens("Hé", "\nllo")
    result = CliRunner().invoke(generate, ["--target", daemon.target, "--json", "hi"])
    assert result.exit_code == 0
    *deltas, last = _json_lines(result.stdout)
    assert [(each["text"], each["token_ids"]) for each in deltas] == [("Hé", [1]), ("\nllo", [2])]
    assert last["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["seed"] == 2**63  # a number, not the text protobuf's own JSON makes of it
    assert last["timings"] == {"queued_ns": 5, "first_token_ns": 6, "last_token_ns": 7, "preemptions": 0}
    assert last["request_id"] == "abc"


def test_text_goes_to_stdout_and_figures_to_stderr(daemon, tokens) -> None:
    daemon.messages = tokens("Hel", "lo")
    result = CliRunner().invoke(generate, ["--target", daemon.target, "hi"])
    assert result.stdout == "Hello\n"
    assert "TTFT" in result.stderr
    assert "tokens/s" in result.stderr
    assert "4 prompt + 2 output tokens" in result.stderr
    assert "finish length" in result.stderr


def test_samples_do_not_mix(daemon) -> None:
    daemon.messages = [
        pb.GenerateResponse(sample=1, text="B1 ", token_ids=[1]),
        pb.GenerateResponse(sample=0, text="A1 ", token_ids=[2]),
        pb.GenerateResponse(sample=1, text="B2", token_ids=[3], finish_reason="FINISH_REASON_STOP"),
        pb.GenerateResponse(sample=0, text="A2", token_ids=[4], finish_reason="FINISH_REASON_LENGTH"),
    ]
    result = CliRunner().invoke(generate, ["--target", daemon.target, "--n", "2", "hi"])
    assert result.stdout == "A1 A2\n--- sample 1 ---\nB1 B2\n"
    as_json = CliRunner().invoke(generate, ["--target", daemon.target, "--n", "2", "--json", "hi"])
    assert [each["finish_reason"] for each in _json_lines(as_json.stdout)[-1]["samples"]] == ["length", "stop"]


def test_logprobs_are_shown_if_asked_for(daemon) -> None:
    logprob = pb.TokenLogprobs(token_id=1, logprob=-0.5, top=[pb.TokenLogprob(token_id=1, logprob=-0.5)])
    daemon.messages = [pb.GenerateResponse(text="a", token_ids=[1], logprobs=[logprob])]
    result = CliRunner().invoke(generate, ["--target", daemon.target, "--logprobs", "1", "--json", "hi"])
    assert _json_lines(result.stdout)[0]["logprobs"] == [
        {"token_id": 1, "logprob": -0.5, "top": [{"token_id": 1, "logprob": -0.5}]}
    ]
    assert daemon.requests[-1].output.logprobs == 1


def test_the_options_have_their_fixed_names(daemon, tokens) -> None:
    daemon.messages = tokens("x")
    arguments = (
        "--max-tokens 5 --temperature 0 --seed 7 --token-ids 1,2,3 --top-k 4 --top-p 0.5 --min-p 0.1 --stop a --stop b"
        " --class fast --tenant t --deadline-ms 100 --ignore-eos --stop-token-ids 8,9 --min-tokens 1 --bad-word no"
        " --logit-bias 5=-1.5 --include-stop --keep-special-tokens --request-id r --json"
    )
    result = CliRunner().invoke(generate, ["--target", daemon.target, *arguments.split()])
    assert result.exit_code == 0, result.output
    (sent,) = daemon.requests
    assert list(sent.token_ids.ids) == [1, 2, 3]
    assert (sent.stopping.max_tokens, sent.stopping.min_tokens, sent.stopping.ignore_eos) == (5, 1, True)
    assert (list(sent.stopping.stop), list(sent.stopping.stop_token_ids)) == (["a", "b"], [8, 9])
    assert sent.sampling.HasField("temperature")
    assert (sent.sampling.temperature, sent.sampling.top_k, sent.sampling.seed) == (0.0, 4, 7)
    assert dict(sent.sampling.logit_bias) == {5: -1.5}
    assert sent.output.HasField("skip_special_tokens")
    assert (sent.service_class, sent.tenant, sent.deadline_ms, sent.request_id) == ("fast", "t", 100, "r")


@pytest.mark.parametrize(
    ("template", "flags", "kind"),
    [
        (True, [], "chat"),
        (False, [], "text"),
        (True, ["--raw"], "text"),
        (False, ["--chat"], "chat"),
        (False, ["--system", "be brief"], "chat"),
    ],
)
def test_a_prompt_is_a_chat_turn_where_the_model_has_a_template(daemon, tokens, template, flags, kind) -> None:
    daemon.messages, daemon.has_chat_template = tokens("x"), template
    CliRunner().invoke(generate, ["--target", daemon.target, *flags, "hi"])
    sent = daemon.requests[-1]
    assert sent.WhichOneof("prompt") == kind
    if "--system" in flags:
        assert [(each.role, each.content) for each in sent.chat.messages] == [("system", "be brief"), ("user", "hi")]


def test_a_dash_reads_standard_input(daemon, tokens) -> None:
    daemon.messages = tokens("x")
    CliRunner().invoke(generate, ["--target", daemon.target, "--raw", "-"], input="from a pipe\n")
    assert daemon.requests[-1].text == "from a pipe\n"


def test_a_server_error_exits_1_and_shows_the_fields(daemon) -> None:
    daemon.find_fault()
    result = CliRunner().invoke(generate, ["--target", daemon.target, "--raw", "hi"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "INVALID_ARGUMENT" in result.stderr
    assert "sampling.top_p: not in (0, 1]" in result.stderr


def test_with_json_an_error_is_an_object_for_the_script_that_reads(daemon) -> None:
    daemon.find_fault()
    result = CliRunner().invoke(generate, ["--target", daemon.target, "--raw", "--json", "hi"])
    assert result.exit_code == 1
    (error,) = _json_lines(result.stdout)
    assert (error["code"], error["target"], error["retry_after_s"]) == ("INVALID_ARGUMENT", daemon.target, None)
    assert error["fields"] == [{"field": "sampling.top_p", "description": "not in (0, 1]"}]
    daemon.overload()
    result = CliRunner().invoke(generate, ["--target", daemon.target, "--raw", "--json", "hi"])
    assert _json_lines(result.stdout)[0]["retry_after_s"] == 1.5


def test_an_overload_shows_when_to_try_again(daemon) -> None:
    daemon.overload()
    result = CliRunner().invoke(generate, ["--target", daemon.target, "--raw", "hi"])
    assert result.exit_code == 1
    assert "try again in 1.5 s" in result.stderr


def test_nobody_listening_exits_69() -> None:
    result = CliRunner().invoke(generate, ["--target", "127.0.0.1:1", "hi"])
    assert result.exit_code == 69
    assert "UNAVAILABLE from 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["hi", "--token-ids", "1"],
        ["--token-ids", "1,x"],
        ["--token-ids", "4294967296"],
        ["--token-ids", "1", "--chat"],
        ["hi", "--raw", "--system", "x"],
        ["hi", "--target", "nowhere"],
        ["hi", "--max-tokens", "-1"],
        ["hi", "--seed", str(2**64)],
        ["hi", "--logit-bias", "5"],
        ["hi", "--logit-bias", "-5=1"],
        ["--raw", "\udcff"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(generate, arguments).exit_code == 2


def test_the_environment_names_the_target(daemon, tokens) -> None:
    daemon.messages = tokens("x")
    result = CliRunner().invoke(generate, ["--raw", "hi"], env={"INFLIGHTD_TARGET": daemon.target})
    assert result.exit_code == 0


def test_ctrl_c_cancels_on_the_server_and_exits_130(daemon) -> None:
    daemon.messages, daemon.hangs = [pb.GenerateResponse(text="so far", token_ids=[1])], True
    code = "from inflightd.clients.cli.generate import generate; generate()"
    command = [sys.executable, "-c", code, "--target", daemon.target, "--raw", "hi"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(6) == b"so far"
        process.send_signal(signal.SIGINT)
        assert daemon.cancelled.wait(5)
        assert process.wait(10) == 130
        assert process.stdout.read() == b"\n"
        figures = process.stderr.read()
    assert b"TTFT" in figures
    assert b"Traceback" not in figures


def test_an_answer_cut_short_by_the_server_is_shown_before_the_error(daemon) -> None:
    daemon.messages, daemon.breaks = [pb.GenerateResponse(text="so far", token_ids=[1])], True
    result = CliRunner().invoke(generate, ["--target", daemon.target, "--raw", "--json", "hi"])
    assert result.exit_code == 69
    assert "UNAVAILABLE" in result.stderr
    delta, last, error = _json_lines(result.stdout)
    assert (delta["text"], last["finish_reason"]) == ("so far", None)
    assert (error["code"], error["error"]) == ("UNAVAILABLE", "draining")
