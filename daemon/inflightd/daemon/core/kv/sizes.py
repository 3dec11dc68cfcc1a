"""Memory sizes as people write them."""

from __future__ import annotations

import math
import re

from inflightd.daemon.errors import ConfigError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*|%)\s*", re.ASCII)


def parse_size(text: str, *, field: str, whole_bytes: int | None = None) -> int:
    """Bytes of "2GiB", "512 MiB", "1.5GB", "4096", or of "50%" of `whole_bytes`.  ConfigError naming `field`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(field, text, 'not a size: write "2GiB", "512MiB" or "50%"')
    number, unit = float(match[1]), match[2].lower()
    if unit == "%":
        if whole_bytes is None:
            raise ConfigError(field, text, "a percentage means nothing here: write a size in bytes")
        if number > 100:
            raise ConfigError(field, text, "more than all of it")
        size = whole_bytes * number / 100
    elif unit in _UNITS:
        size = number * _UNITS[unit]
    else:
        raise ConfigError(field, text, f"unknown unit {match[2]}: KiB, MiB, GiB, TiB, KB, MB, GB, TB or %")
    if not 1 <= size < math.inf:
        raise ConfigError(field, text, "less than a byte" if size < 1 else "not a finite number")
    return int(size)


def show_size(size_bytes: int) -> str:
    """The size in the largest binary unit that leaves at least 1 before the point: "1.50 GiB"."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{size:.2f} {unit}"
