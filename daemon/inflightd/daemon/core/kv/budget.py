"""KV cache bytes by arithmetic: per token, per sequence, and how many sequences a memory size holds.

Grouped and multi-query attention: 2 x layers x kv_heads x head_dim x bytes.  Multi-head latent attention:
layers x (kv_lora_rank + qk_rope_head_dim) x bytes, the same on every device.  With tensor parallelism over t devices
each holds max(1, kv_heads / t) heads: fewer heads than devices are copied, not divided.

Hybrid models: by default all layers are charged in full, which is what our engines allocate (one pool for all layers).
`windowed=True` gives what an allocator with a pool per window would need.
"""

from __future__ import annotations

from inflightd.daemon.core.kv.dtypes import KvDtype
from inflightd.daemon.core.kv.model_config import ModelShape
from inflightd.daemon.core.kv.table import blocks_for
from inflightd.daemon.errors import ConfigError


def local_kv_heads(shape: ModelShape, tensor_parallel: int) -> int:
    """KV heads on each of `tensor_parallel` devices.  ConfigError if the heads cannot be divided among them."""
    if tensor_parallel < 1 or shape.query_heads % tensor_parallel:
        raise ConfigError(
            "tensor_parallel",
            tensor_parallel,
            f"{shape.query_heads} query heads cannot be divided among {tensor_parallel} devices",
        )
    fewer, more = sorted((shape.kv_heads, tensor_parallel))
    if not shape.is_latent and more % fewer:
        raise ConfigError(
            "tensor_parallel",
            tensor_parallel,
            f"{shape.kv_heads} KV heads can be neither divided nor copied evenly among {tensor_parallel} devices",
        )
    return max(1, shape.kv_heads // tensor_parallel)


def kv_bytes_per_token(
    shape: ModelShape, dtype: KvDtype, tensor_parallel: int = 1, *, speculation: bool = False
) -> int:
    """Bytes of one token on one device, all layers in full."""
    layers = shape.layers + (shape.draft_layers if speculation else 0)
    return layers * _layer_bytes(shape, dtype, tensor_parallel)


def kv_bytes(
    shape: ModelShape, tokens: int, dtype: KvDtype, tensor_parallel: int = 1, *, windowed: bool = False
) -> int:
    """Bytes of one sequence of `tokens` on one device; `windowed`: sliding layers hold no more than their window."""
    per_layer = _layer_bytes(shape, dtype, tensor_parallel)
    in_window = min(tokens, shape.window_tokens) if windowed and shape.window_tokens else tokens
    return per_layer * (shape.full_layers * tokens + shape.windowed_layers * in_window)


def packed_latent_bytes_per_token(shape: ModelShape) -> int:
    """Bytes of one token in the packed fp8 layout of latent attention kernels (FlashMLA).

    Per layer one byte for each of the latent's values, an f32 scale for each 128 of them, and the rope part in bf16.
    """
    if not shape.is_latent:
        raise ConfigError("kv_dtype", "packed latent", f"{shape.model_type} has no latent attention")
    return shape.layers * (shape.latent_rank + 4 * -(-shape.latent_rank // 128) + 2 * shape.latent_rope_dim)


def concurrency(
    memory_bytes: int,
    tokens_per_sequence: int,
    shape: ModelShape,
    dtype: KvDtype,
    tensor_parallel: int = 1,
    *,
    block_size_tokens: int = 1,
    windowed: bool = False,
) -> int:
    """Sequences of that length that fit in `memory_bytes` per device at a time, in whole blocks."""
    whole_tokens = blocks_for(tokens_per_sequence, block_size_tokens) * block_size_tokens
    return memory_bytes // kv_bytes(shape, whole_tokens, dtype, tensor_parallel, windowed=windowed)


def _layer_bytes(shape: ModelShape, dtype: KvDtype, tensor_parallel: int) -> int:
    heads = local_kv_heads(shape, tensor_parallel)
    if shape.is_latent:
        return dtype.row_bytes(shape.latent_rank + shape.latent_rope_dim)
    return dtype.row_bytes(heads * shape.key_dim) + dtype.row_bytes(heads * shape.value_dim)
