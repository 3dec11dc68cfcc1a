"""The tokenizer of engines without a model: one token per byte of UTF-8."""

from __future__ import annotations

from typing import Final

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from inflightd.daemon.front.tokenizer import Tokenizer

SPECIAL_TOKENS: Final = ("<pad>", "<bos>", "<eos>")
FIRST_BYTE_ID: Final = len(SPECIAL_TOKENS)


def byte_tokenizer(vocab_size: int, eos_token_ids: list[int]) -> Tokenizer:
    """Ids 0 to 2 are special, 3 + b is byte b, and from 259 on each id is a word of its own: " w259" and so on.

    vocab_size: at least 259.
    """
    vocab = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    for byte, char in enumerate(_byte_chars()):
        vocab[char] = FIRST_BYTE_ID + byte
    for token_id in range(len(vocab), vocab_size):
        vocab[f"Ġw{token_id}"] = token_id
    encoder = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    pieces = [token.encode() for token in SPECIAL_TOKENS]
    pieces += [bytes([byte]) for byte in range(256)]
    pieces += [f" w{token_id}".encode() for token_id in range(len(pieces), vocab_size)]
    special = range(len(SPECIAL_TOKENS))
    return Tokenizer(encoder, pieces, special_token_ids=special, eos_token_ids=eos_token_ids, lossless=True)


def _byte_chars() -> list[str]:
    """How byte-level BPE spells each byte (GPT-2): printable ones as themselves, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    chars: list[str] = []
    shifted = 0
    for byte in range(256):
        if byte in printable:
            chars.append(chr(byte))
        else:
            chars.append(chr(0x100 + shifted))
            shifted += 1
    return chars
