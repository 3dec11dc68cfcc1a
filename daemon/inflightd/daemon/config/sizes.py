"""Sizes in bytes as people write them: 512MiB, 4GB, 1.5g."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*$")


def parse_size(text: str) -> int:
    """Bytes.  K, KiB are 1024; KB is 1000; and so on.  Raises ValueError with the reason."""
    match = _SIZE.match(text)
    unit = match[2].lower() if match else None
    if match is None or unit is None:
        raise ValueError("expected a size such as 512MiB, 4GB or 1073741824")
    factor = _DECIMAL.get(unit) or _UNITS.get(
        unit.removesuffix("ib") if unit.endswith("ib") else unit.removesuffix("b")
    )
    if factor is None:
        raise ValueError(f"unknown unit {match[2]!r}: expected B, KiB, MiB, GiB, TiB, KB, MB, GB or TB")
    return int(float(match[1]) * factor)
