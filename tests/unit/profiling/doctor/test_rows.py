"""Each row on runs of a modelled engine: said where it is so, and not said once its advice has been followed."""

from __future__ import annotations

import pytest

from inflightd.profiling.doctor.findings import Finding, How, Severity
from inflightd.profiling.records import ClassRecord, Recording
from inflightd.schedulers.admission import BLOCKS, SLOTS
from inflightd.schedulers.fit import RESERVED
from inflightd.schedulers.static_batch import BATCH_CLOSED
from tests.support.diagnoses import config_lines, diagnose, policy_of, reworded
from tests.support.traces import (
    MS,
    START_NS,
    Ask,
    Engine,
    asks,
    front_behind,
    healthy,
    nothing,
    preemption_storm,
    slow_publish,
    slow_schedule,
    static_batch,
)

# The engine's words, and those of the policies.
REASONS = {
    "its batch has not ended": BATCH_CLOSED,
    "no free blocks for the whole prompt": BLOCKS,
    "the batch is full": SLOTS,
}


def examined(recording: Recording) -> dict[str, Finding]:
    return diagnose(reworded(recording, REASONS))


def mixed() -> list[Ask]:
    """Outputs of very different lengths."""
    return [Ask(number, 40, 200 if number % 8 == 0 else 12, START_NS + number * MS) for number in range(1, 33)]


@pytest.mark.parametrize("recording", [healthy(), nothing()], ids=["healthy", "nothing"])
def test_nothing_is_found_where_nothing_is_wrong(recording: Recording) -> None:
    assert examined(recording) == {}


def test_a_static_batch_and_in_flight_batching_in_its_place() -> None:
    found = examined(static_batch())["static-batch"]
    assert found.severity is Severity.FINDING
    assert found.command == "inflightd scheduler use throughput-max"
    assert "padding" in found.evidence[0]
    assert any("closed" in sentence for sentence in found.evidence)
    assert "static-batch" not in examined(Engine(max_batch_size=8).serve(mixed()).recording())


def test_a_batch_size_that_holds_the_load_down_and_the_one_that_is_advised() -> None:
    crowd = asks(60, prompt_tokens=20, output_tokens=60)
    found = examined(Engine(max_batch_size=8, blocks_total=4096).serve(crowd).recording())["plateau"]
    assert "max_batch_size is the limit" in found.title
    assert "load of about 8" in found.title
    values = config_lines(found.command)
    assert values == {"max_batch_size": "64"}
    crowd = asks(60, prompt_tokens=20, output_tokens=60)
    after = Engine(max_batch_size=int(values["max_batch_size"])).serve(crowd).recording()
    assert "plateau" not in examined(after)


def test_a_larger_batch_is_not_advised_where_rows_cost_what_they_bring() -> None:
    """Case: an engine that computes one row after the other."""
    engine = Engine(max_batch_size=8, fixed_ns=100_000, decode_ns=5 * MS)
    assert "plateau" not in examined(engine.serve(asks(40, prompt_tokens=20, output_tokens=60)).recording())


def test_tokens_that_rise_by_load_are_in_the_evidence() -> None:
    quiet = asks(4, prompt_tokens=20, output_tokens=100)
    crowd = [Ask(10 + place, 20, 60, START_NS + 3000 * MS) for place in range(40)]
    found = examined(Engine(max_batch_size=8).serve([*quiet, *crowd]).recording())["plateau"]
    assert any(sentence.startswith("Tokens/s by load") and "3 to 4: " in sentence for sentence in found.evidence)


def test_a_pool_that_holds_few_and_the_blocks_that_are_advised() -> None:
    def run(blocks: int) -> dict[str, Finding]:
        crowd = asks(32, prompt_tokens=60, output_tokens=20)
        return examined(Engine(max_batch_size=32, blocks_total=blocks).serve(crowd).recording())

    found = run(45)
    budget, plateau = found["kv-budget"], found["plateau"]
    assert "the KV pool is the limit" in plateau.title
    assert "max_batch_size allows 32" in budget.evidence[0]
    assert "45 blocks of 16 tokens = 720 tokens; at 2,048 bytes a token" in budget.evidence[1]
    assert "1.41 MiB" in budget.evidence[1]
    assert any("such fit" in sentence for sentence in budget.evidence)
    assert budget.remedies[1].command == 'kv_dtype = "u8"'
    for advice in (budget, plateau):
        after = run(int(config_lines(advice.command)["kv_blocks"]))
        assert not {"kv-budget", "plateau"} & after.keys()


