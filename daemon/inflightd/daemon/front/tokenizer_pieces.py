"""From a token as a vocabulary spells it to the bytes it stands for, for the two ways of spelling in use."""

from __future__ import annotations

import re

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


def _byte_level_table() -> dict[int, int]:
    # GPT-2's spelling: printable bytes as themselves, the others as the code points from 256 on, in order.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_table()


def byte_level_piece(token: str) -> bytes:
    """A token of a byte-level BPE vocabulary; one that is not spelled that way stands for its own text."""
    try:
        return bytes([_BYTE_LEVEL[ord(char)] for char in token])
    except KeyError:
        return token.encode()


def sentence_piece(token: str) -> bytes:
    """A token of a SentencePiece vocabulary: <0x0A> is that byte, the lower block is a space."""
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE_MARK, " ").encode()
