"""`inflightd status`, `scheduler` and `version` against a stub daemon on real sockets."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from inflightd.clients.cli.scheduler import scheduler
from inflightd.clients.cli.status import status
from inflightd.clients.cli.version import version
from inflightd.v1 import control_pb2 as pb


@pytest.fixture
def serving(daemon):
    daemon.status = pb.StatusResponse(
        ready=True,
        state="ready",
        uptime_ns=2**40,
        engine={"name": "scripted", "model": "tiny"},
        scheduler={
            "name": "throughput-max",
            "generation": 1,
            "waiting_by_reason": {"passed over": 3, "no free blocks": 12},
            "cost_sure": True,
            "cost_error": 0.04,
        },
        kv={
            "blocks_total": 10,
            "blocks_free": 4,
            "blocks_cached": 3,
            "started_prompt_tokens": 5678,
            "cached_prompt_tokens": 1234,
            "host_blocks_total": 8,
            "host_blocks_free": 6,
        },
        counters={"steps": 2**40, "swapped": 1, "swap_outs": 17},
    )
    daemon.schedulers = [
        pb.Scheduler(name="static-batch", summary="The baseline."),
        pb.Scheduler(
            name="throughput-max",
            summary="Fill every step.",
            current=True,
            options=[pb.SchedulerOption(name="headroom", type="int", default_value="1", unit="steps", value="2")],
        ),
    ]
    return daemon


def test_status_json_has_its_fixed_keys_as_numbers(serving) -> None:
    result = CliRunner().invoke(status, ["--admin", serving.admin, "--json"])
    shown = json.loads(result.stdout)
    assert shown["ready"] is True
    assert shown["engine"]["name"] == "scripted"
    assert shown["scheduler"]["name"] == "throughput-max"
    assert shown["scheduler"]["generation"] == 1
    assert (shown["kv"]["blocks_total"], shown["kv"]["blocks_free"]) == (10, 4)
    assert shown["counters"]["steps"] == 2**40


def test_status_for_people_names_state_engine_scheduler_and_blocks(serving) -> None:
    shown = CliRunner().invoke(status, ["--admin", f"unix:{serving.admin}"]).stdout
    assert "ready" in shown
    assert "scripted, tiny" in shown
    assert "throughput-max (no options), generation 1" in shown
    assert "4 of 10 blocks free" in shown


def test_status_for_people_tells_hits_swaps_costs_and_why_sequences_wait(serving) -> None:
    shown = CliRunner().invoke(status, ["--admin", serving.admin]).stdout
    assert "prefixes   1234 of 5678 prompt tokens found (22%)" in shown
    assert "swap       6 of 8 host blocks free, 1 sequences swapped out now, 17 in all" in shown
    assert "costs      sure, error 4%\n" in shown
    assert "reasons    12: no free blocks, 3: passed over\n" in shown
    serving.status.kv.Clear()
    serving.status.scheduler.thrashing = True
    shown = CliRunner().invoke(status, ["--admin", serving.admin]).stdout
    assert "0 of 0 prompt tokens found (0%)" in shown
    assert "swap " not in shown
    assert "THRASHING" in shown


def test_status_of_a_target_alone_shows_health_model_and_limits(serving) -> None:
    result = CliRunner().invoke(status, ["--target", serving.target, "--json"], env={"INFLIGHTD_ADMIN": "/nowhere"})
    shown = json.loads(result.stdout)
    assert (shown["ready"], shown["health"]) == (True, "SERVING")
    assert shown["models"][0]["name"] == "tiny"
    assert shown["models"][0]["max_sequence_tokens"] == 512
    assert "512 tokens a request" in CliRunner().invoke(status, ["--target", serving.target]).stdout


@pytest.mark.parametrize(
    ("flags", "environment", "asks"),
    [
        ([], {"INFLIGHTD_TARGET": "{target}"}, "models"),
        ([], {"INFLIGHTD_ADMIN": "{admin}"}, "scheduler"),
        ([], {"INFLIGHTD_ADMIN": "{admin}", "INFLIGHTD_TARGET": "{target}"}, "scheduler"),
        (["--admin", "{admin}"], {"INFLIGHTD_TARGET": "{target}"}, "scheduler"),
        (["--admin", "{admin}", "--target", "{target}"], {}, "scheduler"),
    ],
)
def test_status_asks_what_was_named_and_the_flag_counts_more(serving, flags, environment, asks) -> None:
    places = {"target": serving.target, "admin": serving.admin}
    result = CliRunner().invoke(
        status,
        ["--json", *[each.format(**places) for each in flags]],
        env={"INFLIGHTD_TARGET": None, "INFLIGHTD_ADMIN": None}
        | {key: value.format(**places) for key, value in environment.items()},
    )
    assert asks in json.loads(result.stdout)


def test_no_daemon_exits_69(tmp_path) -> None:
    result = CliRunner().invoke(status, [], env={"XDG_RUNTIME_DIR": str(tmp_path), "RUNTIME_DIRECTORY": None})
    assert result.exit_code == 69
    assert f"{tmp_path}/inflightd/admin.sock" in result.stderr


def test_use_prints_the_swap(serving) -> None:
    arguments = ["use", "latency-guarantee", "--set", "itl_ms=50", "--set", "note=a=b", "--expect-generation", "1"]
    result = CliRunner().invoke(scheduler, [*arguments, "--admin", serving.admin, "--json"])
    assert json.loads(result.stdout) == {
        "name": "latency-guarantee",
        "previous": "throughput-max",
        "generation": 2,
        "step": 17,
        "rehearsed_steps": 96,
        "slowest_step_ns": 3_000_000,
        "snapshot_ns": 250_000,
        "pause_ns": 60_000,
    }
    (sent,) = serving.requests
    assert dict(sent.options) == {"itl_ms": "50", "note": "a=b"}
    assert sent.expected_generation == 1
    shown = CliRunner().invoke(scheduler, [*arguments, "--admin", serving.admin])
    assert shown.stdout.splitlines() == [
        "throughput-max -> latency-guarantee, generation 2, from step 17 on",
        "rehearsed for 96 steps; streams waited 0.31 ms for it",
    ]


@pytest.mark.parametrize("settings", [["--set", "a"], ["--set", "=1"], ["--set", "a=1", "--set", "a=2"]])
def test_a_wrong_setting_is_a_usage_error(serving, settings) -> None:
    assert CliRunner().invoke(scheduler, ["use", "x", *settings, "--admin", serving.admin]).exit_code == 2
    assert serving.requests == []


def test_a_refused_swap_exits_1(serving) -> None:
    serving.refuse(10, "generation is 4, not 3")
    result = CliRunner().invoke(scheduler, ["use", "x", "--admin", serving.admin])
    assert result.exit_code == 1
    assert "ABORTED" in result.stderr
    assert "generation is 4" in result.stderr


def test_list_marks_the_current_policy(serving) -> None:
    shown = CliRunner().invoke(scheduler, ["list", "--admin", serving.admin]).stdout
    assert shown == "  static-batch    The baseline.\n* throughput-max  Fill every step.\n"
    as_json = json.loads(CliRunner().invoke(scheduler, ["list", "--admin", serving.admin, "--json"]).stdout)
    assert [each["current"] for each in as_json] == [False, True]


def test_show_is_of_the_current_policy_unless_named(serving) -> None:
    current = CliRunner().invoke(scheduler, ["show", "--admin", serving.admin]).stdout
    assert current.startswith("throughput-max (current)\n")
    assert "headroom  int, default 1 steps, now 2" in current
    named = CliRunner().invoke(scheduler, ["show", "static-batch", "--admin", serving.admin, "--json"]).stdout
    assert json.loads(named)["name"] == "static-batch"
    unknown = CliRunner().invoke(scheduler, ["show", "nope", "--admin", serving.admin])
    assert unknown.exit_code == 1
    assert "known: static-batch, throughput-max" in unknown.stderr


def test_version_is_the_installed_one() -> None:
    shown = json.loads(CliRunner().invoke(version, ["--json"]).stdout)
    assert shown["version"][0].isdigit()
    assert {"grpcio", "protobuf", "python"} < shown.keys()
