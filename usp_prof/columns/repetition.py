"""Repeats of a sequence: where each begins and ends. Finds the steps that nobody marked.

A repeat is sought by what occurs once in each: short windows of symbols whose places lie at regular distances. Such
windows cut the sequence into segments; these are repeats when all hold the same symbols in (almost) the same numbers,
nothing else lies behind them, and what is needed in each (a backward, an optimizer) is in each. Layers inside one step
repeat too, but what stands around them does not, so they cover too little. In doubt nothing repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.regular_windows import COVERED, REGULAR, SHORTEST, TRIED, Cut, cuts_of, from_starts
from usp_prof.columns.rows import numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.columns.arrays import Flags, Floats, Ints


ALIKE = 0.95
"""Share of symbols that a segment has in common with the usual one to count as a whole repeat."""
STEADY = 0.8
"""Share of the kinds of symbols that have to occur equally often in each repeat."""

_ABOUT = 0.1
"""Difference of steadiness that a few symbols more or less can make."""
_CELLS = 20_000_000
"""Segments times kinds of symbols beyond which a cut is not looked at: the table of counts would take 160 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Whole repeats, in order: each from `start` to before `end` (places in the sequence)."""

    start: Ints
    end: Ints

    def __len__(self) -> int:
        """Count the repeats."""
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """A cut, and how well the segments between its places repeat."""

    cut: Cut
    steady: float = 0.0
    """Share of the kinds of symbols that occur equally often in each repeat."""
    repeats: Repetition | None = None
    """`None` where the segments are no repeats."""

    def __len__(self) -> int:
        """Count the repeats."""
        return len(self.repeats) if self.repeats is not None else 0


@dataclass(frozen=True, slots=True, eq=False)
class _Rules:
    """What makes a segment a repeat."""

    needed: Sequence[Flags]
    recurring: Ints
    """Codes of which every repeat holds at least one."""
    least: int


def find_repetition(
    codes: Ints,
    begin: Floats,
    needed: Sequence[Flags] = (),
    *,
    recurring: Ints | None = None,
    least: int = 2,
) -> Repetition | None:
    """Find what repeats; `None` when nothing clearly does.

    `begin` says how readily a repeat may begin at each place (0 to 1); each of `needed` marks symbols of which every
    repeat has to hold some, and of each symbol of `recurring` every repeat has to hold one too. There are `least`
    repeats or more.

    1. List the cuts: places at regular distances that may begin repeats.
    2. The steadiest cut of the shortest period says how long a repeat is.
    3. Of all cuts of this period choose the one at which a repeat begins most readily.
    4. Where the sequence is a whole number of periods, a cut at its very start may hold one repeat more, or steadier.
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
    # Ragged ends may make one repeat more or less, by where a repeat begins; more than that is a worse cut.
    most = max(map(len, candidates))
    readiest = next(candidate for candidate in candidates if len(candidate) + 1 >= most)
    from_start = [_judged(codes, cut, rules) for cut in from_starts([*same_period, best.cut], len(codes))]
    steadiest = max(from_start, key=lambda candidate: candidate.steady, default=best)
    is_start_better = (len(steadiest), steadiest.steady) > (len(readiest), readiest.steady)
    return (steadiest if is_start_better else readiest).repeats


