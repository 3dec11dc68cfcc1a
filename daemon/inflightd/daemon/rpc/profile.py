"""The profile calls of the control service, between messages and the front."""

from __future__ import annotations

from collections.abc import Iterator

from inflightd.daemon.errors import InvalidRequest
from inflightd.daemon.front.frontend import Frontend
from inflightd.daemon.front.profile_windows import check_seconds
from inflightd.daemon.front.trace_files import pieces
from inflightd.v1 import control_pb2 as pb


async def start_profile(front: Frontend, request: pb.StartProfileRequest) -> pb.StartProfileResponse:
    """Raises `InvalidRequest` or `ProfileRefused`."""
    steps = request.steps if request.HasField("steps") else None
    seconds = request.seconds if request.HasField("seconds") else None
    window = await front.windows.start(request.mode, steps, seconds, request.name)
    return pb.StartProfileResponse(name=window.name, mode=window.mode, path=str(window.path))


async def stop_profile(front: Frontend) -> pb.StopProfileResponse:
    """Raises `ProfileRefused`."""
    ended = await front.windows.stop()
    return pb.StopProfileResponse(
        name=ended.name,
        mode=ended.mode,
        path=str(ended.path),
        steps=ended.steps,
        dropped_steps=ended.dropped_steps,
        duration_ns=ended.duration_ns,
        ended_by=ended.ended_by,
    )


def take_trace(front: Frontend, request: pb.TakeTraceRequest) -> Iterator[bytes]:
    """The bytes of a file, in pieces.  Raises `InvalidRequest` or `TraceNotFound`, both at once."""
    recorder = front.flight.recorder
    given = [name for name in ("steps", "seconds") if request.HasField(name)] + ["file"] * bool(request.file)
    if len(given) > 1:
        raise InvalidRequest(given[1], getattr(request, given[1]), f"{given[0]} is given too")
    if request.file:
        return front.flight.files.read(request.file)
    if request.HasField("steps"):
        if not request.steps:
            raise InvalidRequest("steps", 0, "expected at least 1")
        window = recorder.last_steps(request.steps)
    elif request.HasField("seconds"):
        check_seconds(request.seconds)
        window = recorder.since_ns(front.now_ns() - int(request.seconds * 1e9))
    else:
        window = recorder.everything()
    return pieces(front.flight.lines(window, "snapshot"))
