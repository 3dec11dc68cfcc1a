"""What a new engine process is told of a request that another one had begun."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Command, Submit, decode_commands, encode_command
from inflightd.daemon.front.live_request import LiveRequest
from inflightd.daemon.front.streams import TokenStream


def request(n: int = 1) -> LiveRequest:
    submit = Submit(
        number=4,
        prompt_ids=[1, 2],
        sampling=SamplingParams(seed=9, max_tokens=50, n=n, presence_penalty=0.5),
        service_class="chat",
        tenant="t",
        arrival_ns=10,
        deadline_ns=99,
    )
    return LiveRequest(submit, "r", TokenStream(lambda: 0))


def sent(command: Command) -> Command:
    return decode_commands(encode_command([command]))[0]


def test_one_that_no_engine_had_begun_is_told_as_before() -> None:
    live = request()
    assert live.submission() is live.submit


def test_one_that_was_begun_without_a_token_skips_admission() -> None:
    live = request()
    live.scheduled_ns = 30
    resumed = live.submission().resumed
    assert resumed is not None
    assert resumed.samples == {}


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), min_size=1, max_size=4), st.data())
def test_tokens_go_with_their_samples_and_all_else_stays(tokens: list[list[int]], data: st.DataObject) -> None:
    live = request(len(tokens))
    for sample, ids in enumerate(tokens):
        live.received[sample].extend(ids)
    live.scheduled_ns, live.first_token_ns, live.last_token_ns = 20, 30, 40
    live.open_samples -= data.draw(st.sets(st.integers(0, len(tokens) - 1), max_size=len(tokens) - 1))
    command = sent(live.submission())
    assert isinstance(command, Submit)
    resumed = command.resumed
    assert resumed is not None
    assert resumed.samples == {sample: tokens[sample] for sample in live.open_samples}
    assert (resumed.first_token_ns, resumed.last_token_ns) == (30, 40)
    assert msgspec.structs.replace(command, resumed=None) == live.submit
    assert live.generated_tokens == sum(map(len, tokens))


def test_progress_is_counted_from_the_last_submission() -> None:
    live = request()
    assert not live.has_progressed
    live.received[0].append(5)
    live.submitted_tokens = 1
    assert not live.has_progressed
    live.received[0].append(6)
    assert live.has_progressed
