"""The numbers of a model's configuration that decide how large its KV cache is.

Read from a Hugging Face config.json or from GGUF metadata, both as plain mappings.  The defaults for absent keys are
those of the configuration classes in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from inflightd.daemon.errors import ConfigError

# Every k-th layer sees everything, the others a window, where neither a pattern nor layer types are given.
_DEFAULT_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "gpt-oss": 2, "cohere2": 4}
# Head sizes of families whose configuration class does not derive an absent `head_dim` from the hidden size.
_DEFAULT_HEAD_DIM = {
    "gemma": 256,
    "gemma2": 256,
    "gemma3": 256,
    "gemma3_text": 256,
    "gpt_oss": 64,
    "qwen3": 128,
}
# Families whose `sliding_window` is in force only with `use_sliding_window`.
_WINDOW_OFF_BY_DEFAULT = ("qwen2", "qwen3")
_WINDOWED_LAYERS = ("sliding_attention", "chunked_attention")
_LAYERS_WITHOUT_CACHE = ("linear_attention", "mamba", "conv", "recurrent")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a token costs in the cache, layer by layer, before dtype and tensor parallelism."""

    model_type: str
    context_tokens: int | None  # the model's own limit; None: not stated
    full_layers: int  # attention layers that see the whole context
    windowed_layers: int  # attention layers that see the last `window_tokens`
    window_tokens: int | None
    query_heads: int
    kv_heads: int
    key_dim: int  # values per head and token
    value_dim: int
    # Multi-head latent attention: one latent of rank + rope values for all heads, keys and values alike; else 0.
    latent_rank: int = 0
    latent_rope_dim: int = 0
    draft_layers: int = 0  # multi-token prediction layers: cached only when they are used for speculation

    @property
    def layers(self) -> int:
        """Attention layers."""
        return self.full_layers + self.windowed_layers

    @property
    def is_latent(self) -> bool:
        """Multi-head latent attention (DeepSeek-V2/V3): decided by the presence of a rank, not by a name."""
        return self.latent_rank > 0


def shape_from_hf(config: Mapping[str, Any]) -> ModelShape:
    """The shape from a config.json.  Raises ConfigError naming the key that is missing or makes no sense."""
    text = config
    for key in ("text_config", "llm_config", "language_config"):  # multimodal models nest the language model
        nested = config.get(key)
        if isinstance(nested, Mapping) and "num_hidden_layers" in nested:
            text = nested
            break
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    layers = _positive(text, "num_hidden_layers")
    query_heads = _positive(text, "num_attention_heads")
    window = text.get("sliding_window") or text.get("attention_chunk_size")
    full, windowed = _hf_layers(text, model_type, layers, window)
    rank = int(text.get("kv_lora_rank") or 0)
    head_dim = _hf_head_dim(text, model_type, query_heads) if not rank else 0
    return ModelShape(
        model_type=model_type,
        context_tokens=text.get("max_position_embeddings") or config.get("max_position_embeddings"),
        full_layers=full,
        windowed_layers=windowed,
        window_tokens=int(window) if windowed and window else None,
        query_heads=query_heads,
        kv_heads=_positive(text, "num_key_value_heads") if text.get("num_key_value_heads") else query_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        latent_rank=rank,
        latent_rope_dim=_positive(text, "qk_rope_head_dim") if rank else 0,
        draft_layers=int(text.get("num_nextn_predict_layers") or 0),
    )


