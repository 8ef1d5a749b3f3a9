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
from usp_prof.tables.matching.normal_equations import Observations, equations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float = NDArray[np.float64]
    Int = NDArray[np.int64]

_ROUNDS = 12
_HUBER = 1.345  # residuals beyond so many sigmas weigh less; 95 % efficient for a normal distribution
_FLOOR_NS = 100.0  # ends are not known better: keeps weights sane where all residuals are near zero
_ASSUMED_NS = 20_000.0
"""How far apart members of a call end, where there are too few calls to see it."""


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
    """Solve the clocks; the pinned ones (one for each component) keep offset and drift zero, as do drifts not named.

    Solved twelve times, each with the weights that the residuals of the time before give.
    """
    width = 2 if drifting.any() else 1
    free = np.stack([np.ones(seen.clocks, bool), drifting], axis=1)[:, :width]
    free[pinned] = False
    weight = np.ones(len(seen.call))
    # One row a clock: its offset, and (with a width of 2) its drift.
    solution = np.zeros((seen.clocks, width))
    for _ in range(_ROUNDS):
        system = equations(seen, weight, free)
        solution = system.solution(solution)
        residual = seen.centred(seen.end_ns + seen.shift(solution), weight)
        sigma = max(robust_sigma(residual), _FLOOR_NS)
        weight = np.minimum(1.0, _HUBER * sigma / np.maximum(np.abs(residual), 1e-9))
    # Degrees of freedom that the ends of calls and the unknowns of clocks leave.
    spare = len(seen.call) - len(np.unique(seen.call)) - int(free.sum())
    error = system.spread() * (sigma * np.sqrt(len(seen.call) / spare) if spare > 0 else _ASSUMED_NS)
    nothing = np.zeros(seen.clocks)
    drift, drift_error = (solution[:, 1], error[:, 1]) if width > 1 else (nothing, nothing)
    return Fit(solution[:, 0], error[:, 0], drift, drift_error, residual, sigma)
