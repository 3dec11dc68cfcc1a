"""The paged KV cache's memory: two tensors a layer, made of blocks that are copied, read out and written in whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov

from inflightd.daemon.engines.api import BlockMove, MoveKind
from inflightd.daemon.engines.openvino.kv_layout import KvDtype, block_bytes, block_shapes
from inflightd.daemon.errors import EngineError
from inflightd.daemon.models.gguf_file import ModelMetadata


class KvCache:
    """Blocks 0 .. blocks - 1.  Nothing here may be called while a step runs.

    Memory is not cleared: the kernel hands pages out as they are first written, so an unused pool costs nothing.
    """

    def __init__(self, compiled: Any, model: ModelMetadata, kv_dtype: KvDtype, blocks: int) -> None:
        """Raises EngineError if the compiled model wants other block shapes than `kv_layout` says."""
        self.bytes_per_block = block_bytes(model, kv_dtype)
        self.tensors: dict[str, Any] = {}  # input name -> openvino.Tensor [blocks, ...]
        shapes = dict(zip(("key", "value"), block_shapes(model, kv_dtype), strict=True))
        for port in compiled.inputs:
            name = port.get_any_name()
            kind, found, _ = name.partition("_cache.")
            if not found:
                continue
            wanted = tuple(extent.get_length() for extent in list(port.get_partial_shape())[1:])
            if wanted != shapes[kind]:
                raise EngineError(f"the compiled model wants blocks of {wanted} for {name}, not {shapes[kind]}")
            self.tensors[name] = ov.Tensor(port.get_element_type(), ov.Shape([blocks, *wanted]))
        # bf16 has no NumPy type: blocks are moved as plain bytes.
        self._views = [_as_bytes(tensor, blocks) for tensor in self.tensors.values()]
        if sum(view.shape[1] for view in self._views) != self.bytes_per_block:
            raise EngineError(f"the compiled model's blocks are not of {self.bytes_per_block} bytes ({kv_dtype})")

    def move_blocks(self, moves: Sequence[BlockMove]) -> None:
        """Do each move in order."""
        for kind, source, destination in moves:
            if kind is not MoveKind.COPY:
                raise EngineError(f"{kind.name}: this cache has no host blocks")
            for view in self._views:
                view[destination] = view[source]

    def read_block(self, block: int) -> bytes:
        """The block's content over all layers, `bytes_per_block` long."""
        return b"".join(view[block].data for view in self._views)

    def write_block(self, block: int, content: bytes) -> None:
        """Put back what `read_block` gave, into the same or another block."""
        if len(content) != self.bytes_per_block:
            raise ValueError(f"a block has {self.bytes_per_block} bytes, not {len(content)}")
        whole, at = np.frombuffer(content, np.uint8), 0
        for view in self._views:
            view[block] = whole[at : at + view.shape[1]]
            at += view.shape[1]


def _as_bytes(tensor: Any, blocks: int) -> Any:
    return tensor.data.view(np.uint8).reshape(blocks, -1)
