"""The keyed random numbers."""

import numpy as np
import pytest

from inflightd.daemon.core.sampling.draws import philox4x32, uniform, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter: list[int], key: list[int], words: list[int]) -> None:
    column = lambda values: np.array(values, np.uint64)[:, None]  # noqa: E731
    assert philox4x32(column(counter), column(key))[:, 0].tolist() == words


def test_a_draw_depends_on_its_key_alone() -> None:
    seeds = [7, 2**64 - 1, 0, 7]
    samples = [0, 63, 5, 1]
    positions = [0, 8191, 3, 0]
    together = uniforms(seeds, samples, positions).tolist()
    alone = [uniform(*key) for key in zip(seeds, samples, positions, strict=True)]
    assert together == alone
    assert uniforms(seeds[::-1], samples[::-1], positions[::-1]).tolist() == alone[::-1]


def test_every_part_of_the_key_matters() -> None:
    keys = [(seed, sample, position) for seed in (0, 1, 2**32, 2**63) for sample in range(4) for position in range(64)]
    numbers = uniforms(*zip(*keys, strict=True))
    assert len(set(numbers.tolist())) == len(keys)


def test_draws_are_uniform() -> None:
    numbers = uniforms([3] * 100_000, [0] * 100_000, range(100_000))
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert 0 <= numbers.min() < numbers.max() < 1
    assert chi_square < 150  # 99 degrees of freedom: 1 in 1000 would exceed 148
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01
