"""A model's tokenizer: text to ids, ids to text, each the same whether whole or in pieces.

Encoding is done by the `tokenizers` library.  Decoding is ours, from a table of each token's own text: the library's
`DecodeStream` keeps a U+FFFD that is really in the text until more text comes and loses it at the end, and takes
1.5 us a token; the table takes a tenth.  The decoded text is by definition the concatenation of the tokens' bytes as
UTF-8, each maximal ill-formed part replaced by one U+FFFD, so no cutting of the ids can change it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from inflightd.daemon.errors import InvalidRequest
from inflightd.daemon.front.special_spellings import SpecialSpellings

# From this many characters on the batch call is taken: it leaves out offsets and is twice as fast on long texts.
_LONG_TEXT_CHARS = 4096


class Tokenizer:
    """Immutable after construction; every method may be called from any thread, and encoding releases the GIL.

    Two encoders share one model: one knows the special tokens, the other does not, so special tokens written in
    untrusted text become ordinary pieces.
    """

    def __init__(
        self,
        encoder: tokenizers.Tokenizer,
        pieces: Sequence[bytes],
        *,
        special_token_ids: Iterable[int],
        eos_token_ids: Sequence[int],
        bos_token_id: int | None = None,
        unknown_token_id: int | None = None,
        add_bos: bool = False,
        lossless: bool = False,
    ) -> None:
        """pieces: the bytes each id stands for.  encoder: must hold the special tokens as special added tokens.

        lossless: every character of a text is in one of its tokens, none is dropped or joined with others.
        """
        # None: nothing can be said about how many tokens a text has at least.
        self.longest_token_bytes = max(map(len, pieces)) if lossless else None
        self.special_token_ids = frozenset(special_token_ids)
        self.eos_token_ids = tuple(eos_token_ids)
        self.bos_token_id = bos_token_id
        self.add_bos = add_bos and bos_token_id is not None
        self._encoder = encoder
        self._plain = _without_special_tokens(encoder)
        self._inner = _without_prefix_space(self._plain)
        self._forgeable = frozenset(i for i in self.special_token_ids if i != unknown_token_id)
        self.special_spellings = SpecialSpellings(
            token.content for i, token in encoder.get_added_tokens_decoder().items() if i in self._forgeable
        )
        self._has_prefix_space = self._inner is not self._plain
        whole_only = _prefixes_whole_text_only(_state(encoder.pre_tokenizer))
        self._after_special = self._inner if whole_only else self._plain

        # Tokens whose bytes are no whole characters have no text of their own.
        self._partial: dict[int, bytes] = {}
        visible: list[str | None] = []
        for token_id, piece in enumerate(pieces):
            try:
                visible.append(piece.decode())
            except UnicodeDecodeError:
                visible.append(None)
                self._partial[token_id] = piece
        hidden = visible.copy()
        for token_id in self.special_token_ids:
            hidden[token_id] = ""
        self._texts = {False: visible, True: hidden}

    @property
    def vocab_size(self) -> int:
        return len(self._texts[False])

    def encode(self, text: str, parse_special_tokens: bool = False) -> list[int]:
        """Ids of `text`, without any begin-of-sequence token.

        Special tokens written in the text are ordinary text unless `parse_special_tokens`.
        Raises InvalidRequest where this model has no other way to write them.
        """
        if parse_special_tokens:
            return _ids(self._encoder, text)
        return self._unforged(_ids(self._plain, text), text)

    def encode_inner(self, text: str) -> list[int]:
        """Ids of `text` as it would stand inside a longer one: without the space some models put in front."""
        return self._unforged(_ids(self._inner, text), text)

    def special_token_spans(self, text: str) -> list[tuple[int, int, int]]:
        """(id, begin, end) in characters of each special token written in `text`, in order."""
        encoding = self._encoder.encode(text, add_special_tokens=False)
        found = zip(encoding.ids, encoding.offsets, strict=True)
        return [(token_id, begin, end) for token_id, (begin, end) in found if token_id in self._forgeable]

    def encode_around(self, text: str, special_tokens: Sequence[tuple[int, int, int]]) -> list[int]:
        """Ids of `text` with exactly these (id, begin, end) taken as special tokens."""
        ids: list[int] = []
        at, encoder = 0, self._plain
        for token_id, begin, end in special_tokens:
            if begin > at:
                ids += self._unforged(_ids(encoder, text[at:begin]), text)
            ids.append(token_id)
            at, encoder = end, self._after_special
        if at < len(text):
            ids += self._unforged(_ids(encoder, text[at:]), text)
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True, *, continuation: bool = False) -> str:
        """Text of `ids`; ids outside the vocabulary have none.

        continuation: the ids follow others, so the space that some models put in front of every text is part of it.
        A generated text is a continuation; without it `decode(encode(text)) == text`.
        """
        data = b"".join([self._bytes(token_id, skip_special_tokens) for token_id in ids])
        text = data.decode("utf-8", "replace")
        return text[1:] if self._has_prefix_space and not continuation and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for, special or not; nothing for an id outside the vocabulary."""
        return self._bytes(token_id, skip_special_tokens=False)

    def texts(self, skip_special_tokens: bool) -> list[str | None]:
        """By id: the token's text, None where its bytes are no whole characters.  Shared, not to be changed."""
        return self._texts[skip_special_tokens]

    def _bytes(self, token_id: int, skip_special_tokens: bool) -> bytes:
        texts = self._texts[skip_special_tokens]
        text = texts[token_id] if token_id < len(texts) else ""
        return self._partial[token_id] if text is None else text.encode()

    def _unforged(self, ids: list[int], text: str) -> list[int]:
        # A model whose plain vocabulary lists a special token (unigram models do) would match it in text.
        if not self._forgeable.isdisjoint(ids):
            forged = next(self.token_bytes(i).decode() for i in ids if i in self._forgeable)
            raise InvalidRequest("prompt", text, f"this model cannot write {forged!r} as ordinary text")
        return ids


