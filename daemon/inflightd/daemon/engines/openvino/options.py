"""What the OpenVINO engine is loaded with.  Imports no engine library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from inflightd.daemon.engines.openvino.kv_layout import KvDtype
from inflightd.daemon.models.cache import weights_dir
from inflightd.daemon.models.source import ModelSource

Precision = Literal["bf16", "f32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoOptions:
    source: ModelSource
    num_blocks: int  # blocks of 32 tokens that sequences may use; one more is allocated for padding rows
    num_host_blocks: int = 0  # blocks in host memory that sequences can be swapped out to
    max_num_tokens: int = 2048  # of a step; larger steps work, their first run is slower
    max_batch_size: int = 256
    precision: Precision | None = None  # None: bf16 where the CPU has it, else f32
    kv_dtype: KvDtype | None = None  # None: as precision
    threads: int | None = None  # None: as many as CPUs this process may use
    weights_cache: Path | None = field(default_factory=weights_dir)  # None: dequantize at each start
