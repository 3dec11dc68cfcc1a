"""From what the front asks for to a loaded OpenVINO engine: the memory budget comes first, the slow load after it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import openvino as ov

from inflightd.daemon.core.kv.dtypes import kv_dtype
from inflightd.daemon.core.kv.fit import check_fit
from inflightd.daemon.core.wire import Start
from inflightd.daemon.engines.api import Progress
from inflightd.daemon.engines.memory import available_bytes
from inflightd.daemon.engines.openvino.check import check_openvino
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load
from inflightd.daemon.engines.openvino.kv_layout import BLOCK_SIZE_TOKENS, KV_DTYPES, KvDtype, block_bytes
from inflightd.daemon.engines.openvino.options import OpenVinoOptions, Precision
from inflightd.daemon.errors import ConfigError
from inflightd.daemon.models.gguf_file import read_gguf
from inflightd.daemon.models.source import ModelSource

_WEIGHT_BYTES = 2  # matrices are kept in 16 bits
_DEFAULT_SHARE = 0.25  # of the available memory, for a pool of which no size is given
_DEFAULT_SEQUENCE_TOKENS = 2048  # such a pool is no larger than a full batch of these needs


def launch(start: Start, progress: Progress) -> OpenVinoEngine:
    """Raises ConfigError, before anything slow, if model, library, memory or a setting cannot work."""
    check_openvino()
    path = Path(start.model)
    if path.is_dir():
        raise ConfigError("model", start.model, "the openvino engine runs GGUF files only")
    gguf = read_gguf(path)
    model = gguf.model
    precision = _precision(start.precision)
    dtype = start.kv.dtype or precision
    if dtype not in KV_DTYPES:
        raise ConfigError("kv_dtype", dtype, f"the openvino engine has {', '.join(KV_DTYPES)}")
    bytes_per_block = block_bytes(model, cast("KvDtype", dtype))
    available = available_bytes()
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
        weights_bytes=sum(_WEIGHT_BYTES * math.prod(tensor.shape) for tensor in gguf.tensors.values()),
    )
    options = OpenVinoOptions(
        source=ModelSource("gguf", path, start.model_name),
        num_blocks=fit.blocks_total,
        max_num_tokens=start.limits.max_num_tokens,
        max_batch_size=start.limits.max_batch_size,
        precision=precision,
        kv_dtype=cast("KvDtype", dtype),
        threads=start.threads,
    )
    return load(options, progress)


def _precision(asked: str | None) -> Precision:
    """bf16 where the CPU has it, unless something else is asked for."""
    has_bf16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if asked == "bf16" and not has_bf16:
        raise ConfigError("precision", asked, "this CPU has no bf16 instructions; use f32")
    if asked not in (None, "bf16", "f32"):
        raise ConfigError("precision", asked, "the openvino engine has bf16 and f32")
    return cast("Precision", asked or ("bf16" if has_bf16 else "f32"))
