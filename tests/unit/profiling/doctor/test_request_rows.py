"""The rows that read the records of requests: common beginnings, long prompts; and a full batch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inflightd.profiling.doctor.findings import How, Severity
from inflightd.profiling.records import ClassRecord, Recording, RequestRecord
from inflightd.schedulers.admission import TOKENS
from tests.support.diagnoses import config_lines, diagnose, reworded
from tests.support.traces import MS, START_NS, Ask, Engine, asks


def with_requests(recording: Recording, requests: Sequence[RequestRecord]) -> Recording:
    return Recording(recording.header, recording.steps, list(requests), recording.events)


def one_after_the_other(tokens: int, count: int = 20, **header: object) -> Recording:
    """Prompts of 600 tokens, of which `tokens` are computed; the common beginning has 512."""
    every = [Ask(number, tokens, 8, START_NS + number * 500 * MS) for number in range(1, count + 1)]
    recording = Engine(max_num_tokens=1024).serve(every).recording(**header)
    keys = [1, 2, 3]
    requests = [
        msgspec.structs.replace(request, prompt_tokens=600, cached_tokens=600 - tokens, prefix_keys=keys)
        for request in recording.requests
    ]
    return with_requests(recording, requests)


def test_a_prefix_cache_that_is_off_and_one_that_is_on() -> None:
    found = diagnose(one_after_the_other(600, prefix_cache=False))["prefix-reuse"]
    assert found.severity is Severity.FINDING
    assert (found.remedies[0].how, found.command) == (How.SET, "prefix_cache = true")
    assert "19 of 20 prompts begin like an earlier one, by up to 512 tokens or more" in found.evidence[0]
    assert "prefix-reuse" not in diagnose(one_after_the_other(88, prefix_cache=True))


def test_a_pool_too_small_to_keep_the_beginning() -> None:
    recording = one_after_the_other(600, blocks_total=60)
    steps = [
        msgspec.structs.replace(each, record=msgspec.structs.replace(each.record, blocks_free=4))
        for each in recording.steps
    ]
    found = diagnose(Recording(recording.header, steps, recording.requests, []))["prefix-reuse"]
    assert found.command.startswith("kv_blocks = ")
    assert int(config_lines(found.command)["kv_blocks"]) > 60
    assert "evicted" in found.cause


def test_a_cache_that_has_room_and_finds_nothing_is_a_matter_of_who_asks() -> None:
    found = diagnose(one_after_the_other(600))["prefix-reuse"]
    assert found.remedies[0].how is How.DO
    assert "tenant" in found.cause


def test_different_prompts_miss_nothing() -> None:
    recording = one_after_the_other(600, prefix_cache=False)
    different = [
        msgspec.structs.replace(request, prefix_keys=[3 * request.number + place for place in range(3)])
        for request in recording.requests
    ]
    assert not diagnose(with_requests(recording, different))


def test_prompts_that_differ_early_are_noted() -> None:
    recording = one_after_the_other(600)
    differing = [
        msgspec.structs.replace(request, prefix_keys=[1, 100 + request.number, 200 + request.number])
        for request in recording.requests
    ]
    found = diagnose(with_requests(recording, differing))
    assert list(found) == ["prefix-differs-early"]
    assert found["prefix-differs-early"].severity is Severity.NOTE


def of_lengths(lengths: Sequence[int], **header: object) -> Recording:
    """Each alone on the engine."""
    every = [Ask(number, tokens, 4, START_NS + number * 3000 * MS) for number, tokens in enumerate(lengths, 1)]
    return Engine(max_num_tokens=16384).serve(every).recording(**header)


LENGTHS = [100 * place for place in range(1, 11)] + [8000, 9000, 12000]


def test_a_first_token_that_waits_for_its_long_prompt_and_the_limit_that_is_advised() -> None:
    found = diagnose(of_lengths(LENGTHS))["prompt-length"]
    limit = int(config_lines(found.command)["classes.standard.max_prompt_tokens"])
    assert 6000 < limit < 6667  # a second of prefill
    assert "adds 150 us" in found.evidence[0]
    assert "prompt-length" not in diagnose(of_lengths([tokens for tokens in LENGTHS if tokens <= limit]))


def test_the_promise_of_the_class_is_the_measure() -> None:
    lengths = [tokens for tokens in LENGTHS if tokens < 2000]
    assert "prompt-length" not in diagnose(of_lengths(lengths))
    classes = [ClassRecord(name="standard", ttft_ns=100 * MS)]
    found = diagnose(of_lengths(lengths, classes=classes))["prompt-length"]
    assert int(config_lines(found.command)["classes.standard.max_prompt_tokens"]) < 667


def test_first_tokens_that_wait_in_the_queue_are_no_matter_of_length() -> None:
    recording = of_lengths(LENGTHS)
    queued = [
        msgspec.structs.replace(
            request,
            arrival_ns=request.arrival_ns - 9000 * MS,
        )
        for request in recording.requests
    ]
    assert "prompt-length" not in diagnose(with_requests(recording, queued))


def test_a_full_batch_whose_rows_cost_most_is_a_note_and_a_smaller_one_is_not() -> None:
    def run(size: int) -> Recording:
        crowd = asks(size, prompt_tokens=20, output_tokens=100, every_ns=20 * MS)
        return Engine(max_batch_size=size, fixed_ns=4 * MS, decode_ns=500_000).serve(crowd).recording()

    found = diagnose(run(32))["full-batch"]
    assert found.severity is Severity.NOTE
    fewer = int(config_lines(found.command)["max_batch_size"])
    assert fewer < 32
    assert "full-batch" not in diagnose(run(fewer))


def test_steps_that_are_full_of_prompts_and_the_size_that_is_advised() -> None:
    def run(tokens: int) -> Recording:
        crowd = asks(24, prompt_tokens=150, output_tokens=20)
        recording = Engine(max_num_tokens=tokens, max_batch_size=6).serve(crowd).recording(max_batch_size=32)
        # In this engine who waits for tokens waits for a slot.
        return reworded(recording, {"the batch is full": TOKENS})

    found = diagnose(run(32))["plateau"]
    assert "max_num_tokens is the limit" in found.title
    larger = int(config_lines(found.command)["max_num_tokens"])
    assert larger >= 64
    after = diagnose(run(larger)).get("plateau")
    assert after is None
