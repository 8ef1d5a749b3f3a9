"""Robust least squares: the clocks' offsets and drifts with which the ends of each call agree best.

Each member of a call is an observation: end + offset + drift * time = the call's true end, for the clock that recorded
it. The true end is eliminated (the weighted mean of the members is subtracted), so that only the clocks are unknown.
Weights fall with the residual (Huber): a call that was matched wrongly or a member that was held up does not pull.
The equations for all offsets and drifts x are

    A x = b    A = J' W C J    b = -J' W C end

    J  one row a member of a call: 1 at its clock's offset, its time at its clock's drift
    W  the members' weights
    C  subtracts from each member the weighted mean of its call

A is the Laplacian of the graph that calls span over the clocks. A call of all hosts makes it full: for hundreds of
clocks it is solved as a matrix. For thousands it is not worth storing; but A x takes two sums over the members only,
which is all that conjugate gradients need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from usp_prof.columns.statistics import robust_sigma

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Floats, Ints


_ROUNDS = 12
_HUBER = 1.345  # residuals beyond so many sigmas weigh less; 95% efficient for a normal distribution
_FLOOR_NS = 100.0  # ends are not known better: keeps weights sane where all residuals are near zero
_ASSUMED_NS = 20_000.0
"""How far apart members of a call end, where there are too few calls to see it."""
DENSE_AT_MOST = 512
"""Unknowns that are solved densely: the time grows with their cube, from here on beyond that of conjugate gradients."""
_CHUNK = 512
"""Calls whose members are set in one dense matrix."""
_EXACT = 1e-12
"""Conjugate gradients end when the residual has fallen to this share: below a thousandth of a nanosecond."""
_DRAWS = 64
"""Fits of noise whose spread stands for the standard errors: they are then known to 9%."""


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """One entry for each member of each call."""

    call: Ints
    """From 0."""
    clock: Ints
    """From 0."""
    end_ns: Floats
    """On the rough common time, counted from an origin of its call's own."""
    time_s: Floats
    """The same moment on the clock itself, counted from its reference."""
    clocks: int

    @property
    def calls(self) -> int:
        """Count the calls."""
        return int(self.call.max()) + 1

    def shift(self, unknowns: Floats) -> Floats:
        """Apply J: give by how much offsets (and drifts: one row a clock) move each member's end."""
        offset = unknowns[:, 0].take(self.clock)
        return offset if unknowns.shape[1] == 1 else offset + unknowns[:, 1].take(self.clock) * self.time_s

    def gathered(self, of_member: Floats, width: int) -> Floats:
        """Apply J': sum over each clock's members, for offsets and (with a width of 2) for drifts."""
        columns = [of_member, of_member * self.time_s][:width]
        return np.stack([np.bincount(self.clock, column, self.clocks) for column in columns], axis=1)

    def centred(self, of_member: Floats, weight: Floats) -> Floats:
        """Apply C: subtract from each member the weighted mean of its call."""
        mean = np.bincount(self.call, weight * of_member, self.calls) / np.bincount(self.call, weight, self.calls)
        return np.asarray(of_member - mean[self.call])


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Offsets in ns and drifts in ns per second, by clock; residuals by observation.

    Errors are standard errors by the whole graph: a clock tied through others is known less well.
    """

    offset: Floats
    offset_error: Floats
    drift: Floats
    drift_error: Floats
    residual: Floats
    sigma: float


def solve(seen: Observations, pinned: Ints, drifting: Flags) -> Fit:
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


class Equations(Protocol):
    """The equations for one set of weights; unknowns that are not free are 0."""

    def solution(self, guess: Floats) -> Floats:
        """Solve them: one row a clock, offset and drift."""
        ...

    def spread(self) -> Floats:
        """Return the standard error of each unknown for members of weight 1 that are known to 1."""
        ...


def equations(seen: Observations, weight: Floats, free: Flags) -> Equations:
    """Set up the equations; `free` has a row a clock: is its offset, is its drift to be found?"""
    few = int(free.sum()) <= DENSE_AT_MOST
    return DenseEquations(seen, weight, free) if few else GraphEquations(seen, weight, free)


class DenseEquations:
    """A as a matrix."""

    def __init__(self, seen: Observations, weight: Floats, free: Flags) -> None:
        kept = free.ravel()
        matrix, right = _matrix(seen, weight, free.shape[1])
        self._free, self._matrix, self._right = free, matrix[np.ix_(kept, kept)], right[kept]

    def solution(self, _: Floats) -> Floats:
        """Solve them; what no call decides is 0."""
        found = np.linalg.lstsq(self._matrix, self._right, rcond=1e-12)[0]
        return self._spread_out(np.asarray(found, np.float64))

    def spread(self) -> Floats:
        """Take the square roots of the diagonal of A's inverse."""
        return self._spread_out(np.sqrt(np.maximum(np.diag(np.linalg.pinv(self._matrix)), 0.0)))

    def _spread_out(self, values: Floats) -> Floats:
        unknowns = np.zeros(self._free.shape)
        unknowns[self._free] = values
        return unknowns


