"""Incremental detokenization of one sample: tokens in, text of whole characters out, in any cutting the same text.

The tail rule: a sample that ends in the middle of a character ends with one U+FFFD in its place.
"""

from __future__ import annotations

from codecs import utf_8_decode

from inflightd.daemon.front.tokenizer import Tokenizer

# Tokens kept back at most, should a model begin a new unfinished character with every token.
_MAX_HELD_TOKENS = 16


class Detokenizer:
    """State of one sample.  The text of a token that ends inside a character waits for the rest of it.

    Text comes at token boundaries: what `push` returns is the whole text of the tokens since it last returned one.
    """

    __slots__ = ("_held_text", "_held_tokens", "_tail", "_texts", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._texts = tokenizer.texts(skip_special_tokens)
        self._tail = b""  # at most 3 bytes: the beginning of a character
        self._held_text = ""  # whole characters of tokens that are held because of the tail
        self._held_tokens = 0

    @property
    def is_empty(self) -> bool:
        return not self._held_tokens

    def push(self, token_id: int) -> str | None:
        """Text of all tokens since the last text, this one included; None while inside a character."""
        try:
            text = self._texts[token_id]
        except IndexError:  # logits may be padded beyond the vocabulary
            text = ""
        if not self._held_tokens and text is not None:
            return text
        data = self._tail + (self._tokenizer.token_bytes(token_id) if text is None else text.encode())
        whole, used = utf_8_decode(data, "replace", False)
        self._tail = data[used:]
        self._held_text += whole
        self._held_tokens += 1
        if self._tail and self._held_tokens < _MAX_HELD_TOKENS:
            return None
        text, self._held_text = self._held_text, ""
        self._held_tokens = 1 if self._tail else 0
        return text

    def finish(self) -> str:
        """Text of the tokens still held, by the tail rule; empty if there are none."""
        text = self._held_text + utf_8_decode(self._tail, "replace", True)[0]
        self._tail, self._held_text, self._held_tokens = b"", "", 0
        return text
