"""From what the front asks for to a loaded OpenVINO engine: the memory budget comes first, the slow load after it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar

from inflightd.daemon.core.kv.dtypes import kv_dtype
from inflightd.daemon.core.kv.fit import check_fit, fitted_host_blocks
from inflightd.daemon.core.wire import Start
from inflightd.daemon.engines.api import Progress
from inflightd.daemon.engines.memory import available_bytes
from inflightd.daemon.engines.openvino.check import check_openvino
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load, resolve_dtypes
from inflightd.daemon.engines.openvino.kv_layout import BLOCK_SIZE_TOKENS, KV_DTYPES, block_bytes
from inflightd.daemon.engines.openvino.options import OpenVinoOptions
from inflightd.daemon.errors import ConfigError
from inflightd.daemon.models.gguf_file import GgufFile, read_gguf
from inflightd.daemon.models.source import ModelSource
from inflightd.profiling.ranges import Ranges

T = TypeVar("T", bound=str)

_DEFAULT_SHARE = 0.25  # of the available memory, for a pool of which no size is given
_DEFAULT_SWAP_BYTES = 256 * 1024 * 1024  # at most the pool and a quarter of what is left
_DEFAULT_SEQUENCE_TOKENS = 2048  # such a pool is no larger than a full batch of these needs


def launch(start: Start, progress: Progress, ranges: Ranges | None = None) -> OpenVinoEngine:
    """Raises ConfigError, before anything slow, if model, library, memory or a setting cannot work."""
    check_openvino()
    path = Path(start.model)
    if path.is_dir():
        raise ConfigError("model", start.model, "the openvino engine runs GGUF files only")
    gguf = read_gguf(path)
    model = gguf.model
    precision, dtype = resolve_dtypes(
        _one_of("precision", start.precision, ("bf16", "f32")), _one_of("kv_dtype", start.kv.dtype, KV_DTYPES)
    )
    bytes_per_block = block_bytes(model, dtype)
    available, weights_bytes = available_bytes(), _weight_bytes(gguf)
    blocks, memory_bytes = start.kv.blocks, start.kv.memory_bytes
    if blocks is None and memory_bytes is None:
        batch_tokens = start.limits.max_batch_size * min(_DEFAULT_SEQUENCE_TOKENS, model.context_tokens)
        wanted = max(batch_tokens, start.limits.max_sequence_tokens or model.context_tokens) // BLOCK_SIZE_TOKENS
        blocks = max(1, min(wanted, int(available * _DEFAULT_SHARE) // bytes_per_block))
    fit = check_fit(
        context_tokens=model.context_tokens,
        max_sequence_tokens=start.limits.max_sequence_tokens,
        block_size_tokens=BLOCK_SIZE_TOKENS,
        block_bytes=bytes_per_block,
        dtype=kv_dtype(dtype),
        kv_blocks=blocks,
        kv_memory_bytes=memory_bytes,
        available_bytes=available,
        weights_bytes=weights_bytes,
        engine_dtypes=(precision, "u8"),  # what the plugin has beside this arithmetic
    )
    swap_bytes = start.kv.swap_bytes
    if swap_bytes is None:
        left_bytes = available - weights_bytes - fit.cache_bytes
        swap_bytes = min(_DEFAULT_SWAP_BYTES, fit.cache_bytes, left_bytes // 4) // bytes_per_block * bytes_per_block
    host_blocks = fitted_host_blocks(
        swap_bytes=swap_bytes,
        block_bytes=bytes_per_block,
        pool_bytes=fit.cache_bytes,
        weights_bytes=weights_bytes,
        available_bytes=available,
    )
    options = OpenVinoOptions(
        source=ModelSource("gguf", path, start.model_name),
        num_blocks=fit.blocks_total,
        num_host_blocks=host_blocks,
        max_num_tokens=start.limits.max_num_tokens,
        max_batch_size=start.limits.max_batch_size,
        precision=precision,
        kv_dtype=dtype,
        threads=start.threads,
    )
    return load(options, progress, ranges)


def _weight_bytes(gguf: GgufFile) -> int:
    """Bytes of the weights in memory: quantized and 16-bit matrices are kept in 16 bits, float32 ones as they are."""
    return sum(math.prod(tensor.shape) * (4 if tensor.type_name == "F32" else 2) for tensor in gguf.tensors.values())


def _one_of(field: str, asked: str | None, known: tuple[T, ...]) -> T | None:
    """`asked` as one of `known`; None stays None, the machine's default."""
    for name in known:
        if name == asked:
            return name
    if asked is not None:
        raise ConfigError(field, asked, f"the openvino engine has {', '.join(known)}")
    return None
