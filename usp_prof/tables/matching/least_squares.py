"""Robust least squares: the offsets and drifts with which the ends of each call agree best.

Each observation says: end + offset + drift * time = the call's true end, for the clock that recorded it. The calls'
true ends are eliminated, so that only the clocks are unknown. Weights fall with the residual (Huber), so a call that
was matched wrongly or a member that was held up does not pull.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.statistics import robust_sigma

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float = NDArray[np.float64]
    Int = NDArray[np.int64]

_ROUNDS = 12
_HUBER = 1.345
_FLOOR_NS = 100.0
_ASSUMED_NS = 20_000.0
"""How far apart members of a call end, where there are too few calls to see it."""
_CHUNK = 512


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """One row for each member of each call; `call` and `clock` number from 0, `time_s` counts on the clock itself."""

    call: Int
    clock: Int
    end_ns: Float
    time_s: Float
    clocks: int


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Offsets in ns and drifts in ns per second, by clock; residuals by observation.

    Errors are standard errors by the whole graph: a clock tied through others is known less well.
    """

    offset: Float
    offset_error: Float
    drift: Float
    drift_error: Float
    residual: Float
    sigma: float


def solve(seen: Observations, pinned: Int, drifting: NDArray[np.bool_]) -> Fit:
    """Solve the clocks; the pinned ones (one for each component) keep offset and drift zero, as do drifts not named."""
    width = 2 if drifting.any() else 1
    free = np.stack([np.ones(seen.clocks, bool), drifting], axis=1)[:, :width]
    free[pinned] = False
    weight = np.ones(len(seen.call))
    for _ in range(_ROUNDS):
        matrix, right = _normal_equations(seen, weight, width)
        kept = free.ravel()
        solution = np.zeros(seen.clocks * width)
        solution[kept] = np.linalg.lstsq(matrix[np.ix_(kept, kept)], right[kept], rcond=1e-12)[0]
        offset, drift = solution[::width], solution[1::width] if width > 1 else np.zeros(seen.clocks)
        residual = _residual(seen, offset, drift, weight)
        sigma = max(robust_sigma(residual), _FLOOR_NS)
        weight = np.minimum(1.0, _HUBER * sigma / np.maximum(np.abs(residual), 1e-9))
    error = np.zeros(seen.clocks * width)
    spare = len(seen.call) - len(np.unique(seen.call)) - int(kept.sum())
    spread = np.sqrt(np.maximum(np.diag(np.linalg.pinv(matrix[np.ix_(kept, kept)])), 0.0))
    error[kept] = spread * (sigma * np.sqrt(len(seen.call) / spare) if spare > 0 else _ASSUMED_NS)
    drift_error = error[1::width] if width > 1 else np.zeros(seen.clocks)
    return Fit(offset, error[::width], drift, drift_error, residual, sigma)


def _normal_equations(seen: Observations, weight: Float, width: int) -> tuple[Float, Float]:
    """Build A'WA and A'Wb with the calls' ends eliminated: subtract each call's weighted mean."""
    size = seen.clocks * width
    matrix, right = np.zeros((size, size)), np.zeros(size)
    basis = np.stack([np.ones(len(seen.call)), seen.time_s], axis=1)[:, :width]
    calls = int(seen.call.max()) + 1
    total = np.bincount(seen.call, weight, calls)
    mean = np.bincount(seen.call, weight * seen.end_ns, calls) / total
    away = seen.end_ns - mean[seen.call]
    for i in range(width):
        row = seen.clock * width + i
        np.add.at(right, row, -weight * basis[:, i] * away)
        for j in range(width):
            np.add.at(matrix, (row, seen.clock * width + j), weight * basis[:, i] * basis[:, j])
    for low in range(0, calls, _CHUNK):
        rows = np.flatnonzero((seen.call >= low) & (seen.call < low + _CHUNK))
        share = np.zeros((_CHUNK, size))
        for i in range(width):
            np.add.at(share, (seen.call[rows] - low, seen.clock[rows] * width + i), weight[rows] * basis[rows, i])
        matrix -= share.T @ (share / np.pad(total[low : low + _CHUNK], (0, _CHUNK), constant_values=1)[:_CHUNK, None])
    return matrix, right


def _residual(seen: Observations, offset: Float, drift: Float, weight: Float) -> Float:
    aligned = seen.end_ns + offset[seen.clock] + drift[seen.clock] * seen.time_s
    calls = int(seen.call.max()) + 1
    mean = np.bincount(seen.call, weight * aligned, calls) / np.bincount(seen.call, weight, calls)
    return np.asarray(aligned - mean[seen.call])
