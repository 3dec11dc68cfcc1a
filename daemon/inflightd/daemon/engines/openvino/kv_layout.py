"""How large a block of the CPU plugin's KV cache is.  Imports no engine library: the memory budget asks first."""

from __future__ import annotations

from typing import Literal

from inflightd.daemon.models.gguf_file import ModelMetadata

KvDtype = Literal["bf16", "f32", "u8"]
KV_DTYPES: tuple[KvDtype, ...] = ("bf16", "f32", "u8")

BLOCK_SIZE_TOKENS = 32  # fixed by the CPU plugin
_QUANTIZATION_BYTES = 8  # u8 only: a float32 scale and a float32 zero point


def block_shapes(model: ModelMetadata, kv_dtype: KvDtype) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Elements of a block in a layer's key and value tensor: [kv_heads, rows, columns].

    u8 keys are quantized by channel (scale and zero point of a channel stand in 8 more rows), u8 values by token
    (in 8 more columns).
    """
    extra = _QUANTIZATION_BYTES if kv_dtype == "u8" else 0
    key = (model.kv_heads, BLOCK_SIZE_TOKENS + extra, model.head_dim)
    value = (model.kv_heads, BLOCK_SIZE_TOKENS, model.head_dim + extra)
    return key, value


def block_bytes(model: ModelMetadata, kv_dtype: KvDtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    element_bytes = {"bf16": 2, "f32": 4, "u8": 1}[kv_dtype]
    elements = sum(heads * rows * columns for heads, rows, columns in block_shapes(model, kv_dtype))
    return model.layers * elements * element_bytes
