"""Numbers as a sentence says them."""

from __future__ import annotations


def duration(ns: float) -> str:
    """12345678 -> "12.3 ms": three digits, in the unit that suits."""
    for unit_ns, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= 0.9995 * unit_ns:
            return f"{_digits(ns / unit_ns)} {unit}"
    return f"{ns:.0f} ns"


def counted(count: int, noun: str, plural: str = "") -> str:
    """1234, "step" -> "1,234 steps"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def share(fraction: float) -> str:
    """0.1234 -> "12%"; a small one keeps a digit, and what is not nothing never reads 0%."""
    if 0 < abs(fraction) < 0.001:
        return "< 0.1%"
    return f"{fraction:.1%}" if 0 < abs(fraction) < 0.0995 else f"{fraction:.0%}"


def printable(text: str) -> str:
    """What a terminal would obey rather than show is shown by number; lines stay lines."""
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def size(size_bytes: float) -> str:
    """1610612736 -> "1.50 GiB"."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024:
            break
        size_bytes, unit = size_bytes / 1024, larger
    return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.2f} {unit}"


def _digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
