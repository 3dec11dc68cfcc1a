"""What is read from a GGUF header, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from inflightd.daemon.errors import ConfigError
from inflightd.daemon.models.gguf_file import read_gguf
from tests.support.tiny_gguf import TinyModel, write_tiny_gguf


def test_the_typed_facts_of_a_model(tmp_path: Path) -> None:
    shape = TinyModel(layers=3, hidden=96, heads=3, kv_heads=1, feed_forward=160, vocab_size=100, context_tokens=512)
    model = read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", shape)).model
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim) == (3, 96, 3, 1, 32)
    assert (model.feed_forward, model.vocab_size, model.context_tokens) == (160, 100, 512)
    assert (model.rope_base, model.rope_linear_factor, model.name) == (10000.0, 1.0, "tiny")
    assert model.rms_eps == pytest.approx(1e-5)
    assert (model.bos_token_id, model.eos_token_ids) == (None, (2,))


def test_a_given_head_dim_wins_over_the_derived_one(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(hidden=128, heads=4, head_dim=64))
    assert read_gguf(path).model.head_dim == 64


def test_metadata_and_tensors_equal_the_gguf_packages_reading(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(tensor_type="Q4_1", vocab_size=50))
    ours, theirs = read_gguf(path), GGUFReader(path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents()
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].shape == tuple(int(extent) for extent in tensor.shape[::-1])
        raw = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)
        assert np.array_equal(ours.map_tensor(tensor.name).reshape(-1), raw)


def test_several_end_tokens_are_all_kept_once(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(metadata={"unused": 1}))
    content = path.read_bytes()
    assert content.count(b"tokenizer.ggml.eos_token_id") == 1
    path.write_bytes(content.replace(b"tokenizer.ggml.eos_token_id", b"tokenizer.ggml.eot_token_id"))
    assert read_gguf(path).model.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (TinyModel(architecture="qwen2"), "architecture 'qwen2' is not supported"),
        (TinyModel(metadata={"expert_count": 8}), "mixture-of-experts"),
        (TinyModel(metadata={"rope.scaling.type": "yarn"}), "rope scaling 'yarn'"),
        (TinyModel(metadata={"rope.dimension_count": 16}), "rotating 16 of 32"),
        (TinyModel(metadata={"attention.value_length": 16}), "keys of 32 and values of 16"),
        (TinyModel(heads=4, kv_heads=3), "do not divide"),
        (TinyModel(left_out=("token_embd.weight",)), "token_embd.weight is missing"),
        (TinyModel(tensor_type="Q5_0"), "has type Q5_0"),
        (TinyModel(tensor_type="BF16"), "has type BF16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_engine_cannot_run_is_refused_by_name(tmp_path: Path, model: TinyModel, reason: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", model)
    with pytest.raises(ConfigError) as caught:
        read_gguf(path)
    assert caught.value.field == "model"
    assert reason in caught.value.reason


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04zip", b"<!DOCTYPE html>"])
def test_another_kind_of_file_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a GGUF file"):
        read_gguf(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_gguf(tmp_path / "absent.gguf")


def test_a_file_cut_anywhere_is_truncated_never_a_crash(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(layers=1, vocab_size=40))
    content = path.read_bytes()
    header = read_gguf(path).header_bytes
    cut = tmp_path / "cut.gguf"
    for length in [*range(4, header, 13), header, len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(ConfigError, match="truncated"):
            read_gguf(cut)


def test_damaged_lengths_and_types_are_config_errors(tmp_path: Path) -> None:
    """Any single damaged byte of the header either reads as something or is refused; nothing else may happen."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(layers=1, vocab_size=40))
    content, header = path.read_bytes(), read_gguf(path).header_bytes
    rng = np.random.default_rng(5)
    refused = 0
    for at in rng.integers(4, header, 300):
        path.write_bytes(content[:at] + bytes([content[at] ^ int(rng.integers(1, 256))]) + content[at + 1 :])
        try:
            read_gguf(path)
        except ConfigError:
            refused += 1
    assert refused > 20


@pytest.mark.model
def test_the_shipped_model(model_path: Path) -> None:
    model = read_gguf(model_path).model
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim) == (30, 576, 9, 3, 64)
    assert (model.vocab_size, model.context_tokens, model.rope_base) == (49152, 8192, 100000.0)
    assert (model.bos_token_id, model.eos_token_ids) == (1, (2,))
