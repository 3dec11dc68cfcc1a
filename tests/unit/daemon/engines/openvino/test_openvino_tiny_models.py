"""Tensor types and shapes that the shipped model does not have, on models made for the purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, MoveKind, StepBatch
from inflightd.daemon.engines.openvino import candidates
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load
from inflightd.daemon.engines.openvino.kv_layout import KV_DTYPES, KvDtype, block_bytes
from inflightd.daemon.engines.openvino.options import OpenVinoOptions
from inflightd.daemon.errors import ConfigError, EngineError
from inflightd.daemon.models.gguf_file import read_gguf
from inflightd.daemon.models.source import ModelSource
from tests.reference.llama import ReferenceLlama
from tests.support.engine_steps import chunk_row, greedy_params, greedy_tokens, run_step
from tests.support.recording_ranges import RecordingRanges
from tests.support.tiny_gguf import TinyModel, write_tiny_gguf

DEFAULTS = vars(TinyModel())
PROMPT = [5, 17, 42, 99, 3, 250, 128, 64]

Open = Callable[..., OpenVinoEngine]


@pytest.fixture
def open_engine(tmp_path: Path) -> Iterator[Open]:
    engines = []

    def open_one(path: Path, **changes: object) -> OpenVinoEngine:
        fields = {"num_blocks": 16, "threads": 2, "precision": "f32", "weights_cache": tmp_path / "cache"}
        options = OpenVinoOptions(
            source=ModelSource("gguf", path, "tiny"),
            max_num_tokens=64,
            max_batch_size=4,
            **{**fields, **changes},  # type: ignore[arg-type]
        )
        engines.append(load(options))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    "model",
    [
        TinyModel(tensor_type="F32"),
        TinyModel(tensor_type="F16"),
        TinyModel(tensor_type="Q8_0"),
        TinyModel(tensor_type="Q4_0"),
        TinyModel(tensor_type="Q4_1"),
        TinyModel(vocab_size=257, tied=False),
        TinyModel(vocab_size=8200, tied=False),
        TinyModel(head_dim=64),
        TinyModel(heads=2, kv_heads=2, head_dim=128),
        TinyModel(heads=4, kv_heads=1),
        TinyModel(rope_factors=True),
        TinyModel(metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4}),
    ],
    ids=lambda model: "-".join(f"{key}={value}" for key, value in vars(model).items() if value != DEFAULTS[key]),
)
def test_logprobs_equal_the_reference(tmp_path: Path, open_engine: Open, model: TinyModel) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", model)
    engine = open_engine(path)
    result = run_step(engine, [chunk_row(PROMPT, 0, [3], greedy_params(logprobs=20))])
    right = ReferenceLlama(path).logprobs(PROMPT)[-1]
    assert result.logprobs is not None
    found = result.logprobs[0]
    assert found is not None
    assert result.token_ids == [right.argmax()]
    assert found.top_ids == np.argsort(-right, kind="stable")[:20].tolist()
    np.testing.assert_allclose(found.top_logprobs, np.sort(right)[::-1][:20], atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_works_in_bf16(tmp_path: Path, open_engine: Open, threads: int) -> None:
    """The fused MLP node kills the process where the number is odd: it must not be used there."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(hidden=256, feed_forward=512, tensor_type="F16"))
    engine = open_engine(path, precision=None, threads=threads)
    assert engine.info.detail["threads"] == str(threads)
    answer = greedy_tokens(engine, [PROMPT], [[1, 2]], 4)
    assert answer == greedy_tokens(engine, [PROMPT], [[3, 4]], 4)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_each_kv_dtype_has_the_blocks_the_budget_was_told(tmp_path: Path, open_engine: Open, kv_dtype: KvDtype) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(head_dim=64))
    try:
        engine = open_engine(path, precision=None, kv_dtype=kv_dtype)
    except ConfigError as error:
        assert kv_dtype == "bf16" and "no bf16 instructions" in str(error)  # noqa: PT017, PT018
        return
    assert engine.info.kv_dtype == kv_dtype
    assert engine.kv.bytes_per_block == block_bytes(read_gguf(path).model, kv_dtype)
    answer = greedy_tokens(engine, [PROMPT], [[1, 2]], 4)
    right = ReferenceLlama(path).greedy_after(PROMPT, answer[0])
    assert answer[0] == right if kv_dtype == "f32" else len(right) == 4


def test_the_shipped_models_blocks_have_the_measured_sizes(tmp_path: Path) -> None:
    shape = TinyModel(layers=1, heads=9, kv_heads=3, hidden=576, tensor_type="F16")
    model = read_gguf(write_tiny_gguf(tmp_path / "one-layer.gguf", shape)).model
    assert 30 * block_bytes(model, "bf16") == 737_280
    assert 30 * block_bytes(model, "f32") == 2 * 737_280
    assert 30 * block_bytes(model, "u8") == 437_760