def _matrix(seen: Observations, weight: Floats, width: int) -> tuple[Floats, Floats]:
    """Return A and b of all unknowns, clock by clock: its offset and (with a width of 2) its drift.

    Without C, A is J' W J: each member adds to its own clock alone. C takes from that, for each call, the product of
    what its members add to each unknown, over the call's weight; some hundred calls at a time.
    """
    size, calls = seen.clocks * width, seen.calls
    matrix, right = np.zeros((size, size)), np.zeros(size)
    # Rows of J, of which only the columns of the member's own clock are not zero: 1 and its time.
    own_columns = np.stack([np.ones(len(seen.call)), seen.time_s], axis=1)[:, :width]
    away = seen.centred(seen.end_ns, weight)
    for i in range(width):
        unknown = seen.clock * width + i
        np.add.at(right, unknown, -weight * own_columns[:, i] * away)
        for j in range(width):
            products = weight * own_columns[:, i] * own_columns[:, j]
            np.add.at(matrix, (unknown, seen.clock * width + j), products)
    weight_of_call = np.bincount(seen.call, weight, calls)
    by_call = np.argsort(seen.call, kind="stable")
    bounds = np.searchsorted(seen.call[by_call], np.arange(0, calls + _CHUNK, _CHUNK))
    for number, low in enumerate(range(0, calls, _CHUNK)):
        rows = by_call[bounds[number] : bounds[number + 1]]
        # One row a call of this chunk, one column an unknown: what the call's members add. Rows beyond are zero.
        added = np.zeros((_CHUNK, size))
        for i in range(width):
            place = (seen.call[rows] - low, seen.clock[rows] * width + i)
            np.add.at(added, place, weight[rows] * own_columns[rows, i])
        divisor = np.ones((_CHUNK, 1))
        divisor[: min(_CHUNK, calls - low), 0] = weight_of_call[low : low + _CHUNK]
        matrix -= added.T @ (added / divisor)
    return matrix, right


class GraphEquations:
    """A as sums over the members of calls: nothing is stored that grows faster than they do."""

    def __init__(self, seen: Observations, weight: Floats, free: Flags) -> None:
        self._seen, self._weight, self._free = seen, weight, free
        self._total = np.bincount(seen.call, weight, seen.calls)
        # The diagonal of J' W J, which is near enough to that of A to scale each unknown by.
        powers = [weight, weight * seen.time_s**2][: free.shape[1]]
        diagonal = np.stack([np.bincount(seen.clock, power, seen.clocks) for power in powers], axis=1)
        self._scale = np.divide(1.0, diagonal, out=np.zeros(free.shape), where=free & (diagonal > 0))

    def solution(self, guess: Floats) -> Floats:
        """Solve them by conjugate gradients, from a guess."""
        return self._solved(self._gathered(-self._seen.end_ns), guess)

    def spread(self) -> Floats:
        """Fit noise again and again: its solutions spread as the standard errors say, as A is their covariance."""
        random = np.random.default_rng(0)
        square, zero = np.zeros(self._free.shape), np.zeros(self._free.shape)
        for _ in range(_DRAWS):
            noise = random.standard_normal(len(self._weight)) / np.sqrt(self._weight)
            square += self._solved(self._gathered(noise), zero) ** 2
        return np.sqrt(square / _DRAWS)

    def _gathered(self, of_member: Floats) -> Floats:
        """Apply J' W C, for the free unknowns."""
        mean = np.bincount(self._seen.call, self._weight * of_member, len(self._total)) / self._total
        away = self._weight * (of_member - mean.take(self._seen.call))
        return self._seen.gathered(away, self._free.shape[1]) * self._free

    def _solved(self, right: Floats, guess: Floats) -> Floats:
        """Solve A x = right by conjugate gradients, each unknown scaled by its diagonal."""
        found = guess * self._free
        left = right - self._gathered(self._seen.shift(found))
        scaled = left * self._scale
        direction, size = scaled, float((left * scaled).sum())
        enough = _EXACT**2 * float((right * right * self._scale).sum())
        for _ in range(2 * right.size):
            if size <= enough:
                break
            image = self._gathered(self._seen.shift(direction))
            along = size / float((direction * image).sum())
            found = found + along * direction
            left = left - along * image
            scaled = left * self._scale
            before, size = size, float((left * scaled).sum())
            direction = scaled + size / before * direction
        return found
