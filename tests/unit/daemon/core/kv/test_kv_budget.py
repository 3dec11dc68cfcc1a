"""KV bytes per token and concurrency, against the figures of public models."""

from __future__ import annotations

from typing import Any

import pytest

from inflightd.daemon.core.kv.budget import concurrency, kv_bytes, kv_bytes_per_token, packed_latent_bytes_per_token
from inflightd.daemon.core.kv.dtypes import BF16, F16, F32, FP8, KV_DTYPES, Q8_0, U8, kv_dtype
from inflightd.daemon.core.kv.model_config import ModelShape, shape_from_gguf, shape_from_hf
from inflightd.daemon.errors import ConfigError

GIB = 1024**3


def config(
    layers: int, heads: int, kv_heads: int | None, head_dim: int | None, hidden: int, **more: Any
) -> dict[str, Any]:
    fields = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": hidden,
        **more,
    }
    return {key: value for key, value in fields.items() if value is not None}


SMOLLM2 = config(30, 9, 3, None, 576, max_position_embeddings=8192)
LLAMA_8B = config(32, 32, 8, None, 4096)
NEMO = config(40, 32, 8, 128, 5120)
QWEN3_4B = config(36, 32, 8, 128, 2560, model_type="qwen3", sliding_window=None, use_sliding_window=False)
QWEN3_32B = config(64, 64, 8, 128, 5120, model_type="qwen3")
QWEN3_30B = config(48, 32, 4, 128, 2048, model_type="qwen3_moe")
GEMMA2_9B = config(42, 16, 8, 256, 3584, model_type="gemma2", sliding_window=4096)
GEMMA3_TEXT = config(62, 32, 16, 128, 5376, model_type="gemma3_text", sliding_window=1024)
GEMMA3_27B = {"model_type": "gemma3", "text_config": GEMMA3_TEXT, "vision_config": {"num_hidden_layers": 27}}
GPT_OSS_20B = config(24, 64, 8, 64, 2880, model_type="gpt_oss", sliding_window=128)
GPT_OSS_120B = config(36, 64, 8, 64, 2880, model_type="gpt_oss", sliding_window=128)
DEEPSEEK_V3 = config(
    61, 128, 128, None, 7168, kv_lora_rank=512, qk_rope_head_dim=64, num_nextn_predict_layers=1, model_type="any"
)


@pytest.mark.parametrize(
    ("model", "fp16", "fp8", "tp8_fp16", "tp8_fp8"),
    [
        pytest.param(config(16, 32, 8, None, 2048), 32768, 16384, 4096, 2048, id="Llama-3.2-1B"),
        pytest.param(LLAMA_8B, 131072, 65536, 16384, 8192, id="Llama-3.1-8B"),
        pytest.param(config(80, 64, 8, None, 8192), 327680, 163840, 40960, 20480, id="Llama-3.1-70B"),
        pytest.param(config(126, 128, 8, None, 16384), 516096, 258048, 64512, 32256, id="Llama-3.1-405B"),
        pytest.param(config(32, 32, None, None, 4096), 524288, 262144, 65536, 32768, id="longchat-7b-16k (MHA)"),
        pytest.param(NEMO, 163840, 81920, 20480, 10240, id="Mistral-Nemo-2407"),
        pytest.param(config(88, 96, 8, None, 12288), 360448, 180224, 45056, 22528, id="Mistral-Large-2407"),
        pytest.param(QWEN3_4B, 147456, 73728, 18432, 9216, id="Qwen3-4B"),
        pytest.param(QWEN3_32B, 262144, 131072, 32768, 16384, id="Qwen3-32B"),
        pytest.param(QWEN3_30B, 98304, 49152, 24576, 12288, id="Qwen3-30B-A3B"),
        pytest.param(GEMMA2_9B, 344064, 172032, 43008, 21504, id="gemma-2-9b"),
        pytest.param(GEMMA3_27B, 507904, 253952, 63488, 31744, id="gemma-3-27b"),
        pytest.param(GPT_OSS_20B, 49152, 24576, 6144, 3072, id="gpt-oss-20b"),
        pytest.param(GPT_OSS_120B, 73728, 36864, 9216, 4608, id="gpt-oss-120b"),
        pytest.param(DEEPSEEK_V3, 70272, 35136, 70272, 35136, id="DeepSeek-V3"),
    ],
)
def test_bytes_per_token_of_public_models(
    model: dict[str, Any], fp16: int, fp8: int, tp8_fp16: int, tp8_fp8: int
) -> None:
    """The KV table of the public cases; cases B01, B05, B06, B07."""
    shape = shape_from_hf(model)
    found = [kv_bytes_per_token(shape, dtype, tp) for tp in (1, 8) for dtype in (F16, FP8)]
    assert found == [fp16, fp8, tp8_fp16, tp8_fp8]


