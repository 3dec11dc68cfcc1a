"""Small tokenizers of both kinds, and the real one of the test model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from inflightd.daemon.front.chat_template import ChatTemplate
from inflightd.daemon.front.tokenizer import Tokenizer
from inflightd.daemon.front.tokenizer_files import load_tokenizer
from inflightd.daemon.front.tokenizer_gguf import gguf_tokenizer

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


@pytest.fixture(scope="session")
def smollm2(model_path: Path) -> tuple[Tokenizer, ChatTemplate]:
    tokenizer, template = load_tokenizer(model_path)
    assert template is not None
    return tokenizer, template


@pytest.fixture(scope="session")
def byte_metadata() -> dict[str, object]:
    """Byte-level BPE: three control tokens, the 256 bytes, a few merges."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    merges = ["t h", "th e", "Ġ the", "Ġ c", "Ġc a", "Ġca t", "Ġ s", "Ġs a", "Ġsa t", "Ċ Ċ", "â Ģ"]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = control + [spelled[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def byte_tokenizer(byte_metadata: dict[str, object]) -> Tokenizer:
    return gguf_tokenizer(byte_metadata)


@pytest.fixture(scope="session")
def sentence_metadata() -> dict[str, object]:
    """SentencePiece as in Llama 2: <unk>, <s>, </s>, the 256 bytes, then pieces by falling score."""
    pieces = ["▁t", "he", "▁the", "▁c", "at", "▁cat", "▁s", "▁sat", "▁o", "▁on", "▁▁", "<", "/", ">", "|"]
    pieces += [*"▁abcdefghijklmnopqrstuvwxyz\ufffd"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def sentence_tokenizer(sentence_metadata: dict[str, object]) -> Tokenizer:
    return gguf_tokenizer(sentence_metadata)


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[Sequence[bytes]], Tokenizer]:
    """A tokenizer that only decodes: token i is pieces[i]; the last one is special."""

    def build(pieces: Sequence[bytes]) -> Tokenizer:
        encoder = tokenizers.Tokenizer(models.BPE({}, []))
        last = len(pieces)
        return Tokenizer(encoder, [*pieces, b"<special>"], special_token_ids=[last], eos_token_ids=[last])

    return build
