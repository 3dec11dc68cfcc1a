"""A generation as a protocol handler reads it."""

import pytest

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Cancel, Command, Finished, Frame, LoopState, Started, Submit, TokenDelta
from inflightd.daemon.errors import GenerationEnded
from inflightd.daemon.front.delta import Delta
from inflightd.daemon.front.generation import Generation
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.requests import RequestTable
from inflightd.daemon.front.sample_text import SampleText
from inflightd.daemon.front.tokenizer_bytes import byte_tokenizer

STATE = LoopState(0, 0, 0, 10, 10, 0, 0, 0, 0, 0, 0, 0, "p", 0)
EOS = 2
TOKENIZER = byte_tokenizer(300, [EOS])


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


class Bench:
    def __init__(self, n: int = 1, stops: tuple[str, ...] = ()) -> None:
        self.at_ns = 10
        self.sent: list[Command] = []
        self.terminals: list[str] = []
        self.table = RequestTable(
            self.sent.append,
            self,
            lambda gap_ns, tokens: None,
            lambda: self.at_ns,
            buffer_tokens=1000,
            buffer_bytes=1_000_000,
            stall_ns=10**9,
        )
        sampling = SamplingParams(seed=77, max_tokens=9, n=n)
        self.live = self.table.add(
            Submit(number=5, prompt_ids=[1, 2, 3], sampling=sampling, service_class="default", arrival_ns=4), "r"
        )
        self.generation = Generation(
            self.table,
            self.live,
            sampling,
            lambda: SampleText(TOKENIZER, stops=stops, stop_ids=frozenset({EOS})),
        )

    def lose_engine(self) -> None:
        """And go on in the next."""
        for live in self.table.engine_lost():
            self.table.submit(live)

    def first_token(self, live: LiveRequest, now_ns: int) -> None:
        assert now_ns == self.at_ns

    def terminal(self, live: LiveRequest, reason: str, now_ns: int) -> None:
        self.terminals.append(reason)

    def frame(self, *tokens: tuple[int, list[int]], finished: dict[int, str] | None = None, error: str = "") -> None:
        ends = [
            Finished(5, sample, reason, 1, 2, 1, 6, EOS if reason == "stop" else None, error)
            for sample, reason in (finished or {}).items()
        ]
        self.table.on_frame(
            Frame(tokens=[TokenDelta(5, sample, new) for sample, new in tokens], finished=ends, state=STATE)
        )

    async def all(self) -> list[Delta]:
        deltas: list[Delta] = []
        while new := await self.generation.next():
            deltas += new
        return deltas


async def test_the_last_delta_carries_reason_usage_and_timings() -> None:
    bench = Bench()
    bench.frame((0, ids("a")))
    first = await bench.generation.next()
    assert [(delta.text, delta.finish_reason, delta.usage) for delta in first] == [("a", "", None)]
    bench.at_ns = 20
    bench.frame((0, ids("b")), finished={0: "length"})
    (last,) = await bench.all()
    assert (last.text, last.finish_reason) == ("b", "length")
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (3, 2, 2)
    assert (last.usage.effective_max_tokens, last.usage.seed) == (9, 77)
    assert last.timings is not None
    assert (last.timings.queued_ns, last.timings.first_token_ns, last.timings.last_token_ns) == (2, 6, 16)
    assert bench.terminals == ["length"]
    assert await bench.generation.next() == []


async def test_an_end_token_has_no_text_but_is_counted_and_named() -> None:
    """Case E06: stopped by the end token is told from the limit."""
    bench = Bench()
    bench.frame((0, [EOS]), finished={0: "stop"})
    (only,) = await bench.all()
    assert (only.text, only.token_ids, only.finish_reason, only.matched_token_id) == ("", [EOS], "stop", EOS)
    assert only.usage is not None
    assert only.usage.completion_tokens == 1


async def test_text_held_back_comes_with_the_end() -> None:
    """Case G01: a character cut off at the end is one U+FFFD, and the stream ends well."""
    bench = Bench()
    dash = ids("—")
    bench.frame((0, dash[:1]))
    bench.frame((0, dash[1:] + dash[:1]), finished={0: "length"})
    deltas = await bench.all()
    assert "".join(delta.text for delta in deltas) == "—\ufffd"
    assert [token for delta in deltas for token in delta.token_ids] == dash + dash[:1]
    assert deltas[-1].finish_reason == "length"


async def test_a_stop_string_ends_the_sample_and_stops_the_engine() -> None:
    bench = Bench(stops=("END",))
    bench.frame((0, ids("ab END x")))
    (text,) = await bench.generation.next()
    assert text.text == "ab "
    assert bench.sent[1:] == [Cancel(5, "stop_string", 0)]
    bench.frame((0, ids("more")), finished={0: "stop_string"})
    (last,) = await bench.all()
    assert (last.text, last.token_ids, last.finish_reason, last.matched_stop) == ("", [], "stop_string", "END")
    assert bench.terminals == ["stop_string"]


