"""The tokenizer of a Hugging Face directory: tokenizer.json, with the configuration files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Encoder

from inflightd.daemon.errors import ConfigError
from inflightd.daemon.front.tokenizer import Tokenizer
from inflightd.daemon.front.tokenizer_pieces import byte_level_piece, sentence_piece


class _DecoderOf(msgspec.Struct):
    """The part of tokenizer.json that says how tokens are spelled."""

    decoder: dict[str, Any] | None = None


class HfFiles:
    """The configuration beside tokenizer.json; a file that is not there is empty."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = _read_object(directory / "config.json")
        self.generation_config = _read_object(directory / "generation_config.json")
        self.tokenizer_config = _read_object(directory / "tokenizer_config.json")

    @property
    def special_tokens(self) -> dict[str, str]:
        """Spelling of each token with a role: bos_token, eos_token, ..."""
        found = {}
        for name, value in self.tokenizer_config.items():
            spelling = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(spelling, str):
                found[name] = spelling
        return found

    @property
    def chat_template(self) -> str | None:
        """chat_template.jinja, or the configuration's one, or its one named `default`."""
        separate = self.directory / "chat_template.jinja"
        if separate.is_file():
            return separate.read_text("utf-8")
        value = self.tokenizer_config.get("chat_template")
        if isinstance(value, list):
            named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
            value = named.get("default")
        return value if isinstance(value, str) else None


def hf_tokenizer(files: HfFiles) -> Tokenizer:
    """Raises ConfigError (field `model`) for a tokenizer.json that is missing, broken or spelled in an unknown way."""
    path = files.directory / "tokenizer.json"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError("model", str(path), f"cannot be read: {error.strerror}") from error
    decoder: dict[str, Any] | None
    try:
        encoder = Encoder.from_buffer(raw)
        decoder = msgspec.json.decode(raw, type=_DecoderOf).decoder
    except Exception as error:  # the library raises plain Exception
        raise ConfigError("model", str(path), f"is no tokenizer: {error}") from error
    encoder.no_truncation()
    encoder.no_padding()
    kinds = _kinds(decoder)
    if "ByteLevel" in kinds:
        spell = byte_level_piece
    elif kinds & {"Metaspace", "ByteFallback"}:
        spell = sentence_piece
    else:
        raise ConfigError("model", str(path), f"decoder {'/'.join(sorted(kinds)) or None} is not supported")

    vocab = encoder.get_vocab(with_added_tokens=True)
    added = encoder.get_added_tokens_decoder()
    pieces = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, token_id in vocab.items():
        pieces[token_id] = token.encode() if token_id in added else spell(token)
    special_tokens = files.special_tokens
    bos = encoder.token_to_id(special_tokens.get("bos_token", ""))
    asked = files.tokenizer_config.get("add_bos_token")
    return Tokenizer(
        encoder,
        pieces,
        special_token_ids=[token_id for token_id, token in added.items() if token.special],
        eos_token_ids=_eos_token_ids(files, encoder.token_to_id(special_tokens.get("eos_token", ""))),
        bos_token_id=bos,
        unknown_token_id=encoder.token_to_id(special_tokens.get("unk_token", "")),
        add_bos=asked if isinstance(asked, bool) else encoder.encode("").ids[:1] == [bos],
    )


def _eos_token_ids(files: HfFiles, of_tokenizer: int | None) -> list[int]:
    """generation_config.json is what the model's makers generate with; the others only add to it."""
    found: dict[int, None] = {}
    for value in (files.generation_config.get("eos_token_id"), files.config.get("eos_token_id"), of_tokenizer):
        ids = value if isinstance(value, list) else [value]
        found |= {token_id: None for token_id in ids if isinstance(token_id, int)}
    return list(found)


def _kinds(step: Any) -> set[str]:
    """Type names of a decoder and of the steps inside it."""
    if not isinstance(step, dict):
        return set()
    inner = [kind for part in step.get("decoders", ()) for kind in _kinds(part)]
    return {*inner, step["type"]} if "type" in step else set(inner)


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError("model", str(path), f"is no JSON object: {error}") from error
