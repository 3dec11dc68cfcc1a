"""The screen of `inflightd top`: the same samples give the same text."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from inflightd.clients.cli.top_figures import ASCII, UNICODE
from inflightd.clients.cli.top_keys import Screen, offer, press, show, tell
from inflightd.clients.cli.top_rates import Picture, first_picture
from inflightd.clients.cli.top_view import report, view
from inflightd.clients.status import SchedulerPolicy
from tests.support.stats import INTERVAL, stats_sample

NARROW = """\
inflightd  ready, up 1h 2m   scripted engine, pid 4242, model tiny
policy     throughput-max, generation 3  aging_s=30.0, preemption=auto

steps            100 per s                                              ████████
decode         3,000 tokens/s                                           ▄▅▅▆▆▇▇█
prefill        4,500 tokens/s                                           ████████
a step     9.80 ms mean, 24.3 ms longest; engine 95%, scheduling 0.8% of time
its batch  [███▒▒▒▒▒▒▒▒▒] 15.0 decode + 45.0 prefill + 0 padding of 2,048

latency          ~p50      ~p90      ~p99      mean     count
  TTFT         583 ms    3.25 s    4.83 s    745 ms         7
  ITL         7.50 ms   9.50 ms   9.95 ms   8.64 ms     1,500

KV blocks  [███████▒····] 600 held, 100 cached, 300 empty of 1,000
host pool  [█████████···] 48 used of 64

sequences  16 of 16 running, 19 waiting, 3 preempted (2 swapped out)
                  12  not enough free blocks
                   3  no free batch slot
                   4  for 3 other reasons
requests   38 in flight, 15 streaming; 0/s in, 0/s done, 0/s rejected
preempted  0/s recompute, 0/s swap; 20 in all; 0 tok/s redone
cost model sure, 4.2% off; 0 policy faults
s swap policy   p pause   + - interval   q quit   every 1 s"""

WIDE = """\
inflightd  ready, up 1h 2m   scripted engine, pid 4242, model tiny
policy     throughput-max, generation 3  aging_s=30.0, preemption=auto

