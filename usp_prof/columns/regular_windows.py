"""Regular windows: short runs of symbols at regular distances, and the places where repeats may start.

A window of 1, 2, 4, ... symbols that occurs once per repeat divides the sequence into segments of the length of a
repeat. `repetition.py` decides whether these are repeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Floats, Ints
from usp_prof.columns.rows import first_of_run

REGULAR = 1.1
"""Largest ratio of the longest to the shortest distance between windows that may start repeats."""
COVERED = 0.75
"""Least share of the sequence inside the repeats."""
SHORTEST = 5
"""Least number of symbols of a repeat."""
FILLED = 0.03
"""Share of a period by which a sequence may differ from a whole number of periods."""
TRIED = 24
"""Number of cuts tried of each kind."""

_LONGEST_WINDOW = 64
"""Symbols of the longest window."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Places where repeats may start."""

    places: Ints
    ratio: float
    """Longest divided by shortest distance between them."""
    begin: float
    """Likelihood of a start at these places: the mean over the places, 0 to 1."""

    @property
    def period(self) -> float:
        """Median distance."""
        return float(np.median(np.diff(self.places)))


def cuts_of(codes: Ints, begin: Floats) -> list[Cut]:
    """Return places before and after windows at regular distances: the most regular ones, and the likeliest starts.

    Example: in  a b c a b d a b c  the window  a b  starts at 0, 3 and 6, always 3 apart. Repeats may start there, or
    end there and start after it, at 2, 5 and 8.
    """
    cuts = []
    for keys in _windows(codes):
        windows = _equal_windows(keys, len(codes))
        width = len(codes) - len(keys) + 1
        for behind in (0, width):
            cuts += _cuts_at(windows, behind, begin)
    return cuts


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Windows of one length: equal windows grouped, in order within each group."""

    place: Ints
    """Start of each window in the sequence."""
    first: Ints
    """Row of `place` at which each group starts."""
    count: Ints
    regular: Ints
    """Groups whose windows are at regular distances over the whole sequence."""
    ratio: Floats
    """Longest divided by shortest distance, by regular group."""


def _equal_windows(keys: NDArray[np.uint64], length: int) -> _Windows:
    """Group the windows that start at each place by their keys, and find the regular groups."""
    place = np.argsort(keys, kind="stable")
    key = keys[place]
    first = np.flatnonzero(first_of_run(key))
    count = np.diff(np.r_[first, len(key)])
    last = first + count - 1
    # Distance from each window to the next of its group; the last has none and is ignored in both extremes.
    gaps = np.r_[np.diff(place), 0]
    gaps[last] = 0
    longest = np.maximum.reduceat(gaps, first)
    gaps[last] = length
    shortest = np.minimum.reduceat(gaps, first)
    is_regular = (count >= 2) & (shortest >= SHORTEST) & (longest <= REGULAR * shortest)
    # Less than one repeat follows the last window, and not too much precedes the first.
    is_regular &= length - place[last] <= REGULAR * longest
    is_regular &= place[first] <= (1 - COVERED) * length + longest
    regular = np.flatnonzero(is_regular)
    return _Windows(place, first, count, regular, longest[regular] / shortest[regular])


def _cuts_at(windows: _Windows, behind: int, begin: Floats) -> list[Cut]:
    """Return cuts at this offset from the most regular windows, and from those with the likeliest starts."""
    place = windows.place + behind
    is_inside = (place > 0) & (place < len(begin))
    readiness = np.where(is_inside, begin[np.minimum(place, len(begin) - 1)], 0.0)
    count = windows.count[windows.regular]
    mean_readiness = np.add.reduceat(readiness, windows.first)[windows.regular] / count
    cuts = []
    for chosen in _best_of_each(count, windows.ratio, mean_readiness):
        first = windows.first[windows.regular[chosen]]
        places = place[first : first + count[chosen]]
        places = places[places < len(begin)]
        if len(places) > 1:
            cuts.append(Cut(places, float(windows.ratio[chosen]), float(mean_readiness[chosen])))
    return cuts


def from_starts(cuts: Sequence[Cut], length: int) -> list[Cut]:
    """Shift cuts to the start of the sequence, if it is a whole number of their periods."""
    moved = []
    for cut in cuts:
        count = round(length / cut.period)
        if count < 2 or abs(length - count * cut.period) > FILLED * cut.period:
            continue
        places = cut.places - cut.places[0]
        if cut.places[0] > (1 - FILLED) * cut.period:  # a whole period precedes the first place
            places = np.r_[0, places + cut.places[0]]
        moved.append(Cut(places[:count], cut.ratio, cut.begin))
    return moved


def _best_of_each(count: Ints, ratio: Floats, readiness: Floats) -> list[int]:
    """Return for each count (the smallest ones) the most regular window, and those with the likeliest starts."""
    chosen: list[int] = []
    for number in np.unique(count)[:TRIED].tolist():
        groups = np.flatnonzero(count == number)
        chosen.append(int(groups[np.argmin(ratio[groups])]))
        chosen += groups[np.argsort(-readiness[groups], kind="stable")[:TRIED]].tolist()
    return chosen


def _windows(codes: Ints) -> Iterator[NDArray[np.uint64]]:
    """Return keys of the windows of 1, 2, 4, ... symbols that start at each place."""
    with np.errstate(over="ignore"):
        keys = (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        length = 1
        while True:
            yield keys
            if 4 * length > len(codes) or length >= _LONGEST_WINDOW:
                return
            keys = (keys[:-length] ^ (keys[:-length] >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) + keys[length:]
            length *= 2
