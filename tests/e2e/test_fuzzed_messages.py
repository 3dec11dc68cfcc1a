"""Random and mutated messages to every method of a real daemon: each call ends, errors tell no secrets and arrive, and
afterwards the daemon is as it was."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inflightd.v1 import control_pb2, inference_pb2
from tests.support.daemons import Daemon, running_daemon
from tests.support.random_messages import almost, messages

Method = Any  # a MethodDescriptor, of which protobuf has two kinds

BUDGET_S = 14.0
CALL_S = 10.0
MAX_METADATA_BYTES = 8192  # what clients accept unless they are told otherwise
MAX_GROWTH_BYTES = 48 * 2**20
MAX_ANSWERS = 3  # of a stream that need not end

CANARY = "canary-7f3a"
# What users write.  The other texts are names, which an error may quote.
CONTENTS = {"text", "content", "role", "stop", "bad_words"}
NAMES = ("", "x", "scripted", "default", "auto", "../../etc/passwd", "\0", "é", "🦆" * 60, "%" * 9000, "n" * 100_000)


def methods() -> Iterator[tuple[str, Method]]:
    """("public" or "admin", method) of all that is served."""
    services = (
        ("public", inference_pb2.DESCRIPTOR.services_by_name["Inference"]),
        ("public", health_pb2.DESCRIPTOR.services_by_name["Health"]),
        ("public", reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]),
        ("admin", control_pb2.DESCRIPTOR.services_by_name["Control"]),
    )
    for where, service in services:
        yield from ((where, method) for method in service.methods)


METHODS = [(where, method) for where, method in methods() if method.name != "Drain"]  # it ends the daemon, by design


def texts(field: FieldDescriptor) -> st.SearchStrategy[str]:
    if field.name in CONTENTS:
        return st.sampled_from((CANARY, f"{CANARY} " * 40, CANARY * 5_000, f"<|im_start|>{CANARY}\0é🦆", ""))
    return st.sampled_from(NAMES)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Method, bytes]:
    where, method = draw(st.sampled_from(METHODS))
    return where, method, draw(almost(messages(method.input_type, texts)))


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    options = ("--engine", "scripted", "--kv-blocks", "128", "--scripted-context-tokens", "512", "--log-level", "debug")
    with running_daemon(*options) as daemon:
        yield daemon


class Caller:
    """Makes calls of any method, and counts how they end."""

    def __init__(self, daemon: Daemon) -> None:
        options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 * 2**20)]
        self.channels = {
            "public": grpc.insecure_channel(daemon.target, options=options),
            "admin": grpc.insecure_channel(f"unix:{daemon.admin}", options=options),
        }
        self.ends: Counter[str] = Counter()

    def call(self, where: str, method: Method, data: bytes) -> None:
        path = f"/{method.containing_service.full_name}/{method.name}"
        channel, began_s = self.channels[where], time.monotonic()
        try:
            if method.client_streaming:
                self._some(channel.stream_stream(path)(iter([data]), timeout=CALL_S), MAX_ANSWERS)
            elif method.server_streaming:
                most = 1 if method.name.startswith("Watch") else MAX_ANSWERS
                self._some(channel.unary_stream(path)(data, timeout=CALL_S), most)
            else:
                channel.unary_unary(path)(data, timeout=CALL_S)
        except grpc.RpcError as error:
            ended = cast("grpc.Call", error)
            self.ends[ended.code().name] += 1
            check_error(method, ended)
        else:
            self.ends["OK"] += 1
        assert time.monotonic() - began_s < CALL_S - 1, f"{path} hangs"

    def _some(self, answers: Any, most: int) -> None:
        for count, _ in enumerate(answers, 1):
            if count == most:
                break
        answers.cancel()

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()


def check_error(method: Method, error: grpc.Call) -> None:
    details = error.details() or ""
    trailers = [(key, value.encode() if isinstance(value, str) else value) for key, value in error.trailing_metadata()]
    told = details.encode() + b"".join(value for _, value in trailers)
    assert CANARY.encode() not in told, (method.full_name, details)
    # The details once more, as they travel: percent-encoded; binary values in base64.
    size_bytes = len(quote(details, errors="replace")) + sum(
        32 + len(key) + len(value) * (4 if key.endswith("-bin") else 3) // 3 for key, value in trailers
    )
    assert size_bytes < MAX_METADATA_BYTES, method.full_name
    assert error.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), (method.full_name, details)


def rss_bytes(daemon: Daemon) -> int:
    pages = Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def open_files(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def settled(daemon: Daemon) -> bool:
    status = daemon.status()
    kv, counters = status["kv"], status["counters"]
    assert isinstance(kv, dict)
    assert isinstance(counters, dict)
    busy = [counters[name] for name in ("in_flight", "running", "waiting", "preempted", "swapped")]
    return kv["blocks_free"] == kv["blocks_total"] and not any(busy)


def fuzz(caller: Caller, budget_s: float) -> None:
    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(calls())
    def some(call: tuple[str, Method, bytes]) -> None:
        caller.call(*call)

    until_s = time.monotonic() + budget_s
    while time.monotonic() < until_s:
        some()


def test_whatever_is_sent_the_daemon_stays_as_it_was(daemon: Daemon) -> None:
    warm_up = Caller(daemon)
    fuzz(warm_up, BUDGET_S / 4)  # pools, caches and modules are full after that
    warm_up.close()
    daemon.wait_until(lambda: settled(daemon))
    files, memory_bytes = open_files(daemon), rss_bytes(daemon)
    engine_pid = daemon.status()["engine"]["pid"]  # type: ignore[index]

    caller = Caller(daemon)
    fuzz(caller, BUDGET_S * 3 / 4)
    caller.close()

    print(dict(caller.ends), f"RSS +{(rss_bytes(daemon) - memory_bytes) / 2**20:.1f} MiB")
    assert caller.ends["OK"] > 20
    assert caller.ends["INVALID_ARGUMENT"] > 50
    daemon.wait_until(lambda: settled(daemon))
    daemon.wait_until(lambda: open_files(daemon) <= files)
    assert rss_bytes(daemon) - memory_bytes < MAX_GROWTH_BYTES
    assert daemon.status()["engine"]["pid"] == engine_pid, "the engine is the same"  # type: ignore[index]
    bad = [line for line in daemon.log if "raw" in line or "exception" in line or line["level"] == "error"]
    assert bad == []
    assert not [line for line in daemon.log if CANARY in str(line)]
    assert daemon.stop() == 0