steps            100 per s                                                                ##############################
decode         7,400 tokens/s                                                             ......-----=====++++++*****###
prefill        4,500 tokens/s                                                             ##############################
a step     9.80 ms mean, 24.3 ms longest; engine 95%, scheduling 0.8% of time
its batch  [#############=======================================] 15.0 decode + 45.0 prefill + 0 padding of 2,048

latency          ~p50      ~p90      ~p99      mean     count
  TTFT         583 ms    3.25 s    4.83 s    745 ms         7
  ITL         7.50 ms   9.50 ms   9.95 ms   8.64 ms     1,500

KV blocks  [###############################=====................] 600 held, 100 cached, 300 empty of 1,000
host pool  [#######################################.............] 48 used of 64

sequences  16 of 16 running, 19 waiting, 3 preempted (2 swapped out)
                  12  not enough free blocks
                   3  no free batch slot
                   2  passed over
                   1  a
                   1  b
requests   38 in flight, 15 streaming; 0/s in, 0/s done, 0/s rejected

preempted  0/s recompute, 0/s swap; 20 in all; 0 tok/s redone
cost model sure, 4.2% off; 0 policy faults

s swap policy   p pause   + - interval   q quit   every 1 s"""


def busy(seconds: int = 8, **changes: dict[str, object]) -> Picture:
    """Of a daemon that generates more tokens every second."""
    picture = first_picture(stats_sample(0))
    for second in range(1, seconds + 1):
        generated = 60_000 + second * (1500 + 100 * second)
        counters = {"generated_tokens": generated, **changes.get("counters", {})}
        picture = picture.then(stats_sample(second, INTERVAL, **{**changes, "counters": counters}))
    return picture


def on_screen(picture: Picture) -> Screen:
    return show(Screen(1000), picture)


def lines(screen: Screen, width: int = 80, height: int = 24, glyphs=UNICODE) -> list[str]:
    return view(screen, width, height, glyphs).plain.split("\n")


def test_at_80_columns_and_24_rows_all_of_it_fits() -> None:
    assert lines(on_screen(busy())) == NARROW.split("\n")


def test_at_120_columns_bars_and_history_are_longer() -> None:
    assert lines(on_screen(busy(30)), 120, 28, ASCII) == WIDE.split("\n")


def test_printed_without_colours_it_is_the_same_text() -> None:
    paper = io.StringIO()
    Console(width=80, file=paper, color_system=None).print(view(on_screen(busy()), 80, 24, UNICODE))
    assert paper.getvalue() == NARROW + "\n"


@pytest.mark.parametrize("width", [1, 11, 40, 79, 80, 132, 300])
@pytest.mark.parametrize("height", [1, 2, 5, 20, 24, 25, 60])
def test_at_any_size_there_is_a_line_for_each_row_and_none_is_too_long(width: int, height: int) -> None:
    broken = tell(on_screen(busy(300, kv={"blocks_total": 0})), "refused: " + "because " * 80, alarming=True)
    choosing = offer(on_screen(busy()), (policy("static-batch"), policy("throughput-max", current=True)))
    for screen in (Screen(1000), on_screen(busy(300)), broken, choosing, on_screen(first_picture(stats_sample(0)))):
        for glyphs in (UNICODE, ASCII):
            text = view(screen, width, height, glyphs)
            assert len(text.plain.split("\n")) == height
            assert max(line.cell_len for line in text.split("\n")) <= width


def test_in_few_rows_the_most_important_comes_first() -> None:
    shown = lines(on_screen(busy()), height=10)
    assert [line[:9].strip() for line in shown[:3]] == ["inflightd", "policy", "steps"]
    assert shown[-1].startswith("s swap policy")


def test_many_rows_show_every_reason() -> None:
    shown = "\n".join(lines(on_screen(busy()), height=40))
    assert "for 3 other reasons" not in shown
    assert "2  passed over" in shown


def test_trouble_is_named() -> None:
    picture = busy(counters={"preemptions": 60, "swap_outs": 20, "policy_faults": 1}, scheduler={"thrashing": True})
    before = first_picture(stats_sample(7))
    shown = "\n".join(lines(on_screen(before.then(picture.sample))))
    assert "preempted  THRASHING  25.0/s recompute, 15.0/s swap; 60 in all; 0 tok/s redone" in shown
    assert "1 policy fault" in shown


@pytest.mark.parametrize(
    ("running", "shown"), [(0, "a step     none"), (2, "a step     none has ended, although sequences run")]
)
def test_an_interval_without_a_step_says_so(running: int, shown: str) -> None:
    sample = stats_sample(1, {**INTERVAL, "steps": 0}, counters={"running": running})
    assert shown in lines(on_screen(first_picture(stats_sample(0)).then(sample)))


def test_a_loading_engine_shows_how_far_it_is() -> None:
    sample = replace(stats_sample(0), state="restarting")
    engine = replace(sample.engine, load_stage="weights", load_fraction=0.45, restarts=2)
    shown = "\n".join(lines(on_screen(first_picture(replace(sample, engine=engine)))))
    assert "inflightd  restarting" in shown
    assert "2 restarts" in shown
    assert "loading    weights, 45%" in shown


def test_silence_and_pause_are_in_the_first_line() -> None:
    screen, _ = press(on_screen(busy()), "p")
    assert "PAUSED" in lines(screen)[0]
    assert "NO ANSWER FOR 7 s" in lines(replace(screen, silent_s=7))[0]


def test_policies_to_choose_from_have_digits_and_the_current_one_a_star() -> None:
    screen = offer(on_screen(busy()), (policy("static-batch"), policy("throughput-max", current=True)))
    shown = lines(screen)
    assert shown[2:6] == [
        "Swap to which policy?",
        "",
        " 1   static-batch    What static-batch does.",
        " 2 * throughput-max  What throughput-max does.",
    ]
    assert shown[-1].startswith("1-9 swap to it")


def test_a_long_answer_is_shown_in_several_lines() -> None:
    screen = tell(on_screen(busy()), "static-batch refused, nothing has changed: " + "word " * 20, alarming=True)
    shown = lines(screen)
    assert shown[-3].startswith("static-batch refused")
    assert shown[-2].endswith("word")


def test_names_of_others_cannot_move_the_cursor() -> None:
    sample = stats_sample(0, engine={"name": "\x1b[1m", "model": "\x1b[2Jevil"}, scheduler={"name": "a\nb"})
    shown = view(on_screen(first_picture(sample)), 80, 24, UNICODE).plain
    assert "\x1b" not in shown
    assert "a?b" in shown


def test_on_paper_all_reasons_are_there_and_no_keys() -> None:
    shown = report(busy(), 80, ASCII).plain
    assert "passed over" in shown
    assert "quit" not in shown
    assert shown.isascii()


def policy(name: str, *, current: bool = False) -> SchedulerPolicy:
    return SchedulerPolicy(name=name, summary=f"What {name} does.", options=(), current=current)
