"""The engine that says what a script says."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from inflightd.daemon.clock import VirtualClock
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.core.wire import KvSettings, ScriptedSettings, Start, StepLimits
from inflightd.daemon.engines.api import Draw, MoveKind, Row, StepBatch, StepResult
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions, echo, hashed, launch, load, tokens
from inflightd.daemon.engines.scripts import spoken
from inflightd.daemon.engines.simulated import SimulatedOptions
from inflightd.daemon.engines.simulated import load as load_simulated
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.daemon.errors import ConfigError, EngineError


def make_state(prompt: Sequence[int], sample: int = 0, **params: Any) -> SamplingState:
    return SamplingState(SamplingParams(**{"seed": 7, "max_tokens": 99, **params}), sample, list(prompt))


def run(engine: ScriptedEngine, batch: StepBatch) -> StepResult:
    engine.start(batch)
    return engine.finish()


def prompt_batch(state: SamplingState, step: int = 1, sequence: int = 1) -> StepBatch:
    known = [*state.prompt_ids, *state.output_ids]
    return StepBatch(step, [Row(sequence, known, 0, range(len(known)), [Draw(state, len(state.output_ids))])])


def say(engine: ScriptedEngine, state: SamplingState, count: int) -> list[int]:
    for step in range(count):
        state.observe(run(engine, prompt_batch(state, step)).token_ids[0])
    return state.output_ids


def test_echo_repeats_the_prompt() -> None:
    assert say(ScriptedEngine(script=echo()), make_state([5, 6, 7]), 7) == [5, 6, 7, 5, 6, 7, 5]


def test_given_tokens_are_followed_by_the_end_or_by_themselves() -> None:
    assert say(ScriptedEngine(script=tokens([5, 6], 2)), make_state([1]), 4) == [5, 6, 2, 2]
    assert say(ScriptedEngine(script=tokens([5, 6], None)), make_state([1]), 4) == [5, 6, 5, 6]


def test_hashed_tokens_depend_on_every_token_so_far() -> None:
    script = hashed(997, avoid=[0, 2])
    prompt = list(range(10, 30))
    text = spoken(script, make_state(prompt), 40)
    assert say(ScriptedEngine(ScriptedOptions(vocab_size=997, eos_token_ids=[0, 2])), make_state(prompt), 40) == text
    assert not {0, 2} & set(text)
    others = [
        prompt[1:],
        [*prompt, 30],
        [prompt[1], prompt[0], *prompt[2:]],
    ]
    assert all(spoken(script, make_state(other), 40) != text for other in others)
    for change in (lambda ids: ids[:-1], lambda ids: [ids[1], ids[0], *ids[2:]], lambda ids: [*ids, ids[-1]]):
        state = make_state(prompt)
        for token in change(text):
            state.observe(token)
        position = len(state.output_ids)
        clean = spoken(script, make_state(prompt), position + 1)
        if state.output_ids != clean[:position]:
            assert script(1, state, position) != clean[position]


def test_hashed_samples_differ_unless_greedy() -> None:
    script = hashed(997)
    drawn = {tuple(spoken(script, make_state([1], sample, seed=seed), 8)) for sample in range(4) for seed in range(4)}
    assert len(drawn) == 16
    greedy = {tuple(spoken(script, make_state([1], sample, temperature=0.0), 8)) for sample in range(4)}
    assert len(greedy) == 1


def test_bans_overrule_the_script() -> None:
    """Case E09: a script that tries to end early."""
    options = ScriptedOptions(script="tokens", token_ids=[9, 3], eos_token_ids=[2, 3])
    text = say(ScriptedEngine(options), make_state([1], min_tokens=4, stop_token_ids=[9], seed=1), 5)
    assert not {2, 3, 9} & set(text[:4])
    assert text[4] == 2


def test_logprobs_describe_the_script_s_tokens_at_any_temperature() -> None:
    options = ScriptedOptions(script="tokens", token_ids=[9, 3])
    asking, silent = make_state([1], logprobs=2, temperature=2.0), make_state([1])
    rows = [Row(1, [1], 0, [0], [Draw(silent, 0)]), Row(2, [1], 0, [1], [Draw(asking, 0), Draw(asking.fork(1), 0)])]
    result = run(ScriptedEngine(options), StepBatch(1, rows))
    assert result.token_ids == [9, 9, 9]
    assert result.logprobs is not None
    assert result.logprobs[0] is None
    for entry in result.logprobs[1:]:
        assert entry is not None
        assert (entry.token_id, entry.top_ids) == (9, [9, 0])
        assert entry.logprob == pytest.approx(0, abs=1e-6)


def test_a_step_takes_its_time_from_start_on() -> None:
    clock = VirtualClock(100)
    engine = ScriptedEngine(ScriptedOptions(step_ns=1000), clock)
    engine.start(prompt_batch(make_state([1])))
    clock.sleep_ns(400)  # work that overlaps with the step
    assert engine.finish().forward_ns == 1000
    assert clock.now_ns() == 1100


def test_who_comes_late_does_not_make_the_step_longer() -> None:
    clock = VirtualClock(100)
    engine = ScriptedEngine(ScriptedOptions(step_ns=1000), clock)
    engine.start(prompt_batch(make_state([1])))
    clock.sleep_ns(5000)
    assert engine.finish().forward_ns == 1000
    assert clock.now_ns() == 5100


def test_a_simulated_step_costs_what_the_model_says() -> None:
    clock = VirtualClock()
    cost = StepCost(fixed_ns=1e6, prefill_token_ns=100, decode_ns=1000, context_token_ns=0.5)
    engine = load_simulated(SimulatedOptions(cost=cost), lambda stage, fraction: None, clock)
    state = make_state([1] * 11)
    rows = [Row(1, [1] * 11, 0, [0], [Draw(state, 0)]), Row(2, [5], 20, [1, 2], []), Row(3, [5, 5], 8, [3], [])]
    assert run(engine, StepBatch(1, rows, padding_tokens=3)).forward_ns == 1e6 + 13 * 100 + 4 * 1000 + 28 * 0.5
    padded = StepBatch(1, rows, padding_tokens=3, padding_context_tokens=20)
    assert run(engine, padded).forward_ns == 1e6 + 13 * 100 + 4 * 1000 + (28 + 60) * 0.5
    assert engine.info.engine == "simulated"


def test_a_simulated_step_pays_for_blocks_that_are_swapped() -> None:
    clock = VirtualClock()
    cost = StepCost(fixed_ns=1e6, prefill_token_ns=0, decode_ns=0, context_token_ns=0, swap_block_ns=5000)
    engine = ScriptedEngine(ScriptedOptions(cost=cost, host_blocks_total=8), clock)
    moves = [(MoveKind.COPY, 0, 9), (MoveKind.OUT, 1, 0), (MoveKind.OUT, 2, 1), (MoveKind.IN, 0, 5)]
    result = run(engine, StepBatch(1, prompt_batch(make_state([1])).rows, moves=moves))
    assert (result.moves_ns, result.forward_ns, clock.now_ns()) == (15_000, 1_000_000, 1_015_000)
    assert engine.info.host_blocks_total == 8


def test_steps_do_not_nest() -> None:
    engine = ScriptedEngine()
    with pytest.raises(EngineError, match="no step"):
        engine.finish()
    engine.start(prompt_batch(make_state([1])))
    with pytest.raises(EngineError, match="before step 1 has ended"):
        engine.start(prompt_batch(make_state([1]), 2))


def test_loading_takes_its_time_and_reports_progress() -> None:
    clock, heard = VirtualClock(), []
    load(ScriptedOptions(load_ns=5), lambda stage, fraction: heard.append(fraction), clock)
    assert (heard, clock.now_ns()) == ([0.0, 1.0], 5)


def start(**change: Any) -> Start:
    fields = {
        "engine": "scripted",
        "model": "",
        "model_name": "m",
        "limits": StepLimits(max_batch_size=4, max_num_tokens=64),
        "kv": KvSettings(),
        "classes": [],
        "policy": "drain",
        "scripted": ScriptedSettings(context_tokens=100, block_size_tokens=16),
    }
    return Start(**{**fields, **change})


def test_launch_gives_a_full_batch_of_longest_sequences_their_blocks() -> None:
    quiet: Callable[[str, float], None] = lambda stage, fraction: None  # noqa: E731
    assert launch(start(), quiet).info.blocks_total == 4 * 7
    assert launch(start(kv=KvSettings(blocks=5)), quiet).info.blocks_total == 5


def test_launch_gives_it_the_host_blocks_it_is_said_to_have() -> None:
    said = ScriptedSettings(context_tokens=100, block_size_tokens=16, host_blocks=7)
    assert launch(start(scripted=said), lambda stage, fraction: None).info.host_blocks_total == 7
    assert launch(start(), lambda stage, fraction: None).info.host_blocks_total == 0


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("kv_memory", {"kv": KvSettings(memory_bytes=10**9)}),
        ("max_sequence_tokens", {"limits": StepLimits(max_batch_size=4, max_num_tokens=64, max_sequence_tokens=101)}),
        (
            "kv_blocks",
            {
                "limits": StepLimits(max_batch_size=4, max_num_tokens=64, max_sequence_tokens=100),
                "kv": KvSettings(blocks=6),
            },
        ),
        ("scripted.script", {"scripted": ScriptedSettings(script="sing")}),
        ("scripted.token_ids", {"scripted": ScriptedSettings(script="tokens")}),
        ("scripted.token_ids", {"scripted": ScriptedSettings(script="tokens", token_ids=[512])}),
        ("scripted.eos_token_ids", {"scripted": ScriptedSettings(eos_token_ids=[-1])}),
        ("scripted.vocab_size", {"scripted": ScriptedSettings(vocab_size=2, eos_token_ids=[0, 1])}),
    ],
)
def test_launch_refuses_what_cannot_work(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(start(**change), lambda stage, fraction: None)
    assert caught.value.field == field
