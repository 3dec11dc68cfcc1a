"""Reading the shape of a model from its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from inflightd.daemon.core.kv.model_config import shape_from_gguf, shape_from_hf
from inflightd.daemon.errors import ConfigError

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
GGUF: dict[str, Any] = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 36,
    "qwen3.context_length": 40960,
    "qwen3.embedding_length": 2560,
    "qwen3.attention.head_count": 32,
    "qwen3.attention.head_count_kv": 8,
    "qwen3.attention.key_length": 128,
    "qwen3.attention.value_length": 64,
}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize(
    ("change", "head_dim"),
    [
        ({}, 128),
        ({"head_dim": None}, 128),
        ({"head_dim": 80}, 80),
        ({"model_type": "gemma3_text"}, 256),
        ({"model_type": "gemma3_text", "head_dim": None}, 128),
        ({"model_type": "qwen3", "hidden_size": 2560}, 128),
    ],
)
def test_a_given_head_dim_wins_and_the_division_is_the_fallback(change: dict[str, Any], head_dim: int) -> None:
    """Case B01."""
    shape = shape_from_hf(LLAMA | change)
    assert (shape.key_dim, shape.value_dim) == (head_dim, head_dim)


@pytest.mark.parametrize("kv_heads", [{}, {"num_key_value_heads": None}])
def test_absent_kv_heads_are_multi_head_attention(kv_heads: dict[str, Any]) -> None:
    assert shape_from_hf(without(LLAMA, "num_key_value_heads") | kv_heads).kv_heads == 32


@pytest.mark.parametrize(
    ("change", "full", "windowed"),
    [
        ({"sliding_window": None}, 32, 0),
        ({"sliding_window": 4096, "model_type": "mistral"}, 0, 32),
        ({"sliding_window": 4096, "model_type": "qwen2"}, 32, 0),
        ({"sliding_window": 4096, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28}, 28, 4),
        ({"sliding_window": 4096, "use_sliding_window": False}, 32, 0),
        ({"sliding_window": 128, "layer_types": ["sliding_attention"] * 24 + ["full_attention"] * 8}, 8, 24),
        ({"attention_chunk_size": 8192, "layer_types": ["chunked_attention"] * 24 + ["full_attention"] * 8}, 8, 24),
        ({"layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8}, 8, 0),
    ],
)
def test_windowed_layers(change: dict[str, Any], full: int, windowed: int) -> None:
    shape = shape_from_hf(LLAMA | change)
    assert (shape.full_layers, shape.windowed_layers) == (full, windowed)
    assert (shape.window_tokens is not None) == (windowed > 0)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (without(LLAMA, "num_hidden_layers"), "num_hidden_layers"),
        (without(LLAMA, "num_attention_heads"), "num_attention_heads"),
        (without(LLAMA, "hidden_size"), "hidden_size"),
        (LLAMA | {"head_dim": 0}, "head_dim"),
        (LLAMA | {"num_hidden_layers": "32"}, "num_hidden_layers"),
        (LLAMA | {"num_key_value_heads": -8}, "num_key_value_heads"),
        (LLAMA | {"hidden_size": 4100}, "hidden_size"),
        (LLAMA | {"kv_lora_rank": 512}, "qk_rope_head_dim"),
        (LLAMA | {"layer_types": ["full_attention", "new_attention"]}, "layer_types"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 32}, "sliding_window"),
    ],
)
def test_what_is_missing_or_senseless_is_named(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        shape_from_hf(config)
    assert raised.value.field == field


def test_gguf_gives_key_and_value_lengths() -> None:
    shape = shape_from_gguf(GGUF)
    assert (shape.layers, shape.kv_heads, shape.key_dim, shape.value_dim) == (36, 8, 128, 64)
    assert shape.context_tokens == 40960
    assert shape_from_gguf(without(GGUF, "qwen3.attention.value_length")).value_dim == 128
    derived = shape_from_gguf(without(GGUF, "qwen3.attention.value_length", "qwen3.attention.key_length"))
    assert derived.key_dim == derived.value_dim == 80
    assert shape_from_gguf(without(GGUF, "qwen3.attention.head_count_kv")).kv_heads == 32


@pytest.mark.parametrize(
    ("window", "full", "windowed"),
    [
        ({}, 36, 0),
        ({"qwen3.attention.sliding_window": 512}, 0, 36),
        ({"qwen3.attention.sliding_window": 512, "qwen3.attention.sliding_window_pattern": 4}, 9, 27),
        ({"qwen3.attention.sliding_window": 512, "qwen3.attention.sliding_window_pattern": [True, False] * 18}, 18, 18),
    ],
)
def test_gguf_windows(window: dict[str, Any], full: int, windowed: int) -> None:
    shape = shape_from_gguf(GGUF | window)
    assert (shape.full_layers, shape.windowed_layers) == (full, windowed)


def test_gguf_heads_by_layer_count_only_attention_layers() -> None:
    shape = shape_from_gguf(GGUF | {"qwen3.attention.head_count_kv": [0, 8, 0, 8]})
    assert (shape.layers, shape.kv_heads) == (2, 8)
    with pytest.raises(ConfigError, match="different numbers of heads"):
        shape_from_gguf(GGUF | {"qwen3.attention.head_count_kv": [4, 8]})


def test_gguf_latent_attention() -> None:
    latent = {"qwen3.attention.kv_lora_rank": 512, "qwen3.rope.dimension_count": 64}
    shape = shape_from_gguf(GGUF | latent)
    assert (shape.is_latent, shape.latent_rank, shape.latent_rope_dim) == (True, 512, 64)


def test_gguf_without_an_architecture_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        shape_from_gguf({})
    assert raised.value.field == "general.architecture"
