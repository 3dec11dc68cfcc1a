"""A model's chat template (jinja2, sandboxed) and its encoding, in which no content can forge a control token.

How a forged token is told from the template's own: the template is rendered a second time with an unguessable mark
set inside each special token that a content spells (and at an edge where content and template together could spell
one).  If the marks, taken out again, leave exactly the first text, their places in it are known, and every special
token that has a mark inside is the content's: it is encoded as ordinary text.  If they do not, the template looks
into such contents, and the request is refused.  Contents that spell nothing of the kind are rendered once and encoded
as the library does it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from inflightd.daemon.errors import ConfigError, InvalidRequest
from inflightd.daemon.front.request import ChatMessage
from inflightd.daemon.front.special_spellings import SpecialSpellings
from inflightd.daemon.front.tokenizer import Tokenizer

# A template is as trusted as the weights it comes with; this only stops a loop that prints.
MAX_RENDERED_CHARS = 16 * 1024 * 1024
_MARK_CHARS = 16
_FIELD = "chat.messages"


class _Generation(jinja2.ext.Extension):
    """{% generation %}: marks the assistant's part for training; its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Immutable; may be used from any thread."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: what the template knows as bos_token, eos_token, ...

        Raises ConfigError (field `chat_template`) for a template with a syntax error.
        """
        # The environment of transformers' apply_chat_template, which templates are written for.
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError("chat_template", source, f"line {error.lineno}: {error.message}") from error
        self._special_tokens = dict(special_tokens)
        self._source = source

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> str:
        """The text that transformers' apply_chat_template would give.

        Raises InvalidRequest (field `chat.messages`) if there are none, if the template refuses them, or if it would
        leave out the content of one.
        """
        return self._render(messages, add_generation_prompt, datetime.now())

    def encode_chat(
        self, tokenizer: Tokenizer, messages: Sequence[ChatMessage], add_generation_prompt: bool = True
    ) -> list[int]:
        """Ids of the rendered chat; special tokens only where the template itself puts them.

        Raises InvalidRequest as `render` does, and where a template looks into contents that spell special tokens.
        """
        now = datetime.now()
        text = self._render(messages, add_generation_prompt, now)
        marked, mark = _marked(messages, tokenizer.special_spellings)
        if marked is None:
            return tokenizer.encode(text, parse_special_tokens=True)
        parts = self._text(marked, add_generation_prompt, now).split(mark)
        if "".join(parts) != text:
            raise InvalidRequest(
                _FIELD,
                f"{len(messages)} messages",
                "a content spells one of the model's special tokens, and its template handles that",
            )
        marks = list(accumulate(map(len, parts)))[:-1]
        spans = tokenizer.special_token_spans(text)
        return tokenizer.encode_around(text, list(_unmarked(spans, marks)))

    def _render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool, now: datetime) -> str:
        if not messages:
            raise InvalidRequest(_FIELD, [], "there is none")
        text = self._text(messages, add_generation_prompt, now)
        missing = list(_not_in_order(messages, text))
        if missing:
            # They may be there in another form (escaped, moved): see whether plain words get through.
            probes = {index: f"probe{secrets.token_hex(8)}" for index in missing}
            tried = [ChatMessage(each.role, probes.get(i, each.content)) for i, each in enumerate(messages)]
            shown = self._text(tried, add_generation_prompt, now).lower()
            for index, probe in probes.items():
                if probe not in shown:
                    raise InvalidRequest(
                        f"{_FIELD}[{index}]",
                        f"{len(messages[index].content)} characters",
                        "the model's chat template leaves out this message",
                    )
        return text

    def _text(self, messages: Sequence[ChatMessage], add_generation_prompt: bool, now: datetime) -> str:
        parts: list[str] = []
        left = MAX_RENDERED_CHARS
        try:
            for part in self._template.generate(
                **self._special_tokens,
                messages=[{"role": message.role, "content": message.content} for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                strftime_now=now.strftime,
            ):
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise InvalidRequest(
                        _FIELD, len(messages), f"rendered to more than {MAX_RENDERED_CHARS} characters"
                    )
        except InvalidRequest:
            raise
        except Exception as error:  # a template is code: it fails in any way it likes
            raise InvalidRequest(
                _FIELD, f"{len(messages)} messages", f"the model's chat template refuses them: {self._told(error)}"
            ) from error
        return "".join(parts)

    def _told(self, error: Exception) -> str:
        """What the template itself says word for word; any other text may quote the messages."""
        said = str(error)
        return said if said and said in self._source else type(error).__name__


def _not_in_order(messages: Sequence[ChatMessage], text: str) -> Iterator[int]:
    """Messages whose contents are not found one after the other.  One pass: there may be very many."""
    at = 0
    for index, message in enumerate(messages):
        content = message.content.strip()
        found = text.find(content, at)
        if found < 0:
            yield index
        else:
            at = found + len(content)


def _marked(messages: Sequence[ChatMessage], spellings: SpecialSpellings) -> tuple[Sequence[ChatMessage] | None, str]:
    """The messages with marks wherever one could be read as a special token; None: nowhere."""
    # Private-use characters: no filter changes their case, no content can know them.
    mark = "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in range(_MARK_CHARS))
    marked = [
        # A template builds its own tokens from roles (<|user|>): only whole ones are marked in them.
        ChatMessage(spellings.mark(message.role, mark), spellings.mark_content(message.content, mark))
        for message in messages
    ]
    return (None if marked == list(messages) else marked), mark


def _unmarked(spans: Iterable[tuple[int, int, int]], marks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Both in the order of the text."""
    at = 0
    for token_id, begin, end in spans:
        while at < len(marks) and marks[at] <= begin:
            at += 1
        if at == len(marks) or marks[at] >= end:
            yield token_id, begin, end


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    # Jinja's own tojson escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