async def test_a_stop_string_counts_although_the_engine_met_its_limit_in_the_same_frame() -> None:
    bench = Bench(stops=("b",))
    bench.frame((0, ids("ab")), finished={0: "length"})
    (last,) = await bench.all()
    assert (last.text, last.finish_reason, last.matched_stop) == ("a", "stop_string", "b")
    assert len(bench.sent) == 1, "no Cancel for what has ended"


async def test_each_sample_has_its_end_and_only_the_last_the_usage() -> None:
    """Case E13."""
    bench = Bench(n=3)
    bench.frame((0, ids("a")), (1, ids("b")), (2, ids("c")), finished={1: "length"})
    bench.frame((0, ids("d")), finished={0: "stop"})
    bench.frame((2, ids("e")), finished={2: "length"})
    deltas = await bench.all()
    ends = {delta.sample: delta.finish_reason for delta in deltas if delta.finish_reason}
    assert ends == {0: "stop", 1: "length", 2: "length"}
    assert sum(bool(delta.finish_reason) for delta in deltas) == 3
    assert [delta.sample for delta in deltas if delta.usage is not None] == [deltas[-1].sample]
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == 5
    assert deltas[-1].usage.cached_tokens == 2, "of the prompt, which the samples share"
    assert len(bench.terminals) == 1


@pytest.mark.parametrize("reason", ["deadline", "drained"])
async def test_what_there_was_comes_with_the_reason_before_the_error(reason: str) -> None:
    """Case G07: a partial answer says why it is one."""
    bench = Bench(n=2)
    bench.table.on_frame(Frame(started=[Started(5, 7, 2)], state=STATE))
    bench.frame((0, ids("a")), (1, ids("b")[:1]))
    bench.table.end(bench.live, reason)
    first = await bench.generation.next()
    second = await bench.generation.next()
    assert "".join(delta.text for delta in first + second) == "ab"
    assert [delta.finish_reason for delta in second] == [reason, reason]
    assert second[-1].usage is not None
    assert second[-1].usage.cached_tokens == 2, "the engine's own record did not come in time"
    assert second[-1].timings is not None
    assert second[-1].timings.queued_ns == 3
    with pytest.raises(GenerationEnded) as caught:
        await bench.generation.next()
    assert caught.value.reason == reason
    bench.generation.close()
    assert bench.terminals == [reason]


async def test_over_the_loss_of_an_engine_the_text_goes_on() -> None:
    bench = Bench(stops=("bcd",))
    bench.frame((0, ids("ab")))
    (first,) = await bench.generation.next()
    assert first.text == "a", "the rest may become the stop string"
    bench.lose_engine()
    bench.frame((0, ids("c")))
    bench.frame((0, ids("x")), finished={0: "length"})
    deltas = await bench.all()
    assert "".join(delta.text for delta in deltas) == "bcx"
    usage = deltas[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (3, 4, 2)


async def test_a_stop_string_may_begin_in_one_engine_and_end_in_the_next() -> None:
    bench = Bench(stops=("bcd",))
    bench.frame((0, ids("ab")))
    await bench.generation.next()
    bench.lose_engine()
    bench.frame((0, ids("cd")))
    bench.frame(finished={0: "stop_string"})
    deltas = await bench.all()
    assert "".join(delta.text for delta in deltas) == ""
    assert (deltas[-1].finish_reason, deltas[-1].matched_stop) == ("stop_string", "bcd")


async def test_an_engine_lost_after_the_stop_string_took_nothing_away() -> None:
    bench = Bench(stops=("b",))
    bench.frame((0, ids("ab")))
    await bench.generation.next()
    bench.lose_engine()
    (last,) = await bench.all()
    assert (last.finish_reason, last.matched_stop) == ("stop_string", "b")
    assert len([command for command in bench.sent if isinstance(command, Submit)]) == 1, "nothing is left to compute"


async def test_a_stop_string_found_after_the_loss_ends_the_sample_too() -> None:
    bench = Bench(stops=("b",))
    bench.frame((0, ids("ab")))
    assert bench.table.engine_lost() == [bench.live]
    deltas = await bench.all()
    assert (deltas[-1].finish_reason, deltas[-1].matched_stop) == ("stop_string", "b")
    bench.table.submit(bench.live)
    assert len([command for command in bench.sent if isinstance(command, Submit)]) == 1


async def test_an_error_of_the_engine_for_one_request_ends_that_one() -> None:
    bench = Bench()
    bench.frame(finished={0: "error"}, error="bad luck")
    (last,) = await bench.generation.next()
    assert last.finish_reason == "error"
    with pytest.raises(GenerationEnded, match="bad luck"):
        await bench.generation.next()
    assert bench.terminals == ["error"]


async def test_leaving_early_cancels_on_the_engine() -> None:
    """Case K01."""
    bench = Bench()
    bench.frame((0, ids("a")))
    await bench.generation.next()
    bench.generation.close()
    bench.generation.close()
    assert bench.sent[1:] == [Cancel(5, "cancelled")]
    assert bench.terminals == ["cancelled"]


async def test_leaving_at_the_deadline_counts_as_deadline() -> None:
    """Case G12."""
    bench = Bench()
    bench.generation.close(expired=True)
    assert bench.terminals == ["deadline"]
