"""The text of one sample as it is delivered: detokenized, cut at stop strings, each piece with the tokens behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set

import msgspec

from inflightd.daemon.engines.api import TokenLogprobs
from inflightd.daemon.front.detokenizer import Detokenizer
from inflightd.daemon.front.stop_strings import StopMatch, StopMatcher
from inflightd.daemon.front.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """What to send.  The text is that of the tokens, except that it ends before a matched stop and a hidden end."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # one per token id, or None
    matched_stop: str | None = None  # set: the sample's text is complete


class SampleText:
    """Turns the tokens of one sample into deltas; `push` as they come, `finish` once at the end.

    - Text is released at token boundaries, so every delta but one with a match is exactly the text of its tokens.
      A token is held back with its text while a character or a possible stop string is unfinished.
    - A match ends the text before (include_stop: after) the stop string.  The tokens up to the one that completes the
      stop string are delivered; what the engine made beyond it is not.
    - A stop token at the end has no text.  It is held until `finish` (or, did it not end the sample, the next `push`).
    - An empty text is sent only for tokens that have none.
    """

    __slots__ = (
        "_boundaries",
        "_chars_out",
        "_detokenizer",
        "_done",
        "_ending",
        "_first_chars",
        "_ids",
        "_include_stop",
        "_is_clear",
        "_logprobs",
        "_matcher",
        "_stop_ids",
        "_text",
        "_texts",
        "_tokens_out",
        "_unmatched_tokens",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        stop_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
    ) -> None:
        """stop_ids: tokens that end a sample.  min_tokens: no stop string may begin in the first so many tokens."""
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens)
        self._matcher = StopMatcher(stops) if stops else None
        self._include_stop = include_stop
        self._stop_ids = stop_ids
        self._unmatched_tokens = min_tokens if stops else 0
        self._done = False
        # The short way, taken while nothing is held: one token whose text cannot begin a stop string.
        self._is_clear = not self._unmatched_tokens
        self._texts = tokenizer.texts(skip_special_tokens)
        self._first_chars: Set[str] = frozenset() if self._matcher is None else self._matcher.first_chars
        # Held tokens and the text that is known of them.
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._text = ""
        self._ending: tuple[list[int], list[TokenLogprobs] | None] | None = None
        # Of the text that went through the matcher: what is out, and where the held tokens' texts end, as
        # (characters, tokens).
        self._chars_out = 0
        self._tokens_out = 0
        self._boundaries: deque[tuple[int, int]] = deque()

    def push(self, token_ids: list[int], logprobs: list[TokenLogprobs] | None = None) -> TextDelta | None:
        """Takes the next tokens (and keeps the lists); None: nothing to send yet, or the text is complete."""
        if self._is_clear and len(token_ids) == 1 and token_ids[0] not in self._stop_ids:
            token_id = token_ids[0]
            text = self._texts[token_id] if token_id < len(self._texts) else ""
            if text is not None and self._first_chars.isdisjoint(text):
                return TextDelta(text, token_ids, logprobs)
        if self._done or not token_ids:
            return None
        delta = self._push(token_ids, logprobs)
        holds = self._ids or self._ending or not self._detokenizer.is_empty
        self._is_clear = not (holds or self._unmatched_tokens or self._done)
        return delta

    def finish(self) -> TextDelta | None:
        """Everything held, when no more tokens come; a match that waited to be beaten is one now."""
        if self._done:
            return None
        self._done, self._is_clear = True, False
        tail = self._detokenizer.finish()
        self._text += tail
        if self._matcher is not None and not self._unmatched_tokens:
            self._boundaries.append((self._chars_out + len(self._text), self._tokens_out + len(self._ids)))
            match = self._matcher.push(tail) or self._matcher.finish()
            if match is not None:
                return self._cut(match)
        ending, of_ending = self._ending or ([], [])
        ids, logprobs = self._ids + ending, self._logprobs + (of_ending or [])
        return TextDelta(self._text, ids, logprobs or None) if ids or self._text else None

    def _push(self, token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> TextDelta | None:
        if self._ending is not None:
            (ending, of_ending), self._ending = self._ending, None
            token_ids = ending + token_ids
            logprobs = None if logprobs is None or of_ending is None else of_ending + logprobs
        if token_ids[-1] in self._stop_ids:
            self._ending = (token_ids[-1:], None if logprobs is None else logprobs[-1:])
            token_ids = token_ids[:-1]
            logprobs = None if logprobs is None else logprobs[:-1]
            if not token_ids:
                return None
        if self._matcher is None:
            return self._push_plain(token_ids, logprobs)
        if self._unmatched_tokens:
            return self._push_first(self._matcher, token_ids, logprobs)
        return self._push_matching(self._matcher, token_ids, logprobs)

    def _push_plain(self, token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> TextDelta | None:
        push = self._detokenizer.push
        held = len(self._ids)
        self._hold(token_ids, logprobs)
        parts, released = [], 0
        for count, token_id in enumerate(token_ids, held + 1):
            text = push(token_id)
            if text is not None:
                parts.append(text)
                released = count
        return self._release("".join(parts), released) if released else None

    def _push_first(
        self, matcher: StopMatcher, token_ids: list[int], logprobs: list[TokenLogprobs] | None
    ) -> TextDelta | None:
        """Tokens of which the first are not to be searched."""
        count = self._unmatched_tokens
        self._unmatched_tokens = max(0, count - len(token_ids))
        delta = self._push_plain(token_ids[:count], None if logprobs is None else logprobs[:count])
        if len(token_ids) <= count:
            return delta
        rest = self._push_matching(matcher, token_ids[count:], None if logprobs is None else logprobs[count:])
        if delta is None or rest is None:
            return delta or rest
        return TextDelta(
            delta.text + rest.text,
            delta.token_ids + rest.token_ids,
            None if delta.logprobs is None or rest.logprobs is None else delta.logprobs + rest.logprobs,
            rest.matched_stop,
        )

    def _push_matching(
        self, matcher: StopMatcher, token_ids: list[int], logprobs: list[TokenLogprobs] | None
    ) -> TextDelta | None:
        push = self._detokenizer.push
        held = len(self._ids)
        self._hold(token_ids, logprobs)
        for count, token_id in enumerate(token_ids, held + 1):
            text = push(token_id)
            if text is None:
                continue
            match = matcher.push(text)
            self._text += text
            self._boundaries.append((self._chars_out + len(self._text), self._tokens_out + count))
            if match is not None:
                self._done = True
                return self._cut(match)

        safe_chars, chars, tokens = matcher.safe_chars, self._chars_out, self._tokens_out
        while self._boundaries and self._boundaries[0][0] <= safe_chars:
            chars, tokens = self._boundaries.popleft()
        if tokens == self._tokens_out:
            return None
        size, released = chars - self._chars_out, tokens - self._tokens_out
        text, self._text = self._text[:size], self._text[size:]
        self._chars_out, self._tokens_out = chars, tokens
        return self._release(text, released)

    def _hold(self, token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> None:
        self._ids += token_ids
        if logprobs is not None:
            self._logprobs += logprobs

    def _release(self, text: str, tokens: int) -> TextDelta:
        ids, self._ids = self._ids[:tokens], self._ids[tokens:]
        logprobs, self._logprobs = self._logprobs[:tokens], self._logprobs[tokens:]
        return TextDelta(text, ids, logprobs or None)

    def _cut(self, match: StopMatch) -> TextDelta:
        end = match.end if self._include_stop else match.begin
        tokens = next(tokens for chars, tokens in self._boundaries if chars >= match.end) - self._tokens_out
        logprobs = self._logprobs[:tokens] or None
        return TextDelta(self._text[: end - self._chars_out], self._ids[:tokens], logprobs, match.stop)
