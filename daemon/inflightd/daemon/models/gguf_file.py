"""A GGUF file's header: metadata, tensor directory and the typed facts of a Llama model.

Read by hand, as the format's specification says (ggml `docs/gguf.md`): the `gguf` package's reader takes 3.3 s for a
vocabulary of 49,152 tokens, this one 0.1 s.  Tensor data are mapped, never read here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.errors import ConfigError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4

# type number -> (name, elements of a quantization block, bytes of one)
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
}
_OTHER_TYPES = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies.  shape is row-major: [rows, columns]; columns are quantized in blocks."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int  # from the start of the file
    size_bytes: int

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.type_id][0]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What the engine, the KV budget and the tokenizer need to know of a Llama-architecture model."""

    architecture: str
    name: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_tokens: int
    rms_eps: float
    rope_base: float
    rope_linear_factor: float  # positions are divided by it; 1: no scaling
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An opened header; nothing of it changes, and the file itself is not held open."""

    path: Path
    size_bytes: int
    header_bytes: int  # metadata and directory; tensor data follow after alignment
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorInfo]
    model: ModelMetadata

    def map_tensor(self, name: str) -> NDArray[np.uint8]:
        """The raw bytes of a tensor, mapped read-only: u8 [rows, bytes of a row]."""
        info = self.tensors[name]
        raw = np.memmap(self.path, np.uint8, "r", info.offset_bytes, (info.size_bytes,))
        return raw.reshape(*info.shape[:-1], -1)


class _Reader:
    """Reads little-endian values in order; running past the end is a ConfigError."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self.at = path, data, 0

    def broken(self, reason: str) -> ConfigError:
        return ConfigError("model", str(self._path), reason)

    def scalar(self, code: str) -> int | float | bool:
        size = struct.calcsize("<" + code)
        if self.at + size > len(self._data):
            raise self.broken(f"truncated: the header ends after {len(self._data)} bytes")
        value: int | float | bool = struct.unpack_from("<" + code, self._data, self.at)[0]
        self.at += size
        return value

    def integer(self, code: str) -> int:
        return int(self.scalar(code))

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """`count` strings; the hot loop of the whole file (100,000 for a vocabulary with its merges)."""
        data, at, end = self._data, self.at, len(self._data)
        length_of, found = struct.Struct("<Q").unpack_from, []
        for _ in range(count):
            if at + 8 > end or at + 8 + (length := length_of(data, at)[0]) > end:
                raise self.broken(f"truncated: a string at byte {at} runs past the end of the file")
            found.append(data[at + 8 : at + 8 + length].decode("utf-8", "replace"))
            at += 8 + length
        self.at = at
        return found

    def value(self, kind: int) -> object:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise self.broken(f"metadata type {kind} at byte {self.at} is not one of GGUF's")
        item, count = self.integer("I"), self.integer("Q")
        if item == _STRING:
            return self.strings(count)
        if item in _SCALARS:
            dtype = np.dtype("?" if _SCALARS[item] == "?" else "<" + _SCALARS[item])
            if self.at + count * dtype.itemsize > len(self._data):
                raise self.broken(f"truncated: an array of {count} values at byte {self.at} runs past the end")
            array = np.frombuffer(self._data, dtype, count, self.at).tolist()
            self.at += count * dtype.itemsize
            return array
        raise self.broken(f"an array of metadata type {item} at byte {self.at} is not supported")


