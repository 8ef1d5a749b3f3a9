"""Robust least squares: clock offsets and drifts for which the ends of each call agree best.

Each member of a call is an observation: end + offset + drift * time = the call's true end, for the clock that recorded
it. The true end is eliminated by subtracting the weighted mean of the members, so only the clocks are unknown. Weights
fall with the residual (Huber), so mismatched calls and delayed members have little influence. The equations for all
offsets and drifts x are

    A x = b    A = J' W C J    b = -J' W C end

    J  one row per member of a call: 1 at its clock's offset, its time at its clock's drift
    W  the members' weights
    C  subtracts from each member the weighted mean of its call

A is the Laplacian of the graph whose nodes are clocks and whose edges are calls. A call on all hosts makes A dense. For
hundreds of clocks it is solved as a matrix. For thousands it is too large to store; A x needs only two sums over the
members, which is enough for conjugate gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.statistics import robust_sigma

_ROUNDS = 12
_HUBER = 1.345  # residuals beyond this many sigmas weigh less; 95% efficient for a normal distribution
_FLOOR_NS = 100.0  # resolution of the ends: keeps weights finite if all residuals are near zero
_ASSUMED_NS = 20_000.0
"""Assumed spread of the ends of one call, used if there are too few calls to measure it."""
DENSE_AT_MOST = 512
"""Maximum number of unknowns solved densely; beyond it the cubic cost exceeds that of conjugate gradients."""
_CHUNK = 512
"""Calls processed per dense matrix."""
_EXACT = 1e-12
"""Relative residual at which conjugate gradients stop: below a thousandth of a nanosecond."""
_DRAWS = 64
"""Number of noise fits whose spread estimates the standard errors to within 9%."""


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Observations of the fit, one entry per member of each call."""

    call: Ints
    """Call number, from 0."""
    clock: Ints
    """Clock number, from 0."""
    end_ns: Floats
    """End on the rough common time, relative to an origin of its call."""
    time_s: Floats
    """The same moment on the member's own clock, relative to the clock's reference."""
    clocks: int

    @property
    def calls(self) -> int:
        """Number of calls."""
        return int(self.call.max()) + 1

    def shift(self, unknowns: Floats) -> Floats:
        """Apply J: return how far offsets and drifts (one row per clock) move each member's end."""
        offset = unknowns[:, 0].take(self.clock)
        return offset if unknowns.shape[1] == 1 else offset + unknowns[:, 1].take(self.clock) * self.time_s

    def gathered(self, of_member: Floats, width: int) -> Floats:
        """Apply J': sum over each clock's members, for offsets and, if `width` is 2, for drifts."""
        columns = [of_member, of_member * self.time_s][:width]
        return np.stack([np.bincount(self.clock, column, self.clocks) for column in columns], axis=1)

    def centered(self, of_member: Floats, weight: Floats) -> Floats:
        """Apply C: subtract from each member the weighted mean of its call."""
        mean = np.bincount(self.call, weight * of_member, self.calls) / np.bincount(self.call, weight, self.calls)
        return np.asarray(of_member - mean[self.call])


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Offsets in ns and drifts in ns per second, by clock.

    Standard errors account for the whole graph: a clock tied through other clocks has a larger error.
    """

    offset: Floats
    offset_error: Floats
    drift: Floats
    drift_error: Floats
    sigma: float


def solve(seen: Observations, pinned: Ints, drifting: Flags) -> Fit:
    """Fit offsets and drifts; pinned clocks (one per component) keep both zero, as do clocks not in `drifting`.

    The fit is repeated twelve times, each time with weights from the previous residuals.
    """
    width = 2 if drifting.any() else 1
    free = np.stack([np.ones(seen.clocks, bool), drifting], axis=1)[:, :width]
    free[pinned] = False
    weight = np.ones(len(seen.call))
    # One row per clock: its offset, and its drift if `width` is 2.
    solution = np.zeros((seen.clocks, width))
    for _ in range(_ROUNDS):
        system = Equations(seen, weight, free)
        solution = system.solution(solution)
        residual = seen.centered(seen.end_ns + seen.shift(solution), weight)
        sigma = max(robust_sigma(residual), _FLOOR_NS)
        weight = np.minimum(1.0, _HUBER * sigma / np.maximum(np.abs(residual), 1e-9))
    # Degrees of freedom: observations minus one true end per call minus the free unknowns.
    spare = len(seen.call) - len(np.unique(seen.call)) - int(free.sum())
    error = system.spread() * (sigma * np.sqrt(len(seen.call) / spare) if spare > 0 else _ASSUMED_NS)
    nothing = np.zeros(seen.clocks)
    drift, drift_error = (solution[:, 1], error[:, 1]) if width > 1 else (nothing, nothing)
    return Fit(solution[:, 0], error[:, 0], drift, drift_error, sigma)


class Equations:
    """Equations for one set of weights, with A as a matrix if there are few unknowns.

    `free` has one row per clock and marks whether its offset and drift are unknowns; all others are 0. A solution has
    the same rows. Its spread is the standard error of each unknown if a member of weight 1 has a standard error of 1.
    """

    def __init__(self, seen: Observations, weight: Floats, free: Flags) -> None:
        self._seen, self._weight, self._free = seen, weight, free
        self._total = np.bincount(seen.call, weight, seen.calls)
        self.matrix = self._assembled() if int(free.sum()) <= DENSE_AT_MOST else None

    def solution(self, guess: Floats) -> Floats:
        """Solve the equations, iteratively from `guess` without a matrix; unknowns that no call determines are 0."""
        right = self._gathered(-self._seen.end_ns)
        if self.matrix is None:
            return self._iterated(right, guess)
        return self._full(np.asarray(np.linalg.lstsq(self.matrix, right[self._free], rcond=1e-12)[0], np.float64))

    def spread(self) -> Floats:
        """Return the square roots of the diagonal of A's inverse.

        Without a matrix, they are estimated: solutions for random noise have A's inverse as covariance.
        """
        if self.matrix is not None:
            return self._full(np.sqrt(np.maximum(np.diag(np.linalg.pinv(self.matrix)), 0.0)))
        random = np.random.default_rng(0)
        square, zero = np.zeros(self._free.shape), np.zeros(self._free.shape)
        for _ in range(_DRAWS):
            noise = random.standard_normal(len(self._weight)) / np.sqrt(self._weight)
            square += self._iterated(self._gathered(noise), zero) ** 2
        return np.sqrt(square / _DRAWS)

    def _gathered(self, of_member: Floats) -> Floats:
        """Apply J' W C, restricted to the free unknowns."""
        mean = np.bincount(self._seen.call, self._weight * of_member, len(self._total)) / self._total
        away = self._weight * (of_member - mean.take(self._seen.call))
        return self._seen.gathered(away, self._free.shape[1]) * self._free

    def _full(self, values: Floats) -> Floats:
        unknowns = np.zeros(self._free.shape)
        unknowns[self._free] = values
        return unknowns

    def _assembled(self) -> Floats:
        """Return A for the free unknowns, as J' W J minus an outer product per call.

        J' W J couples only the offset and drift of one clock. C subtracts, for each call, the outer product of the sums
        of its members' weighted rows of J, divided by the call's weight. Calls are processed in chunks to save memory.
        """
        seen, width, size = self._seen, self._free.shape[1], self._free.size
        # Nonzero entries of J, one row per member, and the unknowns they belong to.
        entry = np.stack([np.ones(len(seen.call)), seen.time_s], axis=1)[:, :width]
        unknown = seen.clock[:, None] * width + np.arange(width)
        weighted = self._weight[:, None] * entry
        products = weighted[:, :, None] * entry[:, None, :]
        matrix = _summed((size, size), unknown[:, :, None], unknown[:, None, :], products)
        by_call = np.argsort(seen.call, kind="stable")
        for low in range(0, seen.calls, _CHUNK):
            total = self._total[low : low + _CHUNK, None]
            rows = by_call[slice(*np.searchsorted(seen.call[by_call], [low, low + len(total)]))]
            sums = _summed((len(total), size), seen.call[rows, None] - low, unknown[rows], weighted[rows])
            matrix -= sums.T @ (sums / total)
        is_free = self._free.ravel()
        return matrix[np.ix_(is_free, is_free)]

    def _iterated(self, right: Floats, guess: Floats) -> Floats:
        """Solve A x = right by conjugate gradients, preconditioned with the diagonal of J' W J."""
        powers = [self._weight, self._weight * self._seen.time_s**2][: self._free.shape[1]]
        diagonal = np.stack([np.bincount(self._seen.clock, power, self._seen.clocks) for power in powers], axis=1)
        scale = np.divide(1.0, diagonal, out=np.zeros(diagonal.shape), where=self._free & (diagonal > 0))
        unknowns = guess * self._free
        left = right - self._gathered(self._seen.shift(unknowns))
        scaled = left * scale
        direction, size = scaled, float((left * scaled).sum())
        enough = _EXACT**2 * float((right * right * scale).sum())
        for _ in range(2 * right.size):
            if size <= enough:
                break
            image = self._gathered(self._seen.shift(direction))
            along = size / float((direction * image).sum())
            unknowns = unknowns + along * direction
            left = left - along * image
            scaled = left * scale
            before, size = size, float((left * scaled).sum())
            direction = scaled + size / before * direction
        return unknowns


def _summed(shape: tuple[int, int], row: Ints, column: Ints, values: Floats) -> Floats:
    """Return a matrix of the sums of the values for each row and column."""
    sums = np.bincount((row * shape[1] + column).ravel(), values.ravel(), shape[0] * shape[1])
    return np.asarray(sums.reshape(shape), np.float64)
