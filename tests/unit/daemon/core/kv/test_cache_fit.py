"""The check at start, and sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from inflightd.daemon.core.kv.dtypes import BF16, FP8
from inflightd.daemon.core.kv.fit import CacheFit, check_fit, fitted_host_blocks
from inflightd.daemon.core.kv.sizes import parse_size, show_size
from inflightd.daemon.errors import ConfigError

MIB = 1024**2


def fit(**change: Any) -> CacheFit:
    machine: dict[str, Any] = {
        "context_tokens": 8192,
        "max_sequence_tokens": None,
        "block_size_tokens": 32,
        "block_bytes": MIB,
        "dtype": BF16,
        "kv_blocks": None,
        "kv_memory_bytes": None,
        "available_bytes": 1000 * MIB,
        "weights_bytes": 300 * MIB,
    }
    return check_fit(**machine | change)


def test_blocks_by_count_and_by_memory() -> None:
    assert fit(kv_blocks=640) == CacheFit(640, 640 * MIB, 8192)
    assert fit(kv_memory_bytes=640 * MIB + MIB // 2) == CacheFit(640, 640 * MIB, 8192)
    assert fit(kv_blocks=700).blocks_total == 700


def test_a_small_pool_lowers_the_limit_of_sequences() -> None:
    assert fit(kv_blocks=10).fitted_sequence_tokens == 320
    assert fit(kv_blocks=640, max_sequence_tokens=1000).fitted_sequence_tokens == 1000
    assert fit(kv_blocks=10, max_sequence_tokens=320).fitted_sequence_tokens == 320


@pytest.mark.parametrize(
    ("change", "field", "parts"),
    [
        (
            {"kv_blocks": 701},
            "kv_blocks",
            ["701.00 MiB", "1000.00 MiB", "kv_blocks = 700", "kv_memory = 700.00 MiB", "u8"],
        ),
        ({"kv_memory_bytes": 2000 * MIB}, "kv_memory", ["2000 blocks", "1.95 GiB", "at most 700 blocks"]),
        ({"kv_memory_bytes": MIB - 1}, "kv_memory", ["not even one block", "1.00 MiB"]),
        ({"kv_blocks": 0}, "kv_blocks", ["not even one block"]),
        ({"kv_blocks": 1, "weights_bytes": 1000 * MIB}, "model", ["1001.00 MiB", "1000.00 MiB"]),
        ({"kv_blocks": 1, "max_sequence_tokens": 9000}, "max_sequence_tokens", ["8192"]),
        ({"kv_blocks": 1, "max_sequence_tokens": 0}, "max_sequence_tokens", ["2 .. 8192"]),
        (
            {"kv_blocks": 10, "max_sequence_tokens": 321},
            "max_sequence_tokens",
            ["hold 320", "11 blocks", "at most 320"],
        ),
        (
            {"kv_blocks": 10, "max_sequence_tokens": 8192, "available_bytes": 350 * MIB},
            "max_sequence_tokens",
            ["256 blocks", "room for 50"],
        ),
        ({}, "kv_blocks", ["either kv_blocks or kv_memory"]),
        ({"kv_blocks": 1, "kv_memory_bytes": MIB}, "kv_blocks", ["either kv_blocks or kv_memory"]),
    ],
)
def test_what_cannot_fit_is_refused_with_the_remedies(change: dict[str, Any], field: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        fit(**change)
    assert raised.value.field == field
    for part in parts:
        assert part in str(raised.value)


def test_the_smallest_format_is_not_told_to_shrink() -> None:
    with pytest.raises(ConfigError) as raised:
        fit(kv_blocks=701, dtype=FP8)
    assert "smaller kv_dtype" not in str(raised.value)


def host_blocks(swap_bytes: int, pool_bytes: int = 500 * MIB) -> int:
    machine = {"block_bytes": MIB, "pool_bytes": pool_bytes, "weights_bytes": 300 * MIB, "available_bytes": 1000 * MIB}
    return fitted_host_blocks(swap_bytes=swap_bytes, **machine)


def test_the_swap_pool_gets_what_weights_and_pool_leave() -> None:
    assert [host_blocks(size) for size in (0, MIB, 2 * MIB - 1, 200 * MIB)] == [0, 1, 1, 200]


@pytest.mark.parametrize(
    ("swap_bytes", "pool_bytes", "parts"),
    [
        (200 * MIB + 1, 500 * MIB, ["at most 200.00 MiB", "swap_memory = 0", "kv_blocks", "1000.00 MiB are available"]),
        (MIB, 700 * MIB, ["swap_memory = 0", "a smaller pool"]),
        (MIB - 1, MIB, ["not even one block", "1.00 MiB", "swap_memory = 0"]),
    ],
)
def test_a_swap_pool_that_cannot_be_is_refused_with_the_remedies(
    swap_bytes: int, pool_bytes: int, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        host_blocks(swap_bytes, pool_bytes)
    assert raised.value.field == "swap_memory"
    assert all(part in str(raised.value) for part in parts)
    assert "at most 0" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * 1024**3),
        ("512 MiB", 512 * MIB),
        ("1.5gib", 1536 * MIB),
        ("2GB", 2 * 10**9),
        ("4096", 4096),
        ("1 TiB", 1024**4),
        ("50%", 500),
        ("12.5 %", 125),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, field="kv_memory", whole_bytes=1000) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 G", "2GiBs", "nan", "101%", "0", "0.1", "1e3", "9" * 400])
def test_what_is_no_size_is_refused_by_field(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_size(text, field="kv_memory", whole_bytes=1000)
    assert raised.value.field == "kv_memory"


def test_a_percentage_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="percentage means nothing"):
        parse_size("50%", field="max_message")


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (188743680, "180.00 MiB"), (5 << 40, "5.00 TiB")],
)
def test_sizes_are_shown_in_the_largest_unit(size: int, shown: str) -> None:
    assert show_size(size) == shown
