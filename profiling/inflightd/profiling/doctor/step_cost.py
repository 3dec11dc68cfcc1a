"""What a step costs, fitted to the steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from inflightd.profiling.trace import Step

_FEWEST_STEPS: Final = 20  # three coefficients from fewer say nothing
_FEWEST_OTHERS: Final = 5  # steps with clearly less of something; with fewer what it costs cannot be told
_CLEARLY: Final = 0.6  # of the most of it
_OUTLIER: Final = 2.0  # steps that took so many times longer than fitted (a first run, a pause) are left out


@dataclass(frozen=True, slots=True)
class StepCost:
    """t = fixed + prefill tokens + rows."""

    fixed_ns: float
    prefill_token_ns: float
    row_ns: float  # of a decoding sequence, what it reads of the cache included
    rows_known: bool = True  # False: all steps had about as many rows, so that `fixed_ns` has what they cost

    def step_ns(self, prefill_tokens: float, rows: float) -> float:
        return self.fixed_ns + self.prefill_token_ns * prefill_tokens + self.row_ns * rows

    def rows_per_s(self, rows: float) -> float:
        """Tokens per second of steps of so many decodes."""
        return rows * 1e9 / max(1.0, self.step_ns(0, rows))

    def prefilled_per_s(self, tokens: float) -> float:
        """Prompt tokens per second in steps of so many."""
        return tokens * 1e9 / max(1.0, self.step_ns(tokens, 0))


def fit_steps(steps: Sequence[Step]) -> StepCost | None:
    """Least squares of the relative error, so that long steps do not decide alone.  None: too few steps."""
    if len(steps) < _FEWEST_STEPS:
        return None
    amounts = np.array([(1.0, s.prefill_tokens, s.decode_sequences + s.padding_tokens) for s in steps])
    took_ns = np.array([max(1.0, float(s.duration_ns)) for s in steps])
    fitted = _not_negative(amounts, took_ns)
    usual = took_ns <= _OUTLIER * np.maximum(1.0, amounts @ fitted)
    if usual.sum() >= _FEWEST_STEPS:
        fitted = _not_negative(amounts[usual], took_ns[usual])
    fixed_ns, prefill_token_ns, row_ns = (float(each) for each in fitted)
    return StepCost(fixed_ns, prefill_token_ns, row_ns, rows_known=_varies(amounts[:, 2]))


def _varies(amounts: np.ndarray) -> bool:
    most = amounts.max()
    return bool(most > 0 and (amounts <= _CLEARLY * most).sum() >= _FEWEST_OTHERS)


def _not_negative(amounts: np.ndarray, took_ns: np.ndarray) -> np.ndarray:
    """Coefficients >= 0: what comes out negative, or hardly varies, is left out and the rest fitted again."""
    fitted = np.zeros(3)
    used = [0, *(column for column in (1, 2) if _varies(amounts[:, column]))]
    while used:
        scaled = amounts[:, used] / took_ns[:, None]
        found = np.linalg.lstsq(scaled, np.ones(len(took_ns)), rcond=None)[0]
        if (found >= 0).all():
            fitted[used] = found
            break
        used.pop(int(np.argmin(found)))
    return fitted