def test_smollm2_from_both_formats() -> None:
    """Case B09, and the table's SmolLM2 row: 9 heads cannot be divided among 8 devices."""
    gguf = {
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.context_length": 8192,
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
        "llama.rope.dimension_count": 64,
    }
    for shape in (shape_from_gguf(gguf), shape_from_hf(SMOLLM2)):
        assert shape.context_tokens == 8192
        assert kv_bytes_per_token(shape, F16) == 23040
        assert kv_bytes(shape, 8192, F16) == 188743680
        assert kv_bytes_per_token(shape, Q8_0) == 12240
        assert kv_bytes_per_token(shape, FP8) == kv_bytes_per_token(shape, U8) == 11520
        assert kv_bytes_per_token(shape, F32) == 46080
        assert kv_bytes_per_token(shape, F16, 9) == kv_bytes_per_token(shape, F16, 3) == 7680
        with pytest.raises(ConfigError, match="9 query heads cannot be divided among 8"):
            kv_bytes_per_token(shape, F16, 8)


def test_kv_heads_fewer_than_devices_are_copied() -> None:
    """Case B03."""
    shape = shape_from_hf(QWEN3_30B)
    assert [kv_bytes_per_token(shape, F16, tp) for tp in (1, 2, 4, 8, 16)] == [98304, 49152, 24576, 24576, 24576]
    dense = shape_from_hf(QWEN3_32B)
    assert (kv_bytes_per_token(dense, F16), kv_bytes_per_token(dense, F16, 4)) == (262144, 65536)
    assert concurrency(10 * GIB, 1, dense, F16, 4) == 4 * concurrency(10 * GIB, 1, dense, F16)
    assert 814 * 4 <= concurrency(814 * 256 * 262144, 256, dense, F16, 4, block_size_tokens=256) <= 3258


@pytest.mark.parametrize("tensor_parallel", [0, -1, 6, 3])
def test_heads_that_cannot_be_divided_are_refused(tensor_parallel: int) -> None:
    shape = shape_from_hf(config(2, 24, 8, 64, 1536))
    with pytest.raises(ConfigError, match="tensor_parallel"):
        kv_bytes_per_token(shape, F16, tensor_parallel)


def test_hybrid_models_in_full_and_in_windows() -> None:
    """Case B05."""
    large, small = shape_from_hf(GPT_OSS_120B), shape_from_hf(GPT_OSS_20B)
    for tokens in (1, 127, 128, 129, 8192):
        assert kv_bytes(large, tokens, F16, windowed=True) == 36864 * tokens + 36864 * min(tokens, 128)
    assert kv_bytes(large, 8192, F16) == 603979776
    assert kv_bytes(large, 8192, F16, windowed=True) == 306708480
    assert 32 * kv_bytes(small, 8192, F16) / GIB == 12
    assert 32 * kv_bytes(small, 8192, F16, windowed=True) / GIB == pytest.approx(6.09, abs=0.005)
    assert concurrency(78384 * 73728, 1, large, F16) == 78384
    assert concurrency(12 * GIB, 8192, small, F16) == 32
    assert concurrency(12 * GIB, 8192, small, F16, windowed=True) == 63


@pytest.mark.parametrize(
    "pattern",
    [
        {},
        {"sliding_window_pattern": 6},
        {"_sliding_window_pattern": 6},
        {"layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(62)]},
    ],
)
def test_gemma3_is_the_same_however_the_pattern_is_given(pattern: dict[str, Any]) -> None:
    """Case B06."""
    shape = shape_from_hf({"model_type": "gemma3", "text_config": GEMMA3_TEXT | pattern})
    assert (shape.full_layers, shape.windowed_layers, shape.window_tokens) == (10, 52, 1024)
    assert kv_bytes(shape, 8192, F16, windowed=True) == 1107296256
    assert kv_bytes(shape, 131072, F16, windowed=True) == 11173625856
    assert kv_bytes(shape, 131072, F16) == 66571993088


def test_gemma2_alternates() -> None:
    """Case B06."""
    shape = shape_from_hf(GEMMA2_9B)
    assert (shape.full_layers, shape.windowed_layers) == (21, 21)
    assert kv_bytes(shape, 8192, F16, windowed=True) == 2113929216


def test_a_latent_is_neither_doubled_nor_divided() -> None:
    """Case B07: the presence of kv_lora_rank decides."""
    shape = shape_from_hf(DEEPSEEK_V3)
    assert kv_bytes_per_token(shape, BF16, 8) == 61 * (512 + 64) * 2
    assert kv_bytes_per_token(shape, F16, speculation=True) == 62 * (512 + 64) * 2
    assert packed_latent_bytes_per_token(shape) == 40016
    grouped = shape_from_hf({key: value for key, value in DEEPSEEK_V3.items() if key != "kv_lora_rank"})
    assert kv_bytes_per_token(grouped, F16) == 1748992
    with pytest.raises(ConfigError, match="no latent attention"):
        packed_latent_bytes_per_token(grouped)


def test_concurrency_counts_whole_blocks() -> None:
    shape = ModelShape("m", None, 1, 0, None, 1, 1, 1, 1)  # 2 bytes per token in fp8
    assert concurrency(320, 17, shape, FP8) == 9
    assert concurrency(320, 17, shape, FP8, block_size_tokens=16) == 5


def test_dtypes_are_found_by_their_names() -> None:
    assert [kv_dtype(name) for name in KV_DTYPES] == list(KV_DTYPES.values())
    assert kv_dtype("BFloat16") is BF16
    with pytest.raises(ConfigError, match="kv_dtype = 'fp4': not one of f32, bf16"):
        kv_dtype("fp4")
    assert Q8_0.row_bytes(33) == 68
