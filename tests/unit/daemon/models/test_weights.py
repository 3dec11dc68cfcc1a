"""Dequantized arrays and their cache file."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from inflightd.daemon.errors import ConfigError
from inflightd.daemon.models import weights
from inflightd.daemon.models.gguf_file import GgufFile, read_gguf
from inflightd.daemon.models.weights import load_weights
from tests.support.tiny_gguf import TinyModel, write_tiny_gguf


@pytest.fixture
def gguf(tmp_path: Path) -> GgufFile:
    return read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(tensor_type="Q8_0", tied=False)))


def _same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left
    )


def _cache_file(cache: Path) -> Path:
    (path,) = cache.glob("*.weights")
    return path


def _forbid_building(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object) -> None:
        raise AssertionError("dequantized again")

    monkeypatch.setattr(weights, "_dequantized", build)


def test_quantized_and_f16_matrices_are_f16_f32_ones_stay_f32(tmp_path: Path) -> None:
    for tensor_type, dtype in (("Q4_0", "float16"), ("Q4_1", "float16"), ("F16", "float16"), ("F32", "float32")):
        path = write_tiny_gguf(tmp_path / f"{tensor_type}.gguf", TinyModel(tensor_type=tensor_type))
        arrays = load_weights(read_gguf(path), None)
        assert {arrays["embd"].dtype.name, arrays["blk.1.qkv"].dtype.name} == {dtype}
        assert arrays["norm"].dtype == arrays["blk.0.ffn_norm"].dtype == np.float32


def test_q_and_k_rows_are_put_into_the_half_split_order(tmp_path: Path) -> None:
    shape = TinyModel(tensor_type="F32", heads=4, kv_heads=2, hidden=128)
    gguf = read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", shape))
    raw = gguf.map_tensor("blk.0.attn_k.weight").view(np.float32)
    joint = load_weights(gguf, None)["blk.0.qkv"]
    second_key_head = joint[128 + 32 : 128 + 64]
    assert np.array_equal(second_key_head[:16], raw[32:64:2])
    assert np.array_equal(second_key_head[16:], raw[33:64:2])
    assert np.array_equal(joint[128 + 64 :], gguf.map_tensor("blk.0.attn_v.weight").view(np.float32))


def test_the_second_load_maps_what_the_first_stored(
    gguf: GgufFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[float] = []
    first = load_weights(gguf, tmp_path / "cache", done.append)
    assert done == sorted(done)
    assert done[-1] == 1.0
    _forbid_building(monkeypatch)
    assert _same(load_weights(gguf, tmp_path / "cache"), first)
    assert all(array.flags.writeable for array in first.values())  # the engine refuses to share read-only memory


def test_writing_to_mapped_arrays_does_not_reach_the_file(gguf: GgufFile, tmp_path: Path) -> None:
    load_weights(gguf, tmp_path)["norm"][:] = 0
    assert load_weights(gguf, tmp_path)["norm"].all()


def test_the_same_content_elsewhere_shares_the_cache(
    gguf: GgufFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_weights(gguf, tmp_path / "cache")
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(gguf.path.read_bytes())
    _forbid_building(monkeypatch)
    load_weights(read_gguf(copy), tmp_path / "cache")


def test_other_content_of_the_same_size_and_time_is_not_taken_for_it(gguf: GgufFile, tmp_path: Path) -> None:
    import os

    before = load_weights(gguf, tmp_path / "cache")
    status = gguf.path.stat()
    content = bytearray(gguf.path.read_bytes())
    content[-2] ^= 0x55
    gguf.path.write_bytes(content)
    os.utime(gguf.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not _same(load_weights(read_gguf(gguf.path), tmp_path / "cache"), before)


@pytest.mark.parametrize("damage", ["cut", "empty", "flip first", "flip middle", "flip directory", "flip trailer"])
def test_a_damaged_cache_is_rebuilt(gguf: GgufFile, tmp_path: Path, damage: str) -> None:
    right = load_weights(gguf, None)
    cache = tmp_path / "cache"
    load_weights(gguf, cache)
    path = _cache_file(cache)
    content = bytearray(path.read_bytes())
    at = {"first": 0, "middle": len(content) // 2, "directory": len(content) - 60, "trailer": len(content) - 3}
    if damage == "cut":
        del content[-100:]
    elif damage == "empty":
        content.clear()
    else:
        content[at[damage.removeprefix("flip ")]] ^= 1
    path.write_bytes(content)
    assert _same(load_weights(gguf, cache), right)
    assert len(path.read_bytes()) > len(content) or bytes(content) != path.read_bytes()


def test_an_interrupted_store_leaves_nothing_behind(
    gguf: GgufFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(gguf: GgufFile, progress: object) -> object:
        yield "embd", np.zeros((2, 2), np.float16)
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "_dequantized", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_weights(gguf, tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_only_a_warning(
    gguf: GgufFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the directory should be")
    with caplog.at_level(logging.WARNING):
        assert _same(load_weights(gguf, blocked), load_weights(gguf, None))
    assert "cannot be used" in caplog.text


def test_a_tensor_with_nan_is_damage(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(tensor_type="F16"))
    at = read_gguf(path).tensors["blk.1.ffn_up.weight"].offset_bytes
    content = bytearray(path.read_bytes())
    content[at : at + 2] = b"\xff\x7f"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"blk\.1\.ffn_up\.weight holds NaN"):
        load_weights(read_gguf(path), tmp_path / "cache")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (TinyModel(extra_tensors={"blk.0.attn_q.bias": (128,)}), "blk.0.attn_q.bias is not supported"),
        (TinyModel(left_out=("blk.1.ffn_up.weight",)), "blk.1.ffn_up.weight is missing"),
        (TinyModel(metadata={"embedding_length": 64}), r"shape \[256, 128\], expected \[256, 64\]"),
    ],
    ids=["unknown", "missing", "misshapen"],
)
def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path: Path, model: TinyModel, reason: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", model)
    with pytest.raises(ConfigError, match=reason):
        load_weights(read_gguf(path), tmp_path / "cache")
