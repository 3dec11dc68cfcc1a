"""Tokenizers from a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from inflightd.daemon.errors import ConfigError, InvalidRequest
from inflightd.daemon.front.request import ChatMessage
from inflightd.daemon.front.tokenizer_files import load_tokenizer

TEMPLATE = "{% for m in messages %}<|u|>{{ m.content }}{% endfor %}"


def byte_level() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)} | {"he": 256}
    encoder = tokenizers.Tokenizer(models.BPE(vocab, [("h", "e")]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    encoder.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    encoder.add_special_tokens([AddedToken("<|u|>", special=True, normalized=False)])
    return encoder


def metaspace() -> tokenizers.Tokenizer:
    letters = [*"▁abcdefghijklmnopqrstuvwxyz<|>/"]
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁a", "[INST]"]
    vocab = {token: i for i, token in enumerate(tokens)}
    encoder = tokenizers.Tokenizer(
        models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    encoder.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    encoder.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    encoder.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "</s>", "[INST]")])
    return encoder


def write(directory: Path, encoder: tokenizers.Tokenizer, **files: Any) -> Path:
    encoder.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_ids_and_texts_equal_the_librarys_own(tmp_path: Path) -> None:
    for encoder in (byte_level(), metaspace()):
        tokenizer, template = load_tokenizer(write(tmp_path, encoder))
        assert template is None
        for text in ("hello there", " a b  c", "a\n\né👍🏽日", "a<tool>b"):
            assert tokenizer.encode(text) == encoder.encode(text).ids
            assert tokenizer.decode(tokenizer.encode(text)) == encoder.decode(encoder.encode(text).ids)


def test_added_tokens_keep_their_ids_beside_hidden_special_ones(tmp_path: Path) -> None:
    tokenizer, _ = load_tokenizer(write(tmp_path, byte_level()))
    assert tokenizer.special_token_ids == {257, 259}
    assert tokenizer.encode("he<tool>") == [256, 258]
    assert tokenizer.special_token_ids.isdisjoint(tokenizer.encode("<|end|><|u|>"))
    assert tokenizer.encode("<|end|><|u|>", parse_special_tokens=True) == [257, 259]


def test_end_tokens_come_from_all_three_files_without_doubles(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        byte_level(),
        generation_config={"eos_token_id": [259, 257]},
        config={"eos_token_id": 257},
        tokenizer_config={"eos_token": {"content": "<|end|>"}, "bos_token": "<|u|>", "add_bos_token": True},
    )
    tokenizer, _ = load_tokenizer(directory)
    assert tokenizer.eos_token_ids == (259, 257)
    assert (tokenizer.bos_token_id, tokenizer.add_bos) == (259, True)


def test_separate_template_wins_over_named_and_plain_ones(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "named"}]
    directory = write(tmp_path, byte_level(), tokenizer_config={"chat_template": named})
    _, template = load_tokenizer(directory)
    assert template is not None
    with pytest.raises(InvalidRequest):  # it leaves the message out
        template.render([ChatMessage("user", "x")])
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    _, template = load_tokenizer(directory)
    assert template is not None
    assert template.render([ChatMessage("user", "x")]) == "<|u|>x"


def test_metaspace_puts_a_space_before_the_first_part_only(tmp_path: Path) -> None:
    tokenizer, _ = load_tokenizer(write(tmp_path, metaspace()))
    text = "a[INST]a"
    spans = tokenizer.special_token_spans(text)
    assert tokenizer.encode_around(text, spans) == tokenizer.encode(text, parse_special_tokens=True)
    assert tokenizer.encode_around(text, []) == tokenizer.encode(text)


def test_unigram_that_cannot_spell_a_special_token_refuses_it(tmp_path: Path) -> None:
    encoder = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("▁", -1.0), ("a", -2.0)], 0))
    encoder.normalizer = normalizers.Replace(" ", "▁")
    encoder.decoder = decoders.Metaspace()
    encoder.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    tokenizer, _ = load_tokenizer(write(tmp_path, encoder))
    assert tokenizer.encode("a a") == [3, 2, 3]
    with pytest.raises(InvalidRequest, match="cannot write '</s>'"):
        tokenizer.encode("a</s>")


def test_broken_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json.*cannot be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no tokenizer"):
        load_tokenizer(tmp_path)
    encoder = byte_level()
    encoder.decoder = decoders.WordPiece()
    with pytest.raises(ConfigError, match="WordPiece is not supported"):
        load_tokenizer(write(tmp_path, encoder))
    with pytest.raises(ConfigError, match=r"config\.json.*no JSON object"):
        load_tokenizer(write(tmp_path, byte_level(), config=[1]))
