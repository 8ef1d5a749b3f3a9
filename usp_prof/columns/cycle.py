"""Cycle of a sequence: symbols that recur once a cycle or more often, and parts of a cycle that are alike.

A training step holds micro-batches, and these hold layers: all three repeat. What tells them apart is what occurs
rarely. A gradient all-reduce that recurs every 400 kernels says that the cycle is not shorter than 400 kernels,
whatever else repeats within.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import rows_by_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

REGULAR = 1.25
"""Longest over shortest distance between occurrences that recur regularly."""
EVEN = 1.5
"""The same within one cycle, around its end."""
CLUSTER = 0.3
"""Occurrences closer than this share of the longest distance belong together, as a layer's kernels of one pass do."""
FREQUENT = 3
"""Occurrences from which on the distances of any symbol say something; of a telling one, two do."""
SHARE = 0.2
"""Share of the kinds of symbols that occur once in each part, where a cycle has parts."""


def recurring(codes: Ints, telling: Flags, light: Flags) -> Ints:
    """List the symbols that recur at regular distances from begin to end, alone or in clusters.

    `telling` marks symbols that say much even where they occur twice only; those that `light` marks say nothing.
    """
    found = []
    for code, places in rows_by_code(codes).items():
        gaps = np.diff(places)
        if not len(gaps) or light[places[0]]:
            continue
        heads = np.r_[places[0], places[1:][gaps > CLUSTER * gaps.max()]]
        if len(heads) >= (2 if telling[places[0]] else FREQUENT) and _regular(heads, len(codes)):
            found.append(code)
    return np.array(found, np.int64)


def _regular(heads: Ints, length: int) -> bool:
    gaps = np.diff(heads)
    most = REGULAR * gaps.min()
    return bool(gaps.max() <= most and heads[0] <= most and length - heads[-1] <= most)


def parts_of(cycle: Ints) -> int:
    """Say into how many alike parts one cycle falls: its micro-batches, or several steps; 1 for none.

    A part shows by symbols that occur once in each: at even distances, also from the last one around to the first.
    """
    kinds = rows_by_code(cycle)
    counts: dict[int, int] = {}
    for places in kinds.values():
        if len(places) > 1 and _longest_gap(places, len(cycle)) <= EVEN * int(np.diff(places).min()):
            counts[len(places)] = counts.get(len(places), 0) + 1
    return max((count for count, number in counts.items() if number >= SHARE * len(kinds)), default=1)


def in_one_part(cycle_flags: Flags, parts: int) -> bool:
    """Say whether marked symbols, of which there are some, keep to one place of a cycle instead of all its parts."""
    places = np.flatnonzero(cycle_flags)
    most = min(0.7, 1.6 / parts)
    return bool(len(places)) and _longest_gap(places, len(cycle_flags)) > most * len(cycle_flags)


def update_in_one_part(classes: Sequence[Flags], parts: int) -> bool:
    """Say whether any class of symbols occurs in one part only, so that the whole cycle is one step."""
    return any(in_one_part(flags, parts) for flags in classes)


def _longest_gap(places: Ints, length: int) -> int:
    """Give the longest distance to the next occurrence, the last one's around to the first."""
    return int(np.diff(np.r_[places, places[0] + length]).max())