def _ids(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    if len(text) < _LONG_TEXT_CHARS:
        return encoder.encode(text, add_special_tokens=False).ids
    return encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _without_special_tokens(encoder: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same model (shared, not copied) and the same steps, blind to special tokens."""
    plain = tokenizers.Tokenizer(encoder.model)
    if encoder.normalizer is not None:
        plain.normalizer = encoder.normalizer
    if encoder.pre_tokenizer is not None:
        plain.pre_tokenizer = encoder.pre_tokenizer
    # All of them, in the order of their ids: an added token that the model does not list gets the next free id.
    added = [token for _, token in sorted(encoder.get_added_tokens_decoder().items())]
    for special, group in groupby(added, key=lambda token: token.special):
        (plain.add_special_tokens if special else plain.add_tokens)(list(group))
    if plain.get_added_tokens_decoder() != encoder.get_added_tokens_decoder():  # ids with gaps
        plain = tokenizers.Tokenizer.from_str(encoder.to_str())
    plain.encode_special_tokens = True
    return plain


def _without_prefix_space(encoder: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """An encoder that puts no space in front of a text; the same object if it does not do so anyway."""
    normalizer, pre_tokenizer = _state(encoder.normalizer), _state(encoder.pre_tokenizer)
    inner_normalizer, inner_pre_tokenizer = _prefix_free(normalizer), _prefix_free(pre_tokenizer)
    if (inner_normalizer, inner_pre_tokenizer) == (normalizer, pre_tokenizer):
        return encoder
    inner = _without_special_tokens(encoder)
    if inner_normalizer != normalizer:
        changed_normalizer = normalizers.Sequence([])
        changed_normalizer.__setstate__(json.dumps(inner_normalizer).encode())
        inner.normalizer = changed_normalizer
    if inner_pre_tokenizer != pre_tokenizer:
        changed_pre_tokenizer = pre_tokenizers.Sequence([])
        changed_pre_tokenizer.__setstate__(json.dumps(inner_pre_tokenizer).encode())
        inner.pre_tokenizer = changed_pre_tokenizer
    return inner


def _state(step: normalizers.Normalizer | pre_tokenizers.PreTokenizer | None) -> Any:
    """A step of the encoder as tokenizer.json would have it."""
    return None if step is None else json.loads(step.__getstate__())


def _prefix_free(step: Any) -> Any:
    match step:
        case {"type": "Prepend"}:
            return {"type": "Sequence", "normalizers": []}
        case {"type": "Metaspace"}:
            return {**step, "prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return {**step, "add_prefix_space": False}
        case {"type": "Sequence"}:
            return {k: [_prefix_free(part) for part in v] if isinstance(v, list) else v for k, v in step.items()}
    return step


def _prefixes_whole_text_only(step: Any) -> bool:
    match step:
        case {"type": "Metaspace", "prepend_scheme": scheme}:
            return bool(scheme == "first")
        case {"type": "Sequence", "pretokenizers": parts}:
            return any(_prefixes_whole_text_only(part) for part in parts)
    return False
