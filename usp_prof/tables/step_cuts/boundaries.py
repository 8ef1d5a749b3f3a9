"""Boundaries of steps on one rank, from those of another: both ran the same calls.

A boundary lies after the last shared call of one step and not after the first of the next. Where in between is chosen
so that it is the same place in the program each time: between the same activities as on the other rank, else behind
the update of parameters, else at the first call of the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.tables.step_cuts.device_work import DeviceWork

    Ints = NDArray[np.int64]

CALLS = "calls"
_MISSING = 0.01
"""Share of a step at the edge of the recording that work missing from it would have taken, for it to be whole."""
_FEW = 0.05
"""Share of its activities that may be missing, however short they are."""
_SIDES = ((2, 2), (1, 1), (0, 2), (2, 0))
"""How many activities before and behind a boundary must be as on the other rank, the strictest first."""
_CROSSING = 0.05
"""Share of a step's calls that may be on the other side of its boundary (communication ahead of time)."""
_EVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Contiguous steps of one rank: `number` of each, and `at_ns`, their starts followed by the last one's end."""

    number: Ints
    at_ns: Ints
    source: str


def cut_like(cut: Cut, their_work: DeviceWork, their_start: Ints, work: DeviceWork, start: Ints) -> Cut | None:
    """Cut a rank's work as another rank is; `their_start` and `start` are the same calls' starts on both."""
    boundaries = np.arange(len(cut.at_ns))
    # Index of the boundary that each shared call comes after on the other rank; -1 before the first one.
    behind = np.searchsorted(cut.at_ns, their_start, side="right") - 1
    # Boundary k lies after `low[k]`, the last call before it, and not after `high[k]`, the first call behind it.
    low = np.array([start[behind < k].max(initial=-1) for k in boundaries], np.int64)
    high = np.array([start[behind >= k].min(initial=_EVER) for k in boundaries], np.int64)
    crossing = sum(int(((behind < k) & (start > high[k])).sum()) for k in boundaries)
    if crossing > _CROSSING * len(start):
        return None
    # What was recorded here may begin later or end earlier: from the last boundary with no call before it, to the
    # first with none behind it.
    begin = int(np.flatnonzero(low < 0)[-1]) if (low < 0).any() else 0
    end = int(np.flatnonzero(high == _EVER)[0]) if (high == _EVER).any() else len(boundaries) - 1
    if end <= begin:
        return None
    kept = slice(begin, end + 1)
    low, high = np.minimum(low, high - 1)[kept], high[kept]
    at = _boundaries(cut, their_work, work, low, high)
    if (np.diff(at) <= 0).any():
        return None
    whole = np.flatnonzero(_whole(work, at, first_open=low[0] < 0, last_open=high[-1] == _EVER))
    if not len(whole):
        return None
    return Cut(cut.number[begin:end][whole], at[whole[0] : whole[-1] + 2], CALLS)


def _boundaries(cut: Cut, their_work: DeviceWork, work: DeviceWork, low: Ints, high: Ints) -> Ints:
    """Choose one place in each interval (low, high]: all by the first rule that finds one in each inner interval."""
    intervals = list(
        zip(
            np.searchsorted(work.start_ns, low, side="right").tolist(),
            np.searchsorted(work.start_ns, high, side="right").tolist(),
            strict=True,
        )
    )
    theirs = np.searchsorted(their_work.start_ns, cut.at_ns[1:-1])
    for before, behind in _SIDES:
        chosen = _only_places(_alike(their_work, theirs, work, before, behind), intervals)
        if chosen is not None:
            break
    else:
        chosen = _last_places(work.after_update(), intervals)
    place = np.array(chosen, np.int64)
    at = np.where(place >= 0, work.start_ns[place], high)
    if place[0] == 0 or (place[0] < 0 and low[0] < 0):
        at[0] = work.first_ns
    if place[-1] < 0 and high[-1] == _EVER:
        at[-1] = work.last_ns
    return at


def _alike(their_work: DeviceWork, theirs: Ints, work: DeviceWork, before: int, behind: int) -> NDArray[np.bool_]:
    """Mark places with the work around them that most of the other rank's boundaries have."""
    sides = _sides(their_work, before, behind)[theirs[theirs < len(their_work)]]
    if not len(sides):
        return np.zeros(len(work), bool)
    kinds, count = np.unique(sides, return_counts=True)
    return np.asarray(_sides(work, before, behind) == kinds[np.argmax(count)])


def _sides(work: DeviceWork, before: int, behind: int) -> Ints:
    """Give each place a number for so many activities before it and from it on; -1 stands for none."""
    padded = np.r_[np.full(before, -1), work.name, np.full(behind, -1)]
    number = np.zeros(len(work), np.int64)
    for offset in range(before + behind):
        number = number * np.int64(1_000_003) + padded[offset : offset + len(work)]
    return number


def _only_places(fits: NDArray[np.bool_], intervals: list[tuple[int, int]]) -> list[int] | None:
    """Give the one place that fits in each interval; `None` where an inner one has none or several."""
    places = np.flatnonzero(fits)
    inside = [places[(places >= first) & (places < behind)] for first, behind in intervals]
    if any(len(found) != 1 for found in inside[1:-1]) or not any(len(found) == 1 for found in inside):
        return None
    return [int(found[0]) if len(found) == 1 else -1 for found in inside]


def _last_places(fits: NDArray[np.bool_], intervals: list[tuple[int, int]]) -> list[int]:
    """Give the last place that fits in each interval; -1 everywhere when an inner one has none."""
    places = np.flatnonzero(fits)
    inside = [places[(places >= first) & (places < behind)] for first, behind in intervals]
    if any(not len(found) for found in inside[1:-1]):
        return [-1] * len(intervals)
    return [int(found[-1]) if len(found) else -1 for found in inside]


def _whole(work: DeviceWork, at: Ints, *, first_open: bool, last_open: bool) -> NDArray[np.bool_]:
    """Say which steps are whole: at an edge where no call lies outside, the recording may have cut one short."""
    step = np.searchsorted(at, work.start_ns, side="right") - 1
    inside = (step >= 0) & (step < len(at) - 1)
    kinds = np.unique(work.symbol, return_inverse=True)[1].astype(np.int64)
    count, width = len(at) - 1, int(kinds.max()) + 1
    held = np.bincount(step[inside] * width + kinds[inside], minlength=count * width).reshape(count, width)
    usual = np.median(held, axis=0)
    # Time that one activity of each kind takes: what is missing at an edge counts by how long it would have run.
    weight = np.bincount(kinds, work.end_ns - work.start_ns, width) / np.bincount(kinds, minlength=width)
    missing = np.maximum(usual - held, 0)
    complete = missing @ weight <= _MISSING * np.diff(at)
    complete &= missing.sum(axis=1) <= _FEW * usual.sum()
    whole = np.ones(count, bool)
    whole[0] &= not first_open or complete[0]
    whole[-1] &= not last_open or complete[-1]
    return whole
