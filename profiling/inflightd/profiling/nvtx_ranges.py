"""Ranges for Nsight Systems, or any other tool that takes NVTX.

`nvtx` is imported by `attach`, which is called only when somebody wants it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import re
from dataclasses import dataclass
from typing import Any, Final

from inflightd.profiling import ranges as names

_log = logging.getLogger(__name__)

INJECTION_VARIABLES: Final = ("NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH")

# With these versions `get_domain` finds out that tools of 2022 and before answer "not enabled" for domains that they
# record all the same.  Newer versions are left alone: what is done here touches private names of the package.
_DISTRUSTFUL: Final = ((0, 2, 12), (0, 2, 17))

# 0xAARRGGBB.  Numbers, not names: all but ten names fail, and only while a tool is attached.
_COLOURS: Final = {
    names.LOAD: 0xFF8C6D31,
    names.STEP: 0xFF7F7F7F,
    names.SCHEDULE: 0xFFBCBD22,
    names.SWAP_OUT: 0xFFFF7F0E,
    names.SWAP_IN: 0xFFFFBB78,
    names.PREFILL: 0xFF1F77B4,
    names.DECODE: 0xFF2CA02C,
    names.MIXED: 0xFF17BECF,
    names.SAMPLE: 0xFF98DF8A,
    names.PUBLISH: 0xFF9467BD,
    names.SNAPSHOT: 0xFFE377C2,
    names.IDLE: 0xFFD9D9D9,
    names.HELD: 0xFFF7B6D2,
    names.FRONT_BEHIND: 0xFFD62728,
    names.ADMIT: 0xFF2CA02C,
    names.RESUME: 0xFF98DF8A,
    names.PREEMPT: 0xFFD62728,
    names.SWAP: 0xFFFF7F0E,
    names.POLICY_SWAP: 0xFFE377C2,
    names.REQUEST: 0xFF8C564B,
    names.QUEUED: 0xFFC7C7C7,
    names.PREFILLING: 0xFF1F77B4,
    names.DECODING: 0xFF2CA02C,
    names.PREEMPTED: 0xFFD62728,
}
_OTHER_COLOUR: Final = 0xFFAEC7E8


@dataclass(frozen=True, slots=True)
class Attached:
    """What `attach` found: the sink if a tool listens, and what is to be logged of it."""

    ranges: NvtxRanges | None
    injection: str  # the library that the environment names; empty: none
    domain: str  # "Domain", or "DummyDomain" if nobody listens: decided once for the life of the process
    forced: bool  # the package believed that nobody listens


def injection_path() -> str:
    """The library of a tool that the environment names; empty if none."""
    return next((path for name in INJECTION_VARIABLES if (path := os.environ.get(name))), "")


def attach(domain_name: str) -> Attached:
    """Push and pop go to the domain `domain_name`, ranges of requests to theirs.

    Raises ImportError if `nvtx` is not installed, or older than 0.2.12.
    """
    import nvtx

    injection = injection_path()
    domains: list[Any] = [nvtx.get_domain(name) for name in (domain_name, names.REQUEST_DOMAIN)]
    forced = False
    if _is_dummy(domains[0]) and nvtx.enabled() and os.path.exists(injection) and _is_distrustful():
        try:
            domains = [_make_domain(name) for name in (domain_name, names.REQUEST_DOMAIN)]
            forced = True
        except Exception as error:  # private names of the package: whatever goes wrong, the daemon must not
            _log.warning("nvtx_domain_not_forced", extra={"error": repr(error)})
    if not hasattr(domains[0], "push_range"):
        raise ImportError(f"nvtx {importlib.metadata.version('nvtx')} is too old: 0.2.12 is needed")
    dummy = _is_dummy(domains[0])
    sink = None if dummy else NvtxRanges(*domains)
    return Attached(sink, injection, "DummyDomain" if dummy else "Domain", forced)


class NvtxRanges:
    """Implements `inflightd.profiling.ranges.Ranges`.

    The attributes of a name are made once; only their payload is set for each event.  So `push`, `pop` and `mark`
    belong to one thread, and `open_request` to one thread too (which may be another).
    """

    def __init__(self, domain: Any, requests: Any) -> None:
        self._domain = domain
        self._requests = requests
        self._attributes: dict[str, Any] = {}
        self._request_attributes: dict[str, Any] = {}
        self._push, self._mark, self.pop = domain.push_range, domain.mark, domain.pop_range
        self.close_request = requests.end_range

    def push(self, name: str, payload: int) -> None:
        attributes = self._attributes.get(name) or self._made(name)
        attributes.payload = payload
        self._push(attributes)

    def mark(self, name: str, payload: int) -> None:
        attributes = self._attributes.get(name) or self._made(name)
        attributes.payload = payload
        self._mark(attributes)

    def open_request(self, name: str, request: int) -> object:
        attributes = self._request_attributes.get(name)
        if attributes is None:
            colour = _COLOURS.get(name, _OTHER_COLOUR)
            attributes = self._request_attributes[name] = self._requests.get_event_attributes(name, colour)
        attributes.payload = request
        return self._requests.start_range(attributes)

    def close(self) -> None:
        """The tool has had everything already."""

    def _made(self, name: str) -> Any:
        made = self._attributes[name] = self._domain.get_event_attributes(name, _COLOURS.get(name, _OTHER_COLOUR))
        return made


def _is_dummy(domain: Any) -> bool:
    return type(domain).__name__ == "DummyDomain"


def _is_distrustful() -> bool:
    numbers = re.findall(r"\d+", importlib.metadata.version("nvtx"))[:3]
    first, last = _DISTRUSTFUL
    return first <= tuple(map(int, numbers)) <= last


def _make_domain(name: str) -> Any:
    """What `nvtx.Domain(name)` makes if the tool says that the domain is enabled."""
    lib: Any = importlib.import_module("nvtx._lib.lib")  # compiled, and without type information
    domain = object.__new__(lib.Domain)
    domain.handle = lib.DomainHandle(name)
    domain.__init__(name)
    return domain
