"""SmolLM2-135M in float32 against a forward pass written apart from the engine."""

from __future__ import annotations

import numpy as np
import pytest

from inflightd.daemon.engines.api import MoveKind
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine
from tests.reference.llama import ReferenceLlama
from tests.support.engine_steps import chunk_row, greedy_params, greedy_tokens, run_step

pytestmark = pytest.mark.model

PROMPTS = (
    [504, 3575, 282, 4649, 314],
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 7042, 47, 2, 198, 1, 520, 9531, 198],
    [3725, 281, 253, 1109, 28, 665, 436, 253, 2095, 13],
    [1, 4093, 198, 28120, 253, 1838, 563, 260, 1721, 30, 2, 198, 1, 520, 9531, 198],
    [504],
)
LENGTH = 40
IN_ORDER = [[4 * index + block for block in range(2)] for index in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def expected(exact_engine: OpenVinoEngine, reference: ReferenceLlama) -> list[list[int]]:
    """The engine's whole-prompt answers, proven equal to full recomputation."""
    answers = greedy_tokens(exact_engine, PROMPTS, IN_ORDER, LENGTH)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert reference.greedy_after(prompt, answer) == answer
    return answers


def test_whole_prefill_equals_full_recomputation(expected: list[list[int]]) -> None:
    assert [len(answer) for answer in expected] == [LENGTH] * len(PROMPTS)
    assert len({tuple(answer) for answer in expected}) == len(PROMPTS)


def test_chunked_prefill_alone_and_permuted_blocks_change_nothing(
    exact_engine: OpenVinoEngine, expected: list[list[int]]
) -> None:
    for index in (1, 4):
        alone = greedy_tokens(exact_engine, [PROMPTS[index]], [[97, 12]], LENGTH, chunk_tokens=3)
        assert alone == [expected[index]]


def test_among_31_others_nothing_changes(exact_engine: OpenVinoEngine, expected: list[list[int]]) -> None:
    rng = np.random.default_rng(3)
    others = [rng.integers(3, 49152, size=int(rng.integers(1, 12))).tolist() for _ in range(32 - len(PROMPTS))]
    blocks = rng.permutation(128)[:64].reshape(32, 2).tolist()
    answers = greedy_tokens(exact_engine, [*others, *PROMPTS], blocks, LENGTH, chunk_tokens=8)
    assert answers[-len(PROMPTS) :] == expected


def test_logprobs_are_the_references(exact_engine: OpenVinoEngine, reference: ReferenceLlama) -> None:
    rows = [chunk_row(prompt, 0, IN_ORDER[index], greedy_params(logprobs=20)) for index, prompt in enumerate(PROMPTS)]
    # One plain row in the middle: rows with candidates are computed apart from it, answers keep the batch's order.
    rows[2] = chunk_row(PROMPTS[2], 0, IN_ORDER[2], greedy_params())
    result = run_step(exact_engine, rows)
    assert result.logprobs is not None
    assert result.logprobs[2] is None
    for prompt, token, found in zip(PROMPTS, result.token_ids, result.logprobs, strict=True):
        right = reference.logprobs(prompt)[-1]
        assert token == right.argmax()
        if found is not None:
            order = np.argsort(-right, kind="stable")[:20]
            assert found.top_ids == order.tolist()
            np.testing.assert_allclose(found.top_logprobs, right[order], atol=2e-4)
            assert found.logprob == pytest.approx(right[token], abs=2e-4)


@pytest.mark.parametrize("context_tokens", [0, 31, 32, 300])
def test_padding_rows_change_nothing(
    exact_engine: OpenVinoEngine, expected: list[list[int]], context_tokens: int
) -> None:
    padding = {"padding_tokens": 5, "padding_context_tokens": context_tokens}
    padded = greedy_tokens(exact_engine, PROMPTS[:2], IN_ORDER[:2], 8, **padding)
    assert padded == [answer[:8] for answer in expected[:2]]


def test_a_copied_block_continues_as_the_original(exact_engine: OpenVinoEngine, expected: list[list[int]]) -> None:
    """Copy-on-write: the copy is made before the step that writes into it."""
    prompt, answer = PROMPTS[1], expected[1]
    run_step(exact_engine, [chunk_row(prompt, 0, [50, 51])])
    step = [
        chunk_row([answer[0]], len(prompt), [50, 51], greedy_params()),
        chunk_row([7], len(prompt), [60, 61], greedy_params()),
        chunk_row([answer[0]], len(prompt), [70, 71], greedy_params()),
    ]
    result = run_step(exact_engine, step, moves=[(MoveKind.COPY, 50, 60), (MoveKind.COPY, 50, 70)])
    assert result.token_ids[0] == result.token_ids[2] == answer[1]
    assert exact_engine.kv.read_block(50) == exact_engine.kv.read_block(70)
    assert exact_engine.kv.read_block(50) != exact_engine.kv.read_block(60)