def test_reservations_that_leave_the_pool_empty_are_answered_with_the_expected_peak() -> None:
    crowd = asks(48, prompt_tokens=20, output_tokens=20)
    recording = reworded(
        Engine(max_batch_size=6, blocks_total=60).serve(crowd).recording(max_batch_size=32),
        {"the batch is full": RESERVED},
    )
    found = diagnose(recording)["kv-budget"]
    assert found.command == "inflightd scheduler use conservative-admission --set mode=future-peak"


def long_prompts(tokens: int = 1200) -> list[Ask]:
    streams = asks(8, prompt_tokens=20, output_tokens=300)
    return [*streams, *(Ask(100 + place, tokens, 8, START_NS + (200 + 400 * place) * MS) for place in range(4))]


def test_long_prompts_that_block_streams_and_the_chunks_that_are_advised() -> None:
    found = examined(Engine(max_num_tokens=2048).serve(long_prompts()).recording())["prefill-spikes"]
    name, options = policy_of(found.command)
    assert name == "latency-guarantee"
    target_ms, chunk_tokens = float(options["itl_ms"]), int(options["chunk_tokens"])
    assert any("1,200 prompt tokens" in sentence for sentence in found.evidence)
    # A step of the advised chunk keeps the advised target on this engine.
    assert 5 + 0.15 * chunk_tokens + 0.1 * 8 < target_ms
    after = (
        Engine(max_num_tokens=chunk_tokens)
        .serve(long_prompts())
        .recording(policy=name, policy_options={"itl_ms": target_ms})
    )
    assert "prefill-spikes" not in examined(after)


def test_a_promised_gap_is_the_target() -> None:
    classes = [ClassRecord(name="standard", itl_ns=30 * MS)]
    engine = Engine(max_num_tokens=512).serve(long_prompts(400))
    assert "prefill-spikes" not in examined(engine.recording())  # 65 ms: nobody has promised less
    found = examined(engine.recording(classes=classes))["prefill-spikes"]
    assert policy_of(found.command)[1]["itl_ms"] == "30"
    assert "The gap that is promised is 30.0 ms." in found.evidence


def test_preemption_thrash_and_a_pool_of_the_size_that_is_advised() -> None:
    found = examined(preemption_storm())["thrashing"]
    assert found.command == "inflightd scheduler use conservative-admission"
    assert "computed again" in found.evidence[0]
    more = found.remedies[1]
    assert more.how is How.SET
    blocks = int(config_lines(more.command)["kv_blocks"])
    engine = Engine(max_batch_size=16, blocks_total=blocks).serve(asks(16, prompt_tokens=40, output_tokens=120))
    assert "thrashing" not in examined(engine.recording())


def test_thrash_by_swap_is_found_by_the_time_that_moving_takes() -> None:
    found = examined(preemption_storm(swaps=True))["thrashing"]
    assert any("Moving blocks out and in took" in sentence for sentence in found.evidence)


def test_two_preemptions_are_no_thrash() -> None:
    engine = Engine(max_batch_size=4, blocks_total=22).serve(asks(4, prompt_tokens=40, output_tokens=60))
    recording = engine.recording()
    assert 0 < sum(len(step.record.preemptions) for step in recording.steps) < 3
    assert "thrashing" not in examined(recording)


def test_a_front_that_is_behind_and_one_that_is_not() -> None:
    found = examined(front_behind())["front-behind"]
    assert found.command == "renice -n -10 -p 4000"
    assert "front-behind" not in examined(front_behind(behind_ns=0))


def test_frames_that_are_sent_slowly() -> None:
    found = examined(slow_publish())["publish"]
    assert found.command == "renice -n -10 -p 4001"
    assert "publish" not in examined(Engine(overlap_ns=MS).serve(asks(8)).recording())


def test_a_slow_plan_of_a_foreign_policy_and_one_of_ours() -> None:
    slow = Engine(schedule_ns=50 * MS).serve(asks(8))
    found = examined(slow.recording(policy="theirs"))["slow-plan"]
    assert found.command == "inflightd scheduler use throughput-max"
    assert "The policy is theirs" in found.evidence[1]
    assert examined(slow_schedule())["slow-plan"].command == "renice -n -10 -p 4001"
    assert "slow-plan" not in examined(slow_schedule(schedule_ns=MS // 2))


def test_findings_come_by_time_lost_and_notes_last() -> None:
    slow = Engine(max_batch_size=8, schedule_ns=20 * MS, gap_behind_ns=50 * MS).serve(asks(8)).recording()
    assert list(examined(slow))[:2] == ["front-behind", "slow-plan"]
