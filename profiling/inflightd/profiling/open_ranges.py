"""The sink that a process traces to, chosen when it starts."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from inflightd.profiling.chrome_ranges import ChromeRanges
from inflightd.profiling.nvtx_ranges import attach, injection_path
from inflightd.profiling.ranges import ENGINE_DOMAIN, FRONT_DOMAIN, Ranges

_log = logging.getLogger(__name__)

KINDS: Final = ("auto", "nvtx", "chrome", "off")
DOMAINS: Final = {"engine": ENGINE_DOMAIN, "front": FRONT_DOMAIN}


def open_ranges(kind: str, process: str, path: Path | None = None) -> Ranges | None:
    """The sink of this process, or None if nobody wants its ranges.  Call once, and `close()` it at the end.

    kind: "auto" is NVTX if the environment names a tool's library and else nothing; "nvtx" asks the package even so (a
    CUDA driver can bring a tool along); "chrome" is a file beside `path`, named after it, the process and its number;
    "off" is nothing.
    process: "engine" or "front".

    What was found is logged; a tool that will not get anything is a warning.  Raises ValueError for an unknown kind or
    process and for "chrome" without a path, OSError if the file cannot be written.
    """
    if kind not in KINDS:
        raise ValueError(f"no sink of ranges is called {kind!r}: there are {', '.join(KINDS)}")
    domain = DOMAINS.get(process)
    if domain is None:
        raise ValueError(f"no process is called {process!r}: there are {', '.join(DOMAINS)}")
    if kind == "chrome":
        if path is None:
            raise ValueError("ranges of the kind 'chrome' need a path to write to")
        path = path.with_name(f"{path.stem}.{process}-{os.getpid()}{path.suffix or '.json'}")
        _log.info("chrome_ranges", extra={"path": str(path)})
        return ChromeRanges(path, process)
    if kind == "nvtx" or (kind == "auto" and injection_path()):
        return _open_nvtx(domain)
    return None


def _open_nvtx(domain: str) -> Ranges | None:
    try:
        attached = attach(domain)
    except ImportError as error:
        _log.warning("nvtx_missing", extra={"error": str(error), "injection": injection_path()})
        return None
    found = {"injection": attached.injection, "domain": attached.domain, "forced": attached.forced}
    if attached.ranges is not None:
        _log.info("nvtx", extra=found)
    elif attached.injection:
        reason = "its library does not exist" if not os.path.exists(attached.injection) else "it takes no NVTX"
        _log.warning("nvtx", extra={**found, "consequence": f"the tool's report will have no ranges: {reason}"})
    else:
        _log.info("nvtx", extra={**found, "consequence": "no tool is attached, and none can be from now on"})
    return attached.ranges
