"""A stream merges what its reader has not taken, never loses anything, and knows how far behind the reader is."""

import asyncio

import pytest

from inflightd.daemon.core.wire import Finished, TokenDelta
from inflightd.daemon.engines.api import TokenLogprobs
from inflightd.daemon.errors import Unavailable
from inflightd.daemon.front.streams import TokenStream


class Time:
    def __init__(self) -> None:
        self.at_ns = 1

    def now_ns(self) -> int:
        return self.at_ns


def finished(sample: int = 0) -> Finished:
    return Finished(1, sample, "length", 3, 0, 0, 5)


async def test_a_slow_reader_finds_its_tokens_merged_by_sample_and_in_order() -> None:
    stream = TokenStream(Time().now_ns)
    frames = [TokenDelta(1, 0, [1]), TokenDelta(1, 1, [7]), TokenDelta(1, 0, [2, 3]), TokenDelta(1, 0, [4])]
    for delta in frames:
        stream.push(delta)
    stream.finish(finished(1))
    assert stream.buffered_tokens == 5
    taken = await stream.take()
    assert {sample: tokens.token_ids for sample, tokens in taken.items()} == {0: [1, 2, 3, 4], 1: [7]}
    assert taken[1].finished == finished(1)
    assert taken[0].finished is None
    assert stream.buffered_tokens == stream.buffered_bytes == 0
    assert [delta.token_ids for delta in frames] == [[1], [7], [2, 3], [4]], "a frame is not the stream's to change"


async def test_logprobs_stay_with_their_tokens_and_count_as_bytes() -> None:
    stream = TokenStream(Time().now_ns)
    plain = TokenStream(Time().now_ns)
    for token in (1, 2, 3):
        stream.push(TokenDelta(1, 0, [token], [TokenLogprobs(token, -1.0, [5, 6], [-1.0, -2.0])]))
        plain.push(TokenDelta(1, 0, [token]))
    assert stream.buffered_bytes > 5 * plain.buffered_bytes
    tokens = (await stream.take())[0]
    assert [entry.token_id for entry in tokens.logprobs or []] == tokens.token_ids == [1, 2, 3]


async def test_a_waiting_reader_is_woken() -> None:
    stream = TokenStream(Time().now_ns)
    reader = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    stream.push(TokenDelta(1, 0, [1]))
    stream.push(TokenDelta(1, 0, [2]))
    assert (await reader)[0].token_ids == [1, 2]


async def test_what_is_buffered_comes_before_the_error_and_the_first_error_counts() -> None:
    stream = TokenStream(Time().now_ns)
    stream.push(TokenDelta(1, 0, [1]))
    stream.fail(Unavailable("first"))
    stream.fail(Unavailable("second"))
    assert (await stream.take())[0].token_ids == [1]
    with pytest.raises(Unavailable, match="first"):
        await stream.take()


async def test_a_waiting_reader_gets_the_error() -> None:
    stream = TokenStream(Time().now_ns)
    reader = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    stream.fail(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await reader


async def test_a_cancelled_reader_loses_nothing() -> None:
    stream = TokenStream(Time().now_ns)
    reader = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    stream.push(TokenDelta(1, 0, [1]))
    assert (await stream.take())[0].token_ids == [1]


async def test_only_a_reader_that_went_off_with_tokens_can_stall() -> None:
    time, limit_ns = Time(), 1000
    stream = TokenStream(time.now_ns)
    stream.push(TokenDelta(1, 0, [1]))
    assert not stream.stalled(1_000_000, limit_ns), "it has not come yet"
    time.at_ns = 500
    await stream.take()
    assert not stream.stalled(1500, limit_ns)
    assert stream.stalled(1501, limit_ns)
    reader = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    assert not stream.stalled(1_000_000, limit_ns), "it waits for us"
    reader.cancel()
