"""The Llama graph, built node by node from the arrays of `inflightd.daemon.models.weights`.

Every shape is chosen so that the CPU plugin's fusions match: activations of rank 3, rotary embedding in the rank 4 form
with gathered cos/sin tables, one matrix product for q, k and v, one rotation over the q and k heads together, and
`x * sigmoid(x)`, which becomes one node with the MLP's three products.

Inputs of a step of T tokens of S sequences, R of them sampled; block tables are concatenated:

| input | type, shape |
|---|---|
| input_ids, position_ids | i64 [T] |
| past_lens, subsequence_begins | i32 [S], [S + 1] |
| block_indices, block_indices_begins | i32 [sum of table lengths], [S + 1] |
| max_context_len | i32 [] |
| sampled_tokens_indices | i64 [R], the rows of T that reach the head |
| key_cache.N, value_cache.N | the plugin's choice, see `kv_cache.py` |

Outputs: token i32 [R] (greedy), logits f32 [R, V], and maxima f32 [R, V / B], the maxima over pieces of B neighbouring
logits.  The greedy token needs them anyway; `candidates.py` finds the top k through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray
from openvino import op as private_ops

from inflightd.daemon.engines.openvino.check import PAGED_ATTENTION
from inflightd.daemon.models.gguf_file import ModelMetadata

TOKEN, LOGITS, MAXIMA = range(3)  # the outputs' order: found by number in a fifth of the time

Node = Any  # openvino.Node or openvino.Output: the library has no type information
_model: Any = ov.Model
_paged_attention: Any = getattr(private_ops, PAGED_ATTENTION)


def piece_height(vocab_size: int) -> int:
    """B, the neighbouring logits that share one entry of `maxima`: 16, or less where that does not divide V."""
    return next(height for height in (16, 8, 4, 2, 1) if vocab_size % height == 0)


def build_llama(model: ModelMetadata, arrays: Mapping[str, NDArray[Any]], *, fuse_mlp: bool) -> Any:
    """-> openvino.Model.  `arrays` must outlive it: the constants share their memory.

    fuse_mlp: let the plugin make one node of each MLP.  10 % faster in mixed steps; that node kills the process
    (SIGFPE) if the number of threads is odd.
    """
    return _LlamaGraph(model, arrays, fuse_mlp).build()


def build_normaliser(vocab_size: int) -> Any:
    """-> openvino.Model: logits f32 [Q, V], shift f32 [Q], scale f32 [Q] -> log_mass f32 [Q].

    log_mass is the logsumexp of (logits - shift) * scale.
    """
    logits = _parameter("logits", np.float32, -1, vocab_size)
    shift, scale = _parameter("shift", np.float32, -1), _parameter("scale", np.float32, -1)
    exponents = ops.multiply(ops.subtract(logits, ops.unsqueeze(shift, _i64(1))), ops.unsqueeze(scale, _i64(1)))
    log_mass = ops.log(ops.reduce_sum(ops.exp(exponents), _i64(1), False))
    return _model([_result(log_mass, "log_mass")], [logits, shift, scale], "normaliser")


class _LlamaGraph:
    def __init__(self, model: ModelMetadata, arrays: Mapping[str, NDArray[Any]], fuse_mlp: bool) -> None:
        self._model, self._arrays = model, arrays
        # `x * sigmoid(x)` fuses; ops.swish carries a beta input and does not.
        self._silu: Callable[[Node], Node] = (lambda x: ops.multiply(x, ops.sigmoid(x))) if fuse_mlp else ops.swish
        self._parameters: list[Node] = []

    def build(self) -> Any:
        model = self._model
        ids, positions = self._input("input_ids", np.int64, -1), self._input("position_ids", np.int64, -1)
        batch = (
            self._input("past_lens", np.int32, -1),
            self._input("subsequence_begins", np.int32, -1),
            self._input("block_indices", np.int32, -1),
            self._input("block_indices_begins", np.int32, -1),
        )
        longest = self._input("max_context_len", np.int32)
        sampled = self._input("sampled_tokens_indices", np.int64, -1)
        cos, sin = self._rotary_tables(positions)

        embedding = self._weight("embd")
        x = ops.gather(embedding, ops.unsqueeze(ids, _i64(1)), _i64_scalar(0))  # [T, 1, hidden]
        for layer in range(model.layers):
            name = f"blk.{layer}."
            attended = self._attention(self._rms(x, name + "attn_norm"), layer, (cos, sin), batch, longest)
            x = ops.add(x, self._project(attended, name + "o"))
            h = self._rms(x, name + "ffn_norm")
            gated = ops.multiply(self._silu(self._project(h, name + "gate")), self._project(h, name + "up"))
            x = ops.add(x, self._project(gated, name + "down"))
        x = self._rms(ops.gather(x, sampled, _i64_scalar(0)), "norm")
        head = self._weight("head") if "head" in self._arrays else embedding
        logits = ops.reshape(ops.matmul(x, head, False, True), _i64(-1, model.vocab_size), False)
        token, maxima = self._greedy(logits)
        results = [_result(token, "token"), _result(logits, "logits"), _result(maxima, "maxima")]
        return _model(results, self._parameters, "llama")

    def _rotary_tables(self, positions: Node) -> tuple[Node, Node]:
        """-> cos and sin of each token's angles, f32 [T, 1, 1, head_dim], the two halves of a head alike."""
        model = self._model
        frequencies = model.rope_base ** (-np.arange(0, model.head_dim, 2) / model.head_dim)
        if "rope_factors" in self._arrays:
            frequencies = frequencies / self._arrays["rope_factors"]
        at = np.arange(model.context_tokens)[:, None] / model.rope_linear_factor
        angles = np.tile(at * frequencies, 2)
        shape = _i64(-1, 1, 1, model.head_dim)

        def gathered(table: NDArray[np.float64]) -> Node:
            return ops.reshape(ops.gather(_f32(table), positions, _i64_scalar(0)), shape, False)

        return gathered(np.cos(angles)), gathered(np.sin(angles))

    def _attention(
        self, x: Node, layer: int, tables: tuple[Node, Node], batch: tuple[Node, Node, Node, Node], longest: Node
    ) -> Node:
        model = self._model
        heads, kv_heads, dim = model.heads, model.kv_heads, model.head_dim
        joint = self._project(x, f"blk.{layer}.qkv")
        qk, v = _split(joint, (heads + kv_heads) * dim, kv_heads * dim)
        q, k = _split(self._rotated(qk, heads + kv_heads, tables), heads * dim, kv_heads * dim)
        caches = [self._input(f"{kind}_cache.{layer}", ov.Type.dynamic, -1, -1, -1, -1) for kind in ("key", "value")]
        no_i32, no_f32 = _empty(np.int32), _empty(np.float32)
        past, begins, blocks, block_begins = batch
        # What the other inputs mean (scale, sliding window, ALiBi, scores, cache rotation, x-attention, sinks,
        # adaptive R-KV, token types) is in OpenVINO's paged_attention.hpp; an empty constant turns each off.
        inputs = [
            q, k, ops.reshape(v, _i64(-1, kv_heads * dim), False), *caches, past, begins, blocks, block_begins,
            _f32(dim**-0.5), _i32(0), no_f32, longest, no_i32, no_i32, no_i32, no_f32, no_f32, _i32(0), _i32(0),
            ops.constant(np.zeros((0, 0, 0, 0), np.float32)), _i32(0), no_i32, no_i32, no_i32, no_i32,
            _empty(np.uint8), no_i32,
        ]  # fmt: skip
        paged = _paged_attention([n if isinstance(n, ov.Output) else n.output(0) for n in inputs])
        info = paged.get_rt_info()
        info["num_k_heads"] = info["num_v_heads"] = kv_heads
        info["k_head_size"] = info["v_head_size"] = dim
        return ops.reshape(paged.output(0), _i64(-1, 1, heads * dim), False)

    def _rotated(self, x: Node, heads: int, tables: tuple[Node, Node]) -> Node:
        dim, (cos, sin) = self._model.head_dim, tables
        x = ops.reshape(x, _i64(-1, heads, 1, dim), False)
        low = ops.slice(x, _i64(0), _i64(dim // 2), _i64(1), _i64(3))
        high = ops.slice(x, _i64(dim // 2), _i64(2**63 - 1), _i64(1), _i64(3))
        turned = ops.concat([ops.multiply(high, _f32(-1)), low], -1)
        rotated = ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))
        return ops.reshape(rotated, _i64(-1, heads * dim), False)

    def _rms(self, x: Node, name: str) -> Node:
        mean = ops.reduce_mean(ops.power(x, _f32(2)), _i64(-1), True)
        scale = ops.divide(_f32(1), ops.sqrt(ops.add(mean, _f32(self._model.rms_eps))))
        return ops.multiply(ops.multiply(x, scale), _f32(self._arrays[name].reshape(1, 1, -1)))

    def _greedy(self, logits: Node) -> tuple[Node, Node]:
        """The first piece with the greatest maximum, then the first such entry in it: what argmax() gives."""
        height = piece_height(self._model.vocab_size)
        pieces = ops.reshape(logits, _i64(-1, self._model.vocab_size // height, height), False)
        maxima = ops.reduce_max(pieces, _i64(2), False)
        piece = _first_greatest(maxima)  # [R, 1]
        entries = ops.reshape(ops.gather(pieces, piece, _i64_scalar(1), 1), _i64(-1, height), False)
        token = ops.add(ops.multiply(piece, _i32(height)), _first_greatest(entries))
        return ops.reshape(token, _i64(-1), False), maxima

    def _project(self, x: Node, name: str) -> Node:
        return ops.matmul(x, self._weight(name), False, True)

    def _weight(self, name: str) -> Node:
        constant = ops.constant(self._arrays[name], shared_memory=True)
        if self._arrays[name].dtype == np.float32:
            return constant
        converted = ops.convert(constant, np.float32)
        converted.get_rt_info()["decompression_0"] = ""  # keeps the f16 constant: no f32 copy while compiling
        return converted

    def _input(self, name: str, element: Any, *shape: int) -> Node:
        self._parameters.append(_parameter(name, element, *shape))
        return self._parameters[-1]


def _parameter(name: str, element: Any, *shape: int) -> Node:
    parameter = ops.parameter(list(shape), element, name=name)
    parameter.output(0).tensor.set_names({name})
    return parameter


def _result(node: Node, name: str) -> Node:
    node.output(0).tensor.set_names({name})
    return ops.result(node.output(0))


def _split(x: Node, *lengths: int) -> Any:
    return ops.variadic_split(x, _i64(-1), _i64(*lengths)).outputs()


def _first_greatest(x: Node) -> Node:
    return ops.topk(x, _i64_scalar(1), 1, "max", "value", "i32").output(1)


def _f32(value: Any) -> Node:
    return ops.constant(np.asarray(value, np.float32))


def _i32(value: int) -> Node:
    return ops.constant(np.int32(value))


def _i64(*values: int) -> Node:
    return ops.constant(np.array(values, np.int64))


def _i64_scalar(value: int) -> Node:
    return ops.constant(np.int64(value))


def _empty(element: Any) -> Node:
    return ops.constant(np.zeros((0,), element))
