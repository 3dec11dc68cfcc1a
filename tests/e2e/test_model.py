"""The real model through the real daemon: the command line, texts, samples, stop strings and log probabilities."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import ChatMessage, ChatPrompt, GenerateOptions, TextPrompt, TokenPrompt
from inflightd.clients.results import Delta
from tests.reference.llama import ReferenceLlama
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"
PROMPT_IDS = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def daemon(model_path: Path) -> Iterator[Daemon]:
    options = ("--precision", "f32", "--kv-dtype", "f32", "--kv-blocks", "128", "--max-num-tokens", "256")
    with running_daemon("--model", str(model_path), *options) as daemon:
        yield daemon


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(daemon.target) as client:
        yield client


def lines(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


async def stream(client: AsyncClient, prompt: TextPrompt | TokenPrompt | ChatPrompt, **options: object) -> list[Delta]:
    return [delta async for delta in client.generate(prompt, GenerateOptions(**options))]  # type: ignore[arg-type]


def ids(deltas: list[Delta], sample: int = 0) -> list[int]:
    return [token for delta in deltas if delta.sample == sample for token in delta.token_ids]


def text(deltas: list[Delta], sample: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.sample == sample)


def test_the_command_line_streams_json_and_ends_with_reason_usage_and_timings(
    daemon: Daemon, reference: ReferenceLlama
) -> None:
    done = daemon.cli("generate", "--raw", "--temperature", "0", "--max-tokens", "24", "--json", PROMPT)
    assert done.returncode == 0, done.stderr
    *deltas, last = lines(done.stdout)
    tokens = [token for delta in deltas for token in delta["token_ids"]]  # type: ignore[attr-defined]
    assert tokens == reference.greedy_after(PROMPT_IDS, tokens)
    assert "".join(str(delta["text"]) for delta in deltas).startswith(" Paris")
    assert last["finish_reason"] == "length"
    usage, timings = last["usage"], last["timings"]
    assert isinstance(usage, dict)
    assert isinstance(timings, dict)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 24)
    assert 0 < timings["queued_ns"] <= timings["first_token_ns"] < timings["last_token_ns"]


def test_token_ids_and_text_are_the_same_request(daemon: Daemon) -> None:
    common = ("--temperature", "0", "--max-tokens", "12", "--json")
    by_text = daemon.cli("generate", "--raw", *common, PROMPT)
    by_ids = daemon.cli("generate", "--token-ids", ",".join(map(str, PROMPT_IDS)), *common)
    texts = ["".join(str(line.get("text", "")) for line in lines(done.stdout)) for done in (by_text, by_ids)]
    assert texts[0] == texts[1] != ""


def test_a_person_gets_the_answer_and_its_figures(daemon: Daemon) -> None:
    done = daemon.cli("generate", "--temperature", "0", "--max-tokens", "20", "What is the capital of France?")
    assert done.stdout.strip() == "The capital of France is Paris."
    assert "TTFT" in done.stderr
    assert "tokens/s" in done.stderr


async def test_the_chat_template_is_applied_to_messages_and_not_to_raw_text(client: AsyncClient) -> None:
    chat = ChatPrompt([ChatMessage("user", "Hi")])
    as_chat = await client.generate_once(chat, GenerateOptions(max_tokens=1, temperature=0))
    as_text = await client.generate_once(TextPrompt("Hi"), GenerateOptions(max_tokens=1, temperature=0))
    assert as_chat.usage is not None
    assert as_text.usage is not None
    assert as_chat.usage.prompt_tokens == len(await client.tokenize(chat)) > 20
    assert as_text.usage.prompt_tokens == 1


async def test_a_stop_string_that_spans_tokens_ends_the_text_before_it(client: AsyncClient) -> None:
    whole = await stream(client, TextPrompt(PROMPT), temperature=0, max_tokens=40)
    answer = text(whole)
    stop = answer[9:21]
    deltas = await stream(client, TextPrompt(PROMPT), temperature=0, max_tokens=40, stop=[stop])
    assert text(deltas) == answer[: answer.index(stop)]
    assert (deltas[-1].finish_reason, deltas[-1].matched_stop) == ("stop_string", stop)
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == len(ids(deltas)) < len(ids(whole))
    included = await stream(client, TextPrompt(PROMPT), temperature=0, max_tokens=40, stop=[stop], include_stop=True)
    assert text(included) == answer[: answer.index(stop) + len(stop)]


async def test_log_probabilities_describe_the_tokens_of_their_message(
    client: AsyncClient, reference: ReferenceLlama
) -> None:
    deltas = await stream(client, TextPrompt(PROMPT), temperature=0, max_tokens=10, logprobs=3)
    tokens = ids(deltas)
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    expected = reference.logprobs([*PROMPT_IDS, *tokens])[len(PROMPT_IDS) - 1 : -1]
    for token, entry, row in zip(tokens, entries, expected, strict=True):
        assert entry.token_id == entry.top[0].token_id == token
        assert entry.logprob == pytest.approx(row[token], abs=1e-3)
        assert [top.token_id for top in entry.top] == list((-row).argsort()[:3])


async def test_four_samples_differ_and_the_set_repeats(client: AsyncClient) -> None:
    """Case E13."""
    sets = []
    for _ in range(2):
        deltas = await stream(client, TextPrompt(PROMPT), temperature=1.0, seed=7, n=4, max_tokens=16)
        assert sorted(delta.sample for delta in deltas if delta.finish_reason) == [0, 1, 2, 3]
        sets.append([ids(deltas, sample) for sample in range(4)])
    assert sets[0] == sets[1]
    assert len({tuple(sample) for sample in sets[0]}) == 4


async def test_a_seed_gives_the_same_text_after_a_restart_and_no_seed_another_one(
    daemon: Daemon, client: AsyncClient
) -> None:
    """Case E14."""
    options = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True}
    seeded = ids(await stream(client, TextPrompt(PROMPT), seed=11, **options))
    unseeded = [ids(await stream(client, TextPrompt(PROMPT), **options)) for _ in range(2)]
    assert unseeded[0] != unseeded[1]
    pid = int(daemon.status()["engine"]["pid"])  # type: ignore[index]
    os.kill(pid, signal.SIGKILL)
    daemon.wait_until(lambda: daemon.status()["ready"] is True and daemon.status()["engine"]["pid"] != pid, 60)  # type: ignore[index]
    assert ids(await stream(client, TextPrompt(PROMPT), seed=11, **options)) == seeded


async def test_ctrl_c_in_generate_cancels_on_the_server(daemon: Daemon) -> None:
    process = await asyncio.create_subprocess_exec(
        *daemon.command("generate", "--raw", "--max-tokens", "2000", "--ignore-eos", "--json", PROMPT),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    for _ in range(3):
        await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    daemon.wait_until(lambda: daemon.status()["counters"]["in_flight"] == 0, 5)  # type: ignore[index]
    kv = daemon.status()["kv"]
    assert kv["blocks_free"] == kv["blocks_total"] == 128  # type: ignore[index]


async def test_32_streams_at_once_each_get_the_tokens_of_their_own_prompt(
    daemon: Daemon, client: AsyncClient, reference: ReferenceLlama
) -> None:
    prompts = [[(97 * number + 31 * k) % 40000 + 100 for k in range(2 + number % 9)] for number in range(32)]
    options = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    answers = await asyncio.gather(*(stream(client, TokenPrompt(prompt), **options) for prompt in prompts))
    for prompt, deltas in zip(prompts, answers, strict=True):
        tokens = ids(deltas)
        assert len(tokens) == 12
        short = reference.logits([*prompt, *tokens])[len(prompt) - 1 : -1]
        assert all(row.max() - row[token] < 1e-3 for row, token in zip(short, tokens, strict=True))
    kv = daemon.status()["kv"]
    assert kv["blocks_free"] == kv["blocks_total"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--kv-memory", "500GiB"), ("kv_memory = '500.00 GiB': ", "what helps: at most", "(u8)")),
        (("--kv-blocks", "4", "--max-sequence-tokens", "4096"), ("max_sequence_tokens = 4096: ", "kv_blocks = 128")),
        (
            ("--kv-blocks", "128", "--swap-memory", "500GiB"),
            ("swap_memory = '500.00 GiB': ", "what helps: swap_memory of at most", "swap_memory = 0"),
        ),
    ],
)
def test_a_pool_that_cannot_be_is_refused_before_the_load_with_what_would_help(
    model_path: Path, tmp_path: Path, option: tuple[str, ...], words: tuple[str, ...]
) -> None:
    common = ("--model", str(model_path), "--precision", "f32", "--listen", "127.0.0.1:0")
    command = [INFLIGHTD, "serve", *common, "--admin-socket", str(tmp_path / "admin.sock"), *option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78, done.stderr
    for word in words:
        assert word in done.stderr


def test_status_without_the_admin_socket_tells_health_model_and_limits(daemon: Daemon) -> None:
    done = daemon.cli("status", "--target", daemon.target, "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert "SERVING" in json.dumps(shown)
    assert '"max_sequence_tokens": 4096' in json.dumps(shown)


def test_chat_keeps_the_history(daemon: Daemon) -> None:
    done = daemon.cli(
        "chat", "--temperature", "0", "--max-tokens", "24", "--json", stdin="My name is Ada.\nWhat is my name?\n/exit\n"
    )
    assert done.returncode == 0, done.stderr
    assert "Ada" in done.stdout