def _steadiest(codes: Ints, cuts: Sequence[Cut], rules: _Rules) -> _Judged | None:
    """Give the cut of the shortest period among those that repeat about as steadily as any; `None` where none repeats.

    Of cuts with equally many places only the most regular is tried, as it is and moved to the sequence's start.
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
    """Say whether what lies between given places repeats, and which of it is whole; `None` when it does not clearly."""
    distinct = np.unique(places[(places >= 0) & (places < len(codes))])
    if len(distinct) < 2 or len(distinct) < len(places):
        return None
    rules = _Rules(needed, np.zeros(0, np.int64), least)
    return _judged(numbered(codes)[1], Cut(distinct, 1.0, 1.0), rules).repeats


def _judged(codes: Ints, cut: Cut, rules: _Rules) -> _Judged:
    """Give the cut with its repeats, if the segments between its places are repeats of one another.

    1. Count the symbols of each segment. The usual counts are the median over the segments between two places.
    2. A segment is a whole repeat where it has nearly all of the usual symbols and little else, and what is needed.
    3. All segments between two places have to be whole; what lies before and behind them may be cut short, but may not
       be something else.
    4. The repeats have to cover most of the sequence, and most kinds of symbols occur equally often in each.

        b c | a b c | a b c | a     cut at each a: two whole repeats, and one at either end that is cut short
    """
    kinds = int(codes.max()) + 1
    if (len(cut.places) + 1) * kinds > _CELLS:
        return _Judged(cut)
    segments = _segments(codes, cut, kinds)
    whole = _whole(segments, rules)
    repeats = np.flatnonzero(whole)
    if not whole[segments.inner].all() or not _ends_are_alike(segments, rules) or len(repeats) < rules.least:
        return _Judged(cut)
    steady = _steadiness(segments.counts, repeats)
    if _covered(segments, whole) < COVERED or steady < STEADY:
        return _Judged(cut)
    bounds = segments.bounds
    return _Judged(cut, steady, Repetition(bounds[repeats], bounds[repeats + 1]))


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """What a cut divides the sequence into: before its first place, between two of them, and behind the last one."""

    bounds: Ints
    """Where each segment begins, and the end of the last one."""
    of_symbol: Ints
    """By symbol of the sequence: its segment."""
    counts: Ints
    """By segment (rows) and kind of symbol (columns)."""
    size: Ints
    """By segment: its symbols."""
    inner: slice
    """The segments between two places."""
    usual: Floats
    """By kind of symbol: the usual count, the median over the inner segments."""
    common: Floats
    """By segment: symbols that it has in common with the usual one."""


def _segments(codes: Ints, cut: Cut, kinds: int) -> _Segments:
    """Count the symbols of each segment; what is a period or more behind the last place is a segment of its own."""
    behind = int(cut.places[-1] + cut.period)
    bounds = np.r_[0, cut.places, [behind] if behind < len(codes) else [], len(codes)].astype(np.int64)
    segments = len(bounds) - 1
    of_symbol = np.repeat(np.arange(segments), np.diff(bounds))
    counts = np.bincount(of_symbol * kinds + codes, minlength=segments * kinds).reshape(-1, kinds)
    inner = slice(1, len(cut.places))
    usual = np.median(counts[inner], axis=0)
    return _Segments(bounds, of_symbol, counts, counts.sum(axis=1), inner, usual, np.minimum(counts, usual).sum(axis=1))


def _whole(segments: _Segments, rules: _Rules) -> Flags:
    """Mark the segments that are whole repeats."""
    whole = segments.common >= ALIKE * np.maximum(segments.size, segments.usual.sum())
    whole &= (segments.counts[:, rules.recurring] > 0).all(axis=1)
    for needed in rules.needed:
        if needed.any():
            whole &= np.bincount(segments.of_symbol, needed, minlength=len(whole)) > 0
    return np.asarray(whole)


def _ends_are_alike(segments: _Segments, rules: _Rules) -> bool:
    """Say whether what lies before and behind the repeats are the same symbols as in them.

    Where the repeats hold what is needed, anything may lie before them. Where nothing is needed, that may be the
    model's first layers, and the repeats the others.
    """
    is_alike = segments.common >= ALIKE * segments.size
    is_known = any(needed.any() for needed in rules.needed)
    return bool(is_alike[-1] and (is_known or is_alike[0]))


def _covered(segments: _Segments, whole: Flags) -> float:
    """Give the share of the sequence in repeats, also those cut short at an end: at the begin up to one repeat."""
    size = segments.size
    cut_short = size[-1] * (not whole[-1]) + min(size[0], size[1]) * (not whole[0])
    return float((size[whole].sum() + cut_short) / size.sum())


def _steadiness(counts: Ints, repeats: Ints) -> float:
    """Give the share of the kinds of symbols (over all repeats) that occur as often as in the median repeat."""
    middle = np.median(counts[repeats], axis=0)
    is_kind = counts[1:].any(axis=0)
    return float(((counts[repeats] == middle) & (middle > 0))[:, is_kind].mean())