def shape_from_gguf(metadata: Mapping[str, Any]) -> ModelShape:
    """The shape from GGUF key-value metadata.  Raises ConfigError naming the key that is missing or makes no sense."""
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise ConfigError("general.architecture", arch, "the GGUF file does not name its architecture")
    layers = _positive(metadata, f"{arch}.block_count")
    query_heads = _uniform_heads(metadata, f"{arch}.attention.head_count")[0]
    kv_key = f"{arch}.attention.head_count_kv"
    kv_heads, cached_layers = _uniform_heads(metadata, kv_key) if metadata.get(kv_key) else (query_heads, None)
    if cached_layers is not None:
        layers = cached_layers
    rank = int(metadata.get(f"{arch}.attention.kv_lora_rank") or 0)
    key_dim = int(metadata.get(f"{arch}.attention.key_length") or 0)
    if not key_dim and not rank:
        key_dim = _divided(_positive(metadata, f"{arch}.embedding_length"), query_heads, f"{arch}.embedding_length")
    window = metadata.get(f"{arch}.attention.sliding_window")
    full = layers
    if window:
        pattern = metadata.get(f"{arch}.attention.sliding_window_pattern") or _DEFAULT_PATTERN.get(arch)
        if isinstance(pattern, Sequence):  # one flag per layer, true: windowed
            full = sum(not windowed for windowed in pattern)
        else:
            full = layers // int(pattern) if pattern else 0
    return ModelShape(
        model_type=arch,
        context_tokens=metadata.get(f"{arch}.context_length"),
        full_layers=full,
        windowed_layers=layers - full,
        window_tokens=int(window) if window and full < layers else None,
        query_heads=query_heads,
        kv_heads=kv_heads,
        key_dim=0 if rank else key_dim,
        value_dim=0 if rank else int(metadata.get(f"{arch}.attention.value_length") or key_dim),
        latent_rank=rank,
        latent_rope_dim=_positive(metadata, f"{arch}.rope.dimension_count") if rank else 0,
    )


def _hf_layers(text: Mapping[str, Any], model_type: str, layers: int, window: Any) -> tuple[int, int]:
    """(full, windowed) attention layers."""
    types = text.get("layer_types")
    if types:
        unknown = {*types} - {"full_attention", *_WINDOWED_LAYERS, *_LAYERS_WITHOUT_CACHE}
        if unknown:
            raise ConfigError("layer_types", sorted(unknown), "unknown kind of layer: its cache cannot be counted")
        windowed = sum(kind in _WINDOWED_LAYERS for kind in types)
        if windowed and not window:
            raise ConfigError("sliding_window", window, f"not given, but {windowed} layers are of a windowed type")
        return sum(kind == "full_attention" for kind in types), windowed
    off_by_default = model_type.startswith(_WINDOW_OFF_BY_DEFAULT)
    if not text.get("sliding_window") or not text.get("use_sliding_window", not off_by_default):
        return layers, 0
    if off_by_default:
        full = min(layers, int(text.get("max_window_layers", layers)))
        return full, layers - full
    pattern = (
        text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or _DEFAULT_PATTERN.get(model_type)
    )
    full = layers // int(pattern) if pattern else 0
    return full, layers - full


def _hf_head_dim(text: Mapping[str, Any], model_type: str, query_heads: int) -> int:
    """`head_dim` as given; hidden size by heads is only the fallback, and wrong for many models that give it."""
    if text.get("head_dim") is not None:
        return _positive(text, "head_dim")
    if "head_dim" not in text and model_type in _DEFAULT_HEAD_DIM:
        return _DEFAULT_HEAD_DIM[model_type]
    return _divided(_positive(text, "hidden_size"), query_heads, "hidden_size")


def _divided(hidden: int, heads: int, key: str) -> int:
    if hidden % heads:
        raise ConfigError(key, hidden, f"not a multiple of {heads} heads, and no head size is given")
    return hidden // heads


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigError(key, value, "the model's configuration must give it as a positive integer")
    return int(value)


def _uniform_heads(metadata: Mapping[str, Any], key: str) -> tuple[int, int | None]:
    """(heads, layers that have them): the second only where heads are given by layer (0: a layer without attention)."""
    value = metadata.get(key)
    if isinstance(value, Sequence) and not isinstance(value, str):
        counts = {int(heads) for heads in value if heads}
        if len(counts) != 1:
            raise ConfigError(key, value, "layers with different numbers of heads are not supported")
        return counts.pop(), sum(bool(heads) for heads in value)
    return _positive(metadata, key), None
