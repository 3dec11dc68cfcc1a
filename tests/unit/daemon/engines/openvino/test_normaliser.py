"""Logarithms of sums over the vocabulary against float64."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from inflightd.daemon.engines.openvino.candidates import Normaliser
from inflightd.daemon.engines.openvino.graph import build_normaliser

VOCAB_SIZE = 1000


@pytest.fixture(scope="module")
def normaliser() -> Normaliser:
    return Normaliser(ov.Core().compile_model(build_normaliser(VOCAB_SIZE), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_each_row_has_its_own_scale(normaliser: Normaliser, rows: int) -> None:
    logits = (np.random.default_rng(rows).standard_normal((rows, VOCAB_SIZE)) * 8).astype(np.float32)
    scales = [0.5, 1.0, 1.25, 10.0, 1e-3, 1e5, 1e6, 0.9][:rows]
    normaliser.start(logits, logits.max(axis=1), scales)
    found = normaliser.wait()
    exponents = logits.astype(np.float64) * np.array(scales)[:, None]
    greatest = exponents.max(axis=1)
    right = greatest + np.log(np.exp(exponents - greatest[:, None]).sum(axis=1))
    np.testing.assert_allclose(found - greatest, right - greatest, atol=2e-5)


def test_minus_infinity_weighs_nothing_and_broken_rows_are_nan(normaliser: Normaliser) -> None:
    logits = np.full((4, VOCAB_SIZE), -np.inf, np.float32)
    logits[:3, 7] = 3.0
    logits[1, 8] = np.nan
    logits[2, 8] = np.inf
    normaliser.start(logits, logits.max(axis=1), [1.0] * 4)
    found = normaliser.wait()
    assert found[0] == pytest.approx(3.0)
    assert np.isnan(found[1:]).all()
