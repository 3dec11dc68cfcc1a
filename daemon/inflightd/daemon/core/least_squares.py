"""Weighted least squares over six features, in plain Python: for so few, NumPy's calls cost more than they save.

Golub and Van Loan, Matrix Computations, 4.2 and 5.3 (normal equations); Levenberg-Marquardt for the damping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FEATURES: Final = 6
_DAMPING: Final = 1e-4  # of a feature's own sum: pulls to the last solution where the data say nothing
_NEGLIGIBLE: Final = 1e-12  # of a feature's own sum: what is left of it is rounding


def normal_sums(weight: float, b: float, c: float, d: float, e: float, f: float, y: float) -> list[float]:
    """One observation's share of the normal equations for y = x0 + x1 b + x2 c + x3 d + x4 e + x5 f.

    [27]: the rows of the upper triangle of [6, 7], the right side last in each.  Sums of them are sums of observations.
    """
    wb, wc, wd, we, wf = weight * b, weight * c, weight * d, weight * e, weight * f
    return [
        weight, wb, wc, wd, we, wf, weight * y,
        wb * b, wb * c, wb * d, wb * e, wb * f, wb * y,
        wc * c, wc * d, wc * e, wc * f, wc * y,
        wd * d, wd * e, wd * f, wd * y,
        we * e, we * f, we * y,
        wf * f, wf * y,
    ]  # fmt: skip


def solve_non_negative(sums: Sequence[float], last: Sequence[float]) -> list[float]:
    """The coefficients [6], none negative, that fit best, drawn to the `last` ones.

    What would become negative is held at zero and the rest solved again, until nothing is: not always the best of all
    non-negative solutions, but always one, in at most six rounds.
    """
    matrix, right = _unpacked(sums)
    # In terms of the change from the last solution, so that the damping pulls to it.
    residual = [
        right[row] - sum([value * x for value, x in zip(matrix[row], last, strict=True)]) for row in range(FEATURES)
    ]
    free = [row for row in range(FEATURES) if matrix[row][row] > 0.0]
    change = [0.0] * FEATURES
    while free:
        held = [row for row in range(FEATURES) if change[row] != 0.0 and row not in free]
        targets = [residual[row] - sum([matrix[row][other] * change[other] for other in held]) for row in free]
        solved = _solve([[matrix[row][other] for other in free] for row in free], targets)
        negative = [row for row, step in zip(free, solved, strict=True) if last[row] + step < 0.0]
        if not negative:
            for row, step in zip(free, solved, strict=True):
                change[row] = step
            break
        for row in negative:
            change[row] = -last[row]
        free = [row for row in free if row not in negative]
    return [max(0.0, x + step) for x, step in zip(last, change, strict=True)]


def _unpacked(sums: Sequence[float]) -> tuple[list[list[float]], list[float]]:
    matrix = [[0.0] * FEATURES for _ in range(FEATURES)]
    right, at = [], 0
    for row in range(FEATURES):
        for column in range(row, FEATURES):
            matrix[row][column] = matrix[column][row] = sums[at]
            at += 1
        right.append(sums[at])
        at += 1
    return matrix, right


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a damped positive semidefinite system by elimination; both arguments are used up."""
    size = len(right)
    least = [matrix[row][row] * _NEGLIGIBLE for row in range(size)]
    for row in range(size):
        matrix[row][row] *= 1 + _DAMPING
    for pivot in range(size):
        pivot_row, pivot_right = matrix[pivot], right[pivot]
        if pivot_row[pivot] <= least[pivot]:
            continue
        for row in range(pivot + 1, size):
            current = matrix[row]
            factor = current[pivot] / pivot_row[pivot]
            if factor != 0.0:
                for column in range(pivot + 1, size):
                    current[column] -= factor * pivot_row[column]
                right[row] -= factor * pivot_right
    solution = [0.0] * size
    for row in reversed(range(size)):
        current = matrix[row]
        if current[row] > least[row]:
            rest = sum([current[column] * solution[column] for column in range(row + 1, size)])
            solution[row] = (right[row] - rest) / current[row]
    return solution
