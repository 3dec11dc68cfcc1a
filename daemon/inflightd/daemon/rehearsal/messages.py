"""What a rehearsal's child process is told, and what it says: a job in, stages and one report out."""

from __future__ import annotations

import msgspec

from inflightd.schedulers.options import OptionInfo, OptionValue


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """options None: only describe the policy.  snapshot None: only build it."""

    policy: str  # its name, or "module:Class"
    options: dict[str, OptionValue] | None = None
    snapshot: bytes | None = None  # `inflightd.daemon.core.snapshot.Snapshot`, encoded
    plan_limit_ns: int = 1_000_000_000


class Stage(msgspec.Struct, frozen=True, tag="stage"):
    """What begins now: what it is busy with if nothing more is heard of it."""

    doing: str  # "importing it", ...


class Report(msgspec.Struct, kw_only=True, tag="report"):
    """rule and detail: why the policy cannot be used, as in `SwapRefused`; what was found out before stands."""

    rule: str = ""
    detail: str = ""
    name: str = ""  # the policy's own
    summary: str = ""  # first line of its documentation
    described: list[OptionInfo] = []
    options: dict[str, OptionValue] = {}  # all of them, parsed
    source: str = ""  # file its class is from
    steps: int = 0  # rehearsed
    slowest_step_ns: int = 0  # of them, the engine's part left out
    rehearsal_ns: int = 0  # for all of them


Said = Stage | Report

encode = msgspec.msgpack.Encoder().encode
decode_job: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
decode_said: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