def test_how_many_candidates_the_engine_lists_does_not_matter(
    tmp_path: Path, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole row decides where they do not reach: hot draws over a large vocabulary, with few and with many."""
    engine = open_engine(write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(vocab_size=4096)))
    rows = [chunk_row(PROMPT, 0, [3], params) for params in (greedy_params(temperature=3.0, seed=5), greedy_params())]
    rows[0].draws = [Draw(SamplingState(greedy_params(temperature=3.0, seed=5), i, PROMPT), 0) for i in range(50)]
    many = run_step(engine, rows).token_ids
    monkeypatch.setattr(candidates, "DRAWN_CANDIDATES", 4)
    assert run_step(engine, rows).token_ids == many
    assert len(set(many[:50])) > 25


def test_padding_rows_write_only_into_their_own_block(tmp_path: Path, open_engine: Open) -> None:
    engine = open_engine(write_tiny_gguf(tmp_path / "tiny.gguf"), num_blocks=4)
    run_step(engine, [chunk_row(PROMPT, 0, [2])])
    before = [engine.kv.read_block(block) for block in range(4)]
    for tensor in engine.kv.tensors.values():
        tensor.data[4] = 0
    run_step(engine, [chunk_row([9], len(PROMPT), [2])], padding_tokens=3, padding_context_tokens=70)
    after = [engine.kv.read_block(block) for block in range(4)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]
    assert any(engine.kv.read_block(4))


def test_a_step_that_samples_nothing_gives_nothing(tmp_path: Path, open_engine: Open) -> None:
    engine = open_engine(write_tiny_gguf(tmp_path / "tiny.gguf"))
    result = run_step(engine, [chunk_row(PROMPT, 0, [2])])
    assert (result.token_ids, result.logprobs) == ([], None)
    assert result.forward_ns > 0


def test_who_comes_late_does_not_make_the_forward_pass_longer(tmp_path: Path, open_engine: Open) -> None:
    """A slow frame or front must not hide in the engine's time."""
    engine = open_engine(write_tiny_gguf(tmp_path / "tiny.gguf"))
    engine.start(StepBatch(1, [chunk_row(PROMPT, 0, [2], greedy_params())]))
    time.sleep(0.5)
    assert 0 < engine.finish().forward_ns < 250_000_000


def test_a_step_is_traced_from_its_moves_to_its_draws(tmp_path: Path, open_engine: Open) -> None:
    engine = open_engine(write_tiny_gguf(tmp_path / "tiny.gguf"), num_host_blocks=4)
    engine.ranges = ranges = RecordingRanges()
    row = chunk_row(PROMPT, 0, [2], greedy_params())
    moves = [
        (MoveKind.OUT, 0, 1),
        (MoveKind.OUT, 1, 2),
        (MoveKind.COPY, 0, 3),
        (MoveKind.IN, 1, 3),
        (MoveKind.OUT, 3, 0),
    ]
    engine.start(StepBatch(1, [row], moves=moves, tokens=len(PROMPT), forward="prefill"))
    assert ranges.stack == [("prefill", 8)]
    engine.finish()
    assert ranges.paths == [
        (("swap_out",), 2), (("swap_in",), 1), (("swap_out",), 1), (("prefill",), 8), (("sample",), 1)
    ]  # fmt: skip
    assert not ranges.stack
    moved = [engine.kv.read_block(block) for block in (0, 3)]
    assert moved[0] == moved[1]


def test_finish_without_start_and_start_twice_are_errors(tmp_path: Path, open_engine: Open) -> None:
    engine = open_engine(write_tiny_gguf(tmp_path / "tiny.gguf"))
    with pytest.raises(EngineError, match="without start"):
        engine.finish()
    batch = StepBatch(0, [chunk_row(PROMPT, 0, [2], greedy_params())])
    engine.start(batch)
    with pytest.raises(EngineError, match="before finish"):
        engine.start(batch)
    assert len(engine.finish().token_ids) == 1


@pytest.mark.parametrize(("precision", "kv_dtype"), [("f32", "bf16"), ("bf16", "f32")])
def test_a_kv_dtype_that_the_precision_excludes_is_refused_by_name(
    tmp_path: Path, open_engine: Open, precision: str, kv_dtype: str
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ConfigError, match=r"kv_dtype|no bf16"):
        open_engine(path, precision=precision, kv_dtype=kv_dtype)


def test_draws_follow_the_models_distribution_and_the_seed(tmp_path: Path, open_engine: Open) -> None:
    """A small vocabulary: the candidates are all tokens, and 300 samples of one row show the probabilities."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    engine = open_engine(path)
    params = greedy_params(temperature=0.7, seed=11)
    row = chunk_row(PROMPT, 0, [3], params)
    row.draws = [Draw(SamplingState(params, sample, PROMPT), 0) for sample in range(300)]
    tokens = run_step(engine, [row]).token_ids
    again = run_step(engine, [chunk_row([1], 0, [4], greedy_params()), row]).token_ids
    assert again[1:] == tokens
    right = np.exp(ReferenceLlama(path).logprobs(PROMPT)[-1] / 0.7)
    right /= right.sum()
    shares = np.bincount(tokens, minlength=len(right)) / len(tokens)
    assert np.abs(shares - right).sum() < 2 * np.sqrt(len(right) / len(tokens))
    assert abs(shares[right.argmax()] - right.max()) < 4 * np.sqrt(right.max() / len(tokens))


def test_loading_reports_progress_that_never_falls(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    source = ModelSource("gguf", write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny")
    options = OpenVinoOptions(source=source, num_blocks=4, max_num_tokens=8, weights_cache=None)
    load(options, lambda stage, fraction: seen.append((stage, fraction))).close()
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert list(dict(seen)) == ["read", "weights", "compile", "warm up"]


def test_a_hugging_face_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GGUF files only"):
        load(OpenVinoOptions(source=ModelSource("hf", tmp_path, "x"), num_blocks=4))
