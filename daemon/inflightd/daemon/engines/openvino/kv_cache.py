"""The paged KV cache's memory: two tensors a layer, made of blocks that are copied and swapped in whole."""

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
    """Blocks 0 .. blocks - 1, and host blocks 0 .. host_blocks - 1 of the same sizes that the model never sees.

    Nothing here may be called while a step runs.  Memory is not cleared: the kernel hands pages out as they are first
    written, so an unused pool costs nothing.
    """

    def __init__(self, compiled: Any, model: ModelMetadata, kv_dtype: KvDtype, blocks: int, host_blocks: int) -> None:
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
        # A host block is one piece of memory: spread over the tensors, its first use would fault in a page for each.
        host = np.empty((host_blocks, self.bytes_per_block), np.uint8)
        ends = np.cumsum([view.shape[1] for view in self._views])[:-1]
        self._host_views = np.split(host, ends, axis=1)  # [host_blocks, bytes of a block in that tensor]
        self._extents = {
            MoveKind.COPY: (blocks, blocks),
            MoveKind.OUT: (blocks, host_blocks),
            MoveKind.IN: (host_blocks, blocks),
        }

    def move_blocks(self, moves: Sequence[BlockMove]) -> None:
        """Do each move in order; bytes are copied as they are.  Raises EngineError for a block that does not exist."""
        runs = _runs(moves)
        for kind, source, destination, blocks in runs:
            sources, destinations = self._extents[kind]
            if not (0 <= source <= sources - blocks and 0 <= destination <= destinations - blocks):
                raise EngineError(f"{kind.name} of {blocks} blocks from {source} to {destination}: no such block")
        for device, host in zip(self._views, self._host_views, strict=True):  # tensors do not know of each other
            for kind, source, destination, blocks in runs:
                origin = host if kind is MoveKind.IN else device
                target = host if kind is MoveKind.OUT else device
                target[destination : destination + blocks] = origin[source : source + blocks]

    def read_block(self, block: int) -> bytes:
        """The block's content over all layers, `bytes_per_block` long."""
        return b"".join(view[block].data for view in self._views)


def _runs(moves: Sequence[BlockMove]) -> list[tuple[MoveKind, int, int, int]]:
    """(kind, source, destination, blocks): neighbours that go to neighbours are one copy, twice as fast as many."""
    runs: list[tuple[MoveKind, int, int, int]] = []
    for kind, source, destination in moves:
        if runs and kind is not MoveKind.COPY:  # a copy within the device could overlap with its run
            before, first, to, blocks = runs[-1]
            if before is kind and first + blocks == source and to + blocks == destination:
                runs[-1] = (kind, first, to, blocks + 1)
                continue
        runs.append((kind, source, destination, 1))
    return runs


def _as_bytes(tensor: Any, blocks: int) -> Any:
    return tensor.data.view(np.uint8).reshape(blocks, -1)
