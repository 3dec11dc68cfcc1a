"""The arrays the engine computes with, made once from a GGUF and kept in a mapped cache file.

Matrices are float16, which holds every value of the quantized types to 11 bits; those stored as F32 stay float32.
Norms are float32.  The rows of q and k, which GGUF stores permuted for interleaved rotary embedding, are put back into
the half-split order, and q, k and v are joined.

| name | shape |
|---|---|
| embd, head (absent: tied to embd) | [vocab, hidden] |
| norm | [hidden] |
| rope_factors (absent: all one) | [head_dim / 2] |
| blk.N.qkv | [(heads + 2 * kv_heads) * head_dim, hidden] |
| blk.N.o / gate, up / down | [hidden, heads * head_dim] / [feed_forward, hidden] / [hidden, feed_forward] |
| blk.N.attn_norm, blk.N.ffn_norm | [hidden] |
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.errors import ConfigError
from inflightd.daemon.models.file_lock import exclusive
from inflightd.daemon.models.gguf_file import GgufFile
from inflightd.daemon.models.weight_cache import CacheMiss, map_arrays, store_arrays

# Raise it whenever the names, the shapes or the rounding above change.
FORMAT_VERSION = 1

Arrays = dict[str, NDArray[Any]]
Progress = Callable[[float], None]
_log = logging.getLogger(__name__)


def load_weights(gguf: GgufFile, cache: Path | None, progress: Progress = lambda _: None) -> Arrays:
    """The arrays of `gguf`, mapped copy-on-write from `cache` (a directory) where they are there and intact.

    The cache is keyed by the SHA-256 of the whole GGUF (1.2 GB/s, so always computed) and by FORMAT_VERSION, and each
    array's checksum is verified; a damaged file is rebuilt.  A cache that cannot be written is only a warning.
    Raises ConfigError for missing, unexpected, misshapen or damaged tensors.
    """
    if cache is None:
        return dict(_dequantized(gguf, progress))
    with gguf.path.open("rb") as file:
        key = hashlib.file_digest(file, "sha256").hexdigest()
    path = cache / f"{key[:32]}.v{FORMAT_VERSION}.weights"
    try:
        return map_arrays(path, key)
    except CacheMiss as miss:
        _log.info("building weight cache %s: %s", path, miss)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(path.with_suffix(".lock")):
            try:
                return map_arrays(path, key)  # another process was faster
            except CacheMiss:
                store_arrays(path, key, _dequantized(gguf, progress))
            return map_arrays(path, key)
    except (OSError, CacheMiss) as error:
        _log.warning("weight cache %s cannot be used, the next start will be slow again: %s", path, error)
        return dict(_dequantized(gguf, progress))


def _dequantized(gguf: GgufFile, progress: Progress) -> Iterator[tuple[str, NDArray[Any]]]:
    model = gguf.model
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    source = _Source(gguf, progress)

    yield "embd", source.matrix("token_embd.weight", model.vocab_size, model.hidden)
    yield "norm", source.vector("output_norm.weight", model.hidden)
    if "output.weight" in gguf.tensors:
        yield "head", source.matrix("output.weight", model.vocab_size, model.hidden)
    if "rope_freqs.weight" in gguf.tensors:
        yield "rope_factors", source.vector("rope_freqs.weight", model.head_dim // 2)
    for layer in range(model.layers):
        name = f"blk.{layer}."
        joint = [
            _half_split(source.matrix(name + "attn_q.weight", queries, model.hidden), model.heads),
            _half_split(source.matrix(name + "attn_k.weight", keys, model.hidden), model.kv_heads),
            source.matrix(name + "attn_v.weight", keys, model.hidden),
        ]
        yield name + "qkv", np.concatenate(joint)  # float32 if any of the three is
        yield name + "o", source.matrix(name + "attn_output.weight", model.hidden, queries)
        yield name + "gate", source.matrix(name + "ffn_gate.weight", model.feed_forward, model.hidden)
        yield name + "up", source.matrix(name + "ffn_up.weight", model.feed_forward, model.hidden)
        yield name + "down", source.matrix(name + "ffn_down.weight", model.hidden, model.feed_forward)
        yield name + "attn_norm", source.vector(name + "attn_norm.weight", model.hidden)
        yield name + "ffn_norm", source.vector(name + "ffn_norm.weight", model.hidden)
    source.check_all_used()


def _half_split(matrix: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows (0, 1, 2, 3, ...) of each head, pairs of one rotation side by side -> (0, 2, ...), then (1, 3, ...)."""
    pairs = matrix.reshape(heads, -1, 2, matrix.shape[1])
    return pairs.swapaxes(1, 2).reshape(matrix.shape)


class _Source:
    """Dequantizes tensors by name and knows which were not asked for."""

    def __init__(self, gguf: GgufFile, progress: Progress) -> None:
        self._gguf, self._progress, self._used = gguf, progress, set[str]()

    def matrix(self, name: str, rows: int, columns: int) -> NDArray[Any]:
        values = self._read(name, (rows, columns))
        return values if self._gguf.tensors[name].type_name == "F32" else values.astype(np.float16)

    def vector(self, name: str, length: int) -> NDArray[Any]:
        return self._read(name, (length,))

    def check_all_used(self) -> None:
        """A tensor we do not know (a bias, say) means that the result would be wrong."""
        if unknown := sorted(set(self._gguf.tensors) - self._used):
            raise self._broken(f"tensor {unknown[0]} is not supported")

    def _read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        from gguf import GGMLQuantizationType, dequantize

        info = self._gguf.tensors.get(name)
        if info is None:
            raise self._broken(f"tensor {name} is missing")
        if info.shape != shape:
            raise self._broken(f"tensor {name} has shape {list(info.shape)}, expected {list(shape)}")
        raw = self._gguf.map_tensor(name)
        values: NDArray[Any] = np.asarray(dequantize(raw, GGMLQuantizationType(info.type_id)), np.float32)
        if not np.isfinite(values).all():
            raise self._broken(f"tensor {name} holds NaN or infinity: the file is damaged")
        self._used.add(name)
        self._progress(len(self._used) / len(self._gguf.tensors))
        # An F32 tensor comes out as the read-only mapping itself, which the engine refuses to share.
        return (values if values.flags.writeable else values.copy()).reshape(shape)

    def _broken(self, reason: str) -> ConfigError:
        return ConfigError("model", str(self._gguf.path), reason)
