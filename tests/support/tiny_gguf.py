"""Llama models small enough to write, load and check in a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    layers: int = 2
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int | None = None  # None: hidden / heads, not written to the file
    feed_forward: int = 192
    vocab_size: int = 256
    context_tokens: int = 256
    tensor_type: str = "F32"
    tied: bool = True
    rope_factors: bool = False
    architecture: str = "llama"
    metadata: Mapping[str, object] = field(default_factory=dict)  # more llama.* keys
    extra_tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def write_tiny_gguf(path: Path, model: TinyModel = TinyModel()) -> Path:  # noqa: B008 - frozen
    """Random weights, always the same for the same model."""
    rng = np.random.default_rng(7)
    writer = GGUFWriter(path, model.architecture)
    writer.add_name("tiny")
    writer.add_block_count(model.layers)
    writer.add_context_length(model.context_tokens)
    writer.add_embedding_length(model.hidden)
    writer.add_feed_forward_length(model.feed_forward)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if model.head_dim:
        writer.add_key_length(model.head_dim)
        writer.add_value_length(model.head_dim)
    writer.add_token_list([f"t{i}" for i in range(model.vocab_size)])
    writer.add_eos_token_id(2)
    for key, value in model.metadata.items():
        writer.add_string(f"llama.{key}", value) if isinstance(value, str) else writer.add_uint32(
            f"llama.{key}", int(str(value))
        )

    head_dim = model.head_dim or model.hidden // model.heads
    matrices = {"token_embd": (model.vocab_size, model.hidden)}
    if not model.tied:
        matrices["output"] = (model.vocab_size, model.hidden)
    vectors = {"output_norm": model.hidden}
    for layer in range(model.layers):
        name = f"blk.{layer}."
        vectors[name + "attn_norm"] = vectors[name + "ffn_norm"] = model.hidden
        matrices[name + "attn_q"] = (model.heads * head_dim, model.hidden)
        matrices[name + "attn_k"] = matrices[name + "attn_v"] = (model.kv_heads * head_dim, model.hidden)
        matrices[name + "attn_output"] = (model.hidden, model.heads * head_dim)
        matrices[name + "ffn_gate"] = matrices[name + "ffn_up"] = (model.feed_forward, model.hidden)
        matrices[name + "ffn_down"] = (model.hidden, model.feed_forward)
    kind = GGMLQuantizationType[model.tensor_type]
    for name, shape in matrices.items():
        values = (rng.standard_normal(shape) * 2 / np.sqrt(shape[1])).astype(np.float32)
        if name + ".weight" not in model.left_out:
            writer.add_tensor(name + ".weight", quantize(values, kind), raw_dtype=kind)
    for name, length in vectors.items():
        writer.add_tensor(name + ".weight", rng.uniform(0.5, 1.5, length).astype(np.float32))
    if model.rope_factors:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, head_dim // 2).astype(np.float32))
    for name, shape in model.extra_tensors.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
