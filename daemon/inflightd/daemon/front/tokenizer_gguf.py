"""The tokenizer inside a GGUF file, from the file's metadata.

Two kinds: `gpt2` (byte-level BPE, with a pre-tokenizer named by `tokenizer.ggml.pre`) and `llama` (SentencePiece:
scores instead of merges, bytes as a fallback).  Pre-tokenizers are those of the models' own tokenizer.json or, for
`default`, llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from inflightd.daemon.errors import ConfigError
from inflightd.daemon.front.tokenizer import Tokenizer
from inflightd.daemon.front.tokenizer_pieces import byte_level_piece, sentence_piece

_Item = TypeVar("_Item", str, int, float)

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE_MARK = "\u2581"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def _splits(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> pre_tokenizers.PreTokenizer:
    return _splits(rf"{_SUFFIXES}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}")


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return _splits(rf"{_SUFFIXES}|{_WORDS}|\p{{N}}|{_REST}")


def _default() -> pre_tokenizers.PreTokenizer:
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    return _splits(r"[\p{P}\$\+<=>\^~\|]+", gpt2, r"\p{N}+", r"[0-9][0-9][0-9]")


_PRE_TOKENIZERS = {
    "default": _default,
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "codeshell": _single_digits,
    "llama-bpe": _llama3,
    "llama-v3": _llama3,
    "llama3": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
}
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama-v3", "llama3")  # a word that is a token is not built from merges
_COMPOSED = ("qwen2", "deepseek-r1-qwen")  # NFC before all else


def gguf_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """Raises ConfigError (field `model`) naming a kind or pre-tokenizer that we do not know, or what is missing."""
    kind = metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_bpe, "llama": _sentence_piece_bpe}
    if kind not in builders:
        raise ConfigError("model", kind, f"tokenizer.ggml.model is not one of {', '.join(builders)}")
    tokens = _array(metadata, "tokens", str)
    types = _array(metadata, "token_type", int) if "tokenizer.ggml.token_type" in metadata else [1] * len(tokens)
    if len(types) != len(tokens):
        raise ConfigError("model", len(types), f"tokenizer.ggml.token_type is not as long as the {len(tokens)} tokens")
    encoder = builders[str(kind)](metadata, tokens, types)
    special = [i for i, token_type in enumerate(types) if token_type in (_CONTROL, _UNKNOWN)]
    _add_tokens(encoder, tokens, types)

    spell = byte_level_piece if kind == "gpt2" else sentence_piece
    as_text = (_CONTROL, _UNKNOWN, _USER_DEFINED) if kind == "gpt2" else (_CONTROL, _UNKNOWN)
    pieces = [token.encode() if t in as_text else spell(token) for token, t in zip(tokens, types, strict=True)]
    ends = (gguf_token_id(metadata, name) for name in ("eos", "eot", "eom"))
    bos = gguf_token_id(metadata, "bos")
    return Tokenizer(
        encoder,
        pieces,
        special_token_ids=special,
        eos_token_ids=list(dict.fromkeys(i for i in ends if i is not None)),
        bos_token_id=bos,
        unknown_token_id=gguf_token_id(metadata, "unknown"),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        lossless=True,
    )


def gguf_token_id(metadata: Mapping[str, object], name: str) -> int | None:
    """The id of a token with a role: bos, eos, eot, eom, unknown, padding."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return value if isinstance(value, int) else None


def _byte_bpe(metadata: Mapping[str, object], tokens: list[str], types: list[int]) -> Encoder:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise ConfigError("model", pre, f"tokenizer.ggml.pre is not one of {', '.join(_PRE_TOKENIZERS)}")
    merges = [_halves(merge) for merge in _array(metadata, "merges", str)]
    vocab = {token: i for i, token in enumerate(tokens)}
    encoder = Encoder(_bpe(vocab, merges, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    if pre in _COMPOSED:
        encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = _PRE_TOKENIZERS[str(pre)]()
    return encoder


def _sentence_piece_bpe(metadata: Mapping[str, object], tokens: list[str], types: list[int]) -> Encoder:
    """SentencePiece's own algorithm merges the neighbours whose union scores best: merges ordered by score do that.

    Control, unknown and byte tokens are left out of the merges, so that no text can spell them.
    """
    scores = _array(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise ConfigError("model", len(scores), f"tokenizer.ggml.scores is not as long as the {len(tokens)} tokens")
    unspeakable = (_CONTROL, _UNKNOWN, _BYTE)
    ids = {token: i for i, token in enumerate(tokens) if types[i] not in unspeakable}
    ranked = [
        (-scores[i], ids[token[:cut]], ids[token[cut:]], token[:cut], token[cut:])
        for token, i in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    ranked.sort()
    unknown = gguf_token_id(metadata, "unknown")
    merges = [(left, right) for *_, left, right in ranked]
    vocab = {token: i for i, token in enumerate(tokens)}
    unknown_token = tokens[unknown] if unknown is not None else None
    encoder = Encoder(_bpe(vocab, merges, unk_token=unknown_token, fuse_unk=True, byte_fallback=_BYTE in types))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE_MARK)]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(_SPACE_MARK))
    encoder.normalizer = normalizers.Sequence(steps)
    return encoder


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab, merges, **options)
    except Exception as error:  # the library raises plain Exception
        raise ConfigError("model", len(merges), f"the tokenizer's vocabulary and merges do not fit: {error}") from error


def _add_tokens(encoder: Encoder, tokens: list[str], types: list[int]) -> None:
    special = [t for t, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _UNKNOWN)]
    user_defined = [t for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    encoder.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    encoder.add_tokens([AddedToken(token, special=False, normalized=False) for token in user_defined])


def _halves(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space:
        raise ConfigError("model", merge, "tokenizer.ggml.merges holds an entry that is not a pair")
    return left, right


def _array(metadata: Mapping[str, object], name: str, of: type[_Item]) -> list[_Item]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(item, of) for item in value):
        raise ConfigError("model", type(value).__name__, f"tokenizer.ggml.{name} is missing or of another type")
    return value
