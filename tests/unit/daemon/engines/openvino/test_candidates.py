"""The partial selection against a full sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflightd.daemon.engines.openvino.candidates import top_candidates
from inflightd.daemon.engines.openvino.graph import piece_height


def _maxima(logits: np.ndarray, height: int) -> np.ndarray:
    return logits.reshape(len(logits), -1, height).max(axis=2)


@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 80),
    height=st.sampled_from([1, 2, 4, 8, 16]),
    k=st.integers(1, 300),
    levels=st.sampled_from([3, 50, 10**6]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=300, deadline=None)
def test_the_k_greatest_in_descending_order_with_ties(
    rows: int, columns: int, height: int, k: int, levels: int, seed: int
) -> None:
    """Few levels make many equal logits: the values are still right, each id stands once and owns its value."""
    logits = np.random.default_rng(seed).integers(0, levels, (rows, columns * height)).astype(np.float32)
    values, ids = top_candidates(logits, _maxima(logits, height), k)
    k = min(k, columns * height)
    assert values.shape == ids.shape == (rows, k)
    assert np.array_equal(values, -np.sort(-logits, axis=1)[:, :k])
    assert np.array_equal(np.take_along_axis(logits, ids.astype(np.int64), 1), values)
    assert all(len(set(row)) == k for row in ids.tolist())


def test_minus_infinity_is_a_value_like_others() -> None:
    logits = np.full((1, 64), -np.inf, np.float32)
    logits[0, 33] = 1
    values, ids = top_candidates(logits, _maxima(logits, 4), 3)
    assert (values[0, 0], ids[0, 0]) == (1, 33)
    assert np.isneginf(values[0, 1:]).all()


@pytest.mark.parametrize(("vocab_size", "height"), [(49152, 16), (32000, 16), (128256, 16), (8200, 8), (50257, 1)])
def test_the_piece_height_divides_the_vocabulary(vocab_size: int, height: int) -> None:
    assert piece_height(vocab_size) == height