def read_gguf(path: Path) -> GgufFile:
    """Parse the header of `path`.

    Raises ConfigError (field `model`) for a file that cannot be read, is no GGUF, is truncated, or holds an
    architecture or a tensor type that the engine cannot run, naming it.
    """
    try:
        with path.open("rb") as file:
            if len(magic := file.read(4)) < 4 or magic != b"GGUF":
                raise ConfigError("model", str(path), f"not a GGUF file: it begins with {magic!r}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, _Reader(path, data), len(data))
    except OSError as error:
        raise ConfigError("model", str(path), f"cannot be read: {error.strerror}") from error


def _parse(path: Path, reader: _Reader, size_bytes: int) -> GgufFile:
    reader.at = 4
    if (version := reader.integer("I")) not in (2, 3):
        raise reader.broken(f"GGUF version {version} is not supported (2 and 3 are)")
    tensor_count, pair_count = reader.integer("Q"), reader.integer("Q")
    metadata = {}
    for _ in range(pair_count):
        key = reader.string()
        metadata[key] = reader.value(reader.integer("I"))
    architecture = str(metadata.get("general.architecture", ""))
    if architecture != "llama":
        raise reader.broken(f"architecture {architecture!r} is not supported (llama is)")

    directory = [_tensor_header(reader) for _ in range(tensor_count)]
    header_bytes = reader.at
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise reader.broken(f"general.alignment {alignment!r} is not a positive number")
    data_start = -(-header_bytes // alignment) * alignment
    tensors = {}
    for name, shape, type_id, offset in directory:
        info = _locate(reader, name, shape, type_id, data_start + offset)
        if info.offset_bytes + info.size_bytes > size_bytes:
            raise reader.broken(
                f"truncated: tensor {name} ends at byte {info.offset_bytes + info.size_bytes}, "
                f"the file has {size_bytes}"
            )
        tensors[name] = info
    model = _model_metadata(path, metadata, tensors)
    return GgufFile(path, size_bytes, header_bytes, metadata, tensors, model)


def _tensor_header(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = reader.string(), reader.integer("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise reader.broken(f"tensor {name} has {dimensions} dimensions")
    shape = tuple(reader.integer("Q") for _ in range(dimensions))[::-1]  # GGUF names the fastest dimension first
    return name, shape, reader.integer("I"), reader.integer("Q")


def _locate(reader: _Reader, name: str, shape: tuple[int, ...], type_id: int, offset_bytes: int) -> TensorInfo:
    if type_id not in TENSOR_TYPES:
        known = ", ".join(type_name for type_name, _, _ in TENSOR_TYPES.values())
        shown = _OTHER_TYPES.get(type_id, f"number {type_id}")
        raise reader.broken(f"tensor {name} has type {shown}, which is not supported ({known} are)")
    type_name, block_elements, block_bytes = TENSOR_TYPES[type_id]
    if shape[-1] % block_elements:
        raise reader.broken(f"tensor {name} has rows of {shape[-1]}, no multiple of {type_name}'s {block_elements}")
    elements = 1
    for extent in shape:
        elements *= extent
    return TensorInfo(name, shape, type_id, offset_bytes, elements // block_elements * block_bytes)


def _model_metadata(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> ModelMetadata:
    def broken(reason: str) -> ConfigError:
        return ConfigError("model", str(path), reason)

    def number(key: str, default: float | None = None) -> float:
        value = metadata.get("llama." + key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise broken(f"metadata llama.{key} is {value!r}, not a positive number")
        return value

    def token(key: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{key}_token_id")
        return value if isinstance(value, int) else None

    if metadata.get("llama.expert_count"):
        raise broken("mixture-of-experts models are not supported")
    hidden, heads = int(number("embedding_length")), int(number("attention.head_count"))
    kv_heads = int(number("attention.head_count_kv", heads))
    head_dim = int(number("attention.key_length", hidden // heads))
    if (value_length := number("attention.value_length", head_dim)) != head_dim:
        raise broken(f"keys of {head_dim} and values of {value_length} per head are not supported (equal ones are)")
    if (rotary := number("rope.dimension_count", head_dim)) != head_dim:
        raise broken(f"rotating {rotary} of {head_dim} dimensions of a head is not supported (all is)")
    if heads % kv_heads or head_dim % 2:
        raise broken(f"{heads} heads over {kv_heads} key-value heads of {head_dim} dimensions do not divide")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise broken(f"rope scaling {scaling!r} is not supported (none and linear are)")
    if "token_embd.weight" not in tensors:
        raise broken("tensor token_embd.weight is missing")
    end_ids = (token("eos"), token("eot"), token("eom"))
    return ModelMetadata(
        architecture="llama",
        name=str(metadata.get("general.name", path.stem)),
        layers=int(number("block_count")),
        hidden=hidden,
        feed_forward=int(number("feed_forward_length")),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=tensors["token_embd.weight"].shape[0],
        context_tokens=int(number("context_length")),
        rms_eps=number("attention.layer_norm_rms_epsilon"),
        rope_base=number("rope.freq_base", 10000.0),
        rope_linear_factor=number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
        bos_token_id=token("bos"),
        eos_token_ids=tuple(dict.fromkeys(i for i in end_ids if i is not None)),
    )
