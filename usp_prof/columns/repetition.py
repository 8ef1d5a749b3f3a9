"""Repeats of a sequence: where each starts and ends. Finds steps without marks.

Short windows of symbols at regular distances divide the sequence into segments. The segments are repeats if all have
(almost) the same symbols in the same numbers, nothing else follows them, and each has what is required (a backward, an
optimizer). Layers inside one step repeat too, but their surroundings do not, so they cover too little. In doubt there
are no repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.regular_windows import COVERED, REGULAR, SHORTEST, TRIED, Cut, cuts_of, from_starts
from usp_prof.columns.rows import numbered

ALIKE = 0.95
"""Least share of symbols that a complete repeat has in common with the median one."""
STEADY = 0.8
"""Least share of the kinds of symbols that occur equally often in each repeat."""

_ABOUT = 0.1
"""Difference of steadiness that a few more or fewer symbols can cause."""
_CELLS = 20_000_000
"""Most segments times kinds of symbols of a cut: the table of counts would take 160 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Complete repeats, in order: each from `start` to before `end` (places in the sequence)."""

    start: Ints
    end: Ints

    def __len__(self) -> int:
        """Return the number of repeats."""
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """A cut, and how well the segments between its places repeat."""

    cut: Cut
    steady: float = 0.0
    """Share of the kinds of symbols that occur equally often in each repeat."""
    repeats: Repetition | None = None
    """`None` if the segments are not repeats."""

    def __len__(self) -> int:
        """Return the number of repeats."""
        return len(self.repeats) if self.repeats is not None else 0


@dataclass(frozen=True, slots=True, eq=False)
class _Rules:
    """Conditions that make a segment a repeat."""

    needed: Sequence[Flags]
    recurring: Ints
    """Codes of which every repeat has at least one."""
    least: int


def find_repetition(
    codes: Ints, begin: Floats, needed: Sequence[Flags] = (), *, recurring: Ints | None = None, least: int = 2
) -> Repetition | None:
    """Find the repeats of a sequence; `None` if nothing clearly repeats.

    `begin` is the likelihood of a start at each place (0 to 1). Each of `needed` marks symbols of which every repeat
    must have some, and every repeat must have each symbol of `recurring`. There must be at least `least` repeats.

    1. List the cuts: places at regular distances that may start repeats.
    2. The steadiest cut of the shortest period determines the length of a repeat.
    3. Of all cuts of this period, choose the one with the likeliest starts.
    4. If the sequence is a whole number of periods, a cut at its start may have one repeat more, or be steadier.
    """
    if len(codes) < 2 * SHORTEST:
        return None
    symbols, codes = numbered(codes)
    kinds = np.zeros(0, np.int64) if recurring is None else np.searchsorted(symbols, recurring)
    rules = _Rules(needed, kinds, least)
    cuts = cuts_of(codes, begin)
    best = _steadiest(codes, cuts, rules)
    if best is None:
        return None
    same_period = [cut for cut in cuts if abs(cut.period - best.cut.period) <= (REGULAR - 1) * best.cut.period]
    same_period = sorted(same_period, key=lambda cut: (-cut.begin, int(cut.places[0])))[:TRIED]
    judged = [_judged(codes, cut, rules) for cut in same_period]
    candidates = [*(candidate for candidate in judged if candidate.repeats is not None), best]
    # Partial ends may add or remove one repeat, depending on where repeats start; a larger difference is a worse cut.
    most = max(map(len, candidates))
    readiest = next(candidate for candidate in candidates if len(candidate) + 1 >= most)
    from_start = [_judged(codes, cut, rules) for cut in from_starts([*same_period, best.cut], len(codes))]
    steadiest = max(from_start, key=lambda candidate: candidate.steady, default=best)
    is_start_better = (len(steadiest), steadiest.steady) > (len(readiest), readiest.steady)
    return (steadiest if is_start_better else readiest).repeats


def _steadiest(codes: Ints, cuts: Sequence[Cut], rules: _Rules) -> _Judged | None:
    """Return the cut of the shortest period among those that are about as steady as the best; `None` without repeats.

    Of cuts with equal numbers of places, only the most regular one is tried, as it is and shifted to the sequence's
    start.
    """
    most_regular: dict[int, Cut] = {}
    for cut in sorted(cuts, key=lambda cut: (cut.ratio, int(cut.places[0]))):
        most_regular.setdefault(len(cut.places), cut)
    tried = list(most_regular.values())[:TRIED]
    judged = [_judged(codes, cut, rules) for cut in [*tried, *from_starts(tried, len(codes))]]
    repeating = [candidate for candidate in judged if candidate.repeats is not None]
    if not repeating:
        return None
    most_steady = max(candidate.steady for candidate in repeating)
    about_as_steady = [candidate for candidate in repeating if candidate.steady >= most_steady - _ABOUT]
    return min(about_as_steady, key=lambda candidate: candidate.cut.period)


def repetition_at(codes: Ints, places: Ints, needed: Sequence[Flags] = (), *, least: int = 2) -> Repetition | None:
    """Return the complete repeats between the given places; `None` if they do not clearly repeat."""
    distinct = np.unique(places[(places >= 0) & (places < len(codes))])
    if len(distinct) < 2 or len(distinct) < len(places):
        return None
    rules = _Rules(needed, np.zeros(0, np.int64), least)
    return _judged(numbered(codes)[1], Cut(distinct, 1.0, 1.0), rules).repeats


def _judged(codes: Ints, cut: Cut, rules: _Rules) -> _Judged:
    """Return the cut with its repeats, if the segments between its places are repeats of one another.

    1. Count the symbols of each segment. The typical counts are the medians over the segments between two places.
    2. A segment is a complete repeat if it has nearly all of the typical symbols, little else, and what is required.
    3. All segments between two places must be complete. The parts before and after may be cut short, but may not be
       something else.
    4. The repeats must cover most of the sequence, and most kinds of symbols must occur equally often in each.

        b c | a b c | a b c | a     cut at each a: two complete repeats, and a partial one at either end
    """
    kinds = int(codes.max()) + 1
    if (len(cut.places) + 1) * kinds > _CELLS:
        return _Judged(cut)
    segments = _segments(codes, cut, kinds)
    is_complete = _complete_segments(segments, rules)
    repeats = np.flatnonzero(is_complete)
    if not is_complete[segments.inner].all() or not _ends_are_alike(segments, rules) or len(repeats) < rules.least:
        return _Judged(cut)
    steady = _steadiness(segments.counts, repeats)
    if _covered(segments, is_complete) < COVERED or steady < STEADY:
        return _Judged(cut)
    bounds = segments.bounds
    return _Judged(cut, steady, Repetition(bounds[repeats], bounds[repeats + 1]))


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """Parts of the sequence: before the first place of a cut, between places, and after the last one."""

    bounds: Ints
    """Start of each segment, and the end of the last one."""
    of_symbol: Ints
    """Segment of each symbol of the sequence."""
    counts: Ints
    """Counts by segment (rows) and kind of symbol (columns)."""
    size: Ints
    """Number of symbols of each segment."""
    inner: slice
    """Segments between two places."""
    usual: Floats
    """Typical count of each kind of symbol: the median over the inner segments."""
    common: Floats
    """Symbols that each segment has in common with the typical one."""


def _segments(codes: Ints, cut: Cut, kinds: int) -> _Segments:
    """Count the symbols of each segment; a period or more after the last place is a segment of its own."""
    end = int(cut.places[-1] + cut.period)
    bounds = np.r_[0, cut.places, [end] if end < len(codes) else [], len(codes)].astype(np.int64)
    segments = len(bounds) - 1
    of_symbol = np.repeat(np.arange(segments), np.diff(bounds))
    counts = np.bincount(of_symbol * kinds + codes, minlength=segments * kinds).reshape(-1, kinds)
    inner = slice(1, len(cut.places))
    median_counts = np.median(counts[inner], axis=0)
    return _Segments(
        bounds,
        of_symbol,
        counts,
        counts.sum(axis=1),
        inner,
        median_counts,
        np.minimum(counts, median_counts).sum(axis=1),
    )


def _complete_segments(segments: _Segments, rules: _Rules) -> Flags:
    """Mark the segments that are complete repeats."""
    is_complete = segments.common >= ALIKE * np.maximum(segments.size, segments.usual.sum())
    is_complete &= (segments.counts[:, rules.recurring] > 0).all(axis=1)
    for needed in rules.needed:
        if needed.any():
            is_complete &= np.bincount(segments.of_symbol, needed, minlength=len(is_complete)) > 0
    return np.asarray(is_complete)


def _ends_are_alike(segments: _Segments, rules: _Rules) -> bool:
    """Return whether the parts before and after the repeats have the same symbols as the repeats.

    If the repeats have what is required, anything may precede them. If nothing is required, the part before may be the
    model's first layers, and the repeats the others.
    """
    is_alike = segments.common >= ALIKE * segments.size
    is_known = any(needed.any() for needed in rules.needed)
    return bool(is_alike[-1] and (is_known or is_alike[0]))


def _covered(segments: _Segments, is_complete: Flags) -> float:
    """Return the share of the sequence in repeats, including partial ones at the ends (at the start at most one)."""
    size = segments.size
    cut_short = size[-1] * (not is_complete[-1]) + min(size[0], size[1]) * (not is_complete[0])
    return float((size[is_complete].sum() + cut_short) / size.sum())


def _steadiness(counts: Ints, repeats: Ints) -> float:
    """Return the share of the kinds of symbols that occur as often as in the median repeat."""
    middle = np.median(counts[repeats], axis=0)
    is_kind = counts[1:].any(axis=0)
    return float(((counts[repeats] == middle) & (middle > 0))[:, is_kind].mean())
