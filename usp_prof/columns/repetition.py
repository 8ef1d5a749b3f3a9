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

from usp_prof.columns.rows import first_of_run, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Floats, Ints


ALIKE = 0.95
"""Share of symbols that a segment has in common with the usual one to count as a whole repeat."""
REGULAR = 1.1
"""Longest over shortest distance between windows that may begin repeats."""
COVERED = 0.75
"""Share of the sequence that has to lie inside the repeats."""
STEADY = 0.8
"""Share of the kinds of symbols that have to occur equally often in each repeat."""
SHORTEST = 5
"""Symbols that a repeat has at least."""
FILLED = 0.03
"""Share of a period by which a sequence may be longer or shorter than a whole number of periods, to be one."""

_ABOUT = 0.1
"""Difference of steadiness that a few symbols more or less can make."""
_LONGEST_WINDOW = 64
"""Symbols of the longest windows."""
_CELLS = 20_000_000
"""Segments times kinds of symbols beyond which a cut is not looked at: the table of counts would take 160 MB."""
_TRIED = 24
"""Cuts that are tried of each sort."""


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Whole repeats, in order: each from `start` to before `end` (places in the sequence)."""

    start: Ints
    end: Ints

    def __len__(self) -> int:
        """Count the repeats."""
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """Places of one window, and how well the segments between them repeat."""

    places: Ints
    ratio: float
    begin: float
    steady: float = 0.0
    repeats: Repetition | None = None

    def __len__(self) -> int:
        """Count the repeats."""
        return len(self.repeats) if self.repeats is not None else 0

    @property
    def period(self) -> float:
        """The usual distance."""
        return float(np.median(np.diff(self.places)))


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
    """
    if len(codes) < 2 * SHORTEST:
        return None
    symbols, codes = numbered(codes)
    kinds = np.zeros(0, np.int64) if recurring is None else np.searchsorted(symbols, recurring)
    rules = _Rules(needed, kinds, least)
    cuts = _cuts(codes, begin)
    best = _steadiest(codes, cuts, rules)
    if best is None:
        return None
    # Cuts of the same period differ in where a repeat begins: most readily first.
    alike = [cut for cut in cuts if abs(cut.period - best.period) <= (REGULAR - 1) * best.period]
    alike = sorted(alike, key=lambda cut: (-cut.begin, int(cut.places[0])))[:_TRIED]
    judged = [cut for cut in [*(_judged(codes, cut, rules) for cut in alike), best] if cut.repeats is not None]
    # Ragged ends may make one repeat more or less, by where a repeat begins; more than that is a worse cut.
    most = max(map(len, judged))
    ready = next(cut for cut in judged if len(cut) + 1 >= most)
    from_start = [_judged(codes, cut, rules) for cut in _from_starts([*alike, best], len(codes))]
    begun = max(from_start, key=lambda cut: cut.steady, default=best)
    is_begun_better = (len(begun), begun.steady) > (len(ready), ready.steady)
    return (begun if is_begun_better else ready).repeats


def _steadiest(codes: Ints, cuts: Sequence[_Cut], rules: _Rules) -> _Cut | None:
    """Give the cut of the shortest period among those that repeat about as steadily as any; `None` where none repeats.

    Of cuts with equally many places only the most regular is tried, as it is and moved to the sequence's start.
    """
    most_regular: dict[int, _Cut] = {}
    for cut in sorted(cuts, key=lambda cut: (cut.ratio, int(cut.places[0]))):
        most_regular.setdefault(len(cut.places), cut)
    tried = list(most_regular.values())[:_TRIED]
    judged = [_judged(codes, cut, rules) for cut in [*tried, *_from_starts(tried, len(codes))]]
    found = [cut for cut in judged if cut.repeats is not None]
    if not found:
        return None
    steadiest = max(cut.steady for cut in found)
    return min((cut for cut in found if cut.steady >= steadiest - _ABOUT), key=lambda cut: cut.period)


def repetition_at(codes: Ints, places: Ints, needed: Sequence[Flags] = (), *, least: int = 2) -> Repetition | None:
    """Say whether what lies between given places repeats, and which of it is whole; `None` when it does not clearly."""
    distinct = np.unique(places[(places >= 0) & (places < len(codes))])
    if len(distinct) < 2 or len(distinct) < len(places):
        return None
    return _judged(numbered(codes)[1], _Cut(distinct, 1.0, 1.0), _Rules(needed, np.zeros(0, np.int64), least)).repeats


def _cuts(codes: Ints, begin: Floats) -> list[_Cut]:
    """List places before and behind windows at regular distances: the most regular, and the best beginnings.

    Example: in  a b c a b d a b c  the window  a b  begins at 0, 3 and 6, always 3 apart. It may begin repeats at these
    places, or end them: then repeats begin behind it, at 2, 5 and 8.
    """
    found = []
    for keys in _windows(codes):
        # Windows sorted by key and then by place: those of one key are a group.
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        first = np.flatnonzero(first_of_run(ordered))
        count = np.diff(np.r_[first, len(ordered)])
        last = first + count - 1
        # Distance from each window to the next of its group; the last has none, and counts for neither extreme.
        gaps = np.r_[np.diff(order), 0]
        gaps[last] = 0
        longest = np.maximum.reduceat(gaps, first)
        gaps[last] = len(codes)
        least = np.minimum.reduceat(gaps, first)
        regular = (count >= 2) & (least >= SHORTEST) & (longest <= REGULAR * least)
        # Nothing as long as a repeat lies behind the last window, and not too much before the first.
        regular &= len(codes) - order[last] <= REGULAR * longest
        regular &= order[first] <= (1 - COVERED) * len(codes) + longest
        groups = np.flatnonzero(regular)
        ratio = longest[groups] / least[groups]
        width = len(codes) - len(keys) + 1
        for behind in (0, width):
            place = order + behind
            is_inside = (place > 0) & (place < len(codes))
            ready = np.where(is_inside, np.append(begin, np.zeros(behind + 1))[place], 0.0)
            score = np.add.reduceat(ready, first)[groups] / count[groups]
            for chosen in _best_of_each(count[groups], ratio, score):
                group = groups[chosen]
                places = place[first[group] : first[group] + count[group]]
                places = places[places < len(codes)]
                if len(places) > 1:
                    found.append(_Cut(places, float(ratio[chosen]), float(score[chosen])))
    return found


def _from_starts(cuts: Sequence[_Cut], length: int) -> list[_Cut]:
    """Move cuts to the sequence's start, those by whose period the sequence is a whole number of periods."""
    found = []
    for cut in cuts:
        count = round(length / cut.period)
        if count < 2 or abs(length - count * cut.period) > FILLED * cut.period:
            continue
        places = cut.places - cut.places[0]
        if cut.places[0] > (1 - FILLED) * cut.period:  # a whole period lies before the first place
            places = np.r_[0, places + cut.places[0]]
        found.append(_Cut(places[:count], cut.ratio, cut.begin))
    return found


def _best_of_each(count: Ints, ratio: Floats, score: Floats) -> list[int]:
    """Choose for each count (the smallest of them) the most regular window, and those that begin best."""
    chosen: list[int] = []
    for number in np.unique(count)[:_TRIED].tolist():
        own = np.flatnonzero(count == number)
        chosen.append(int(own[np.argmin(ratio[own])]))
        chosen += own[np.argsort(-score[own], kind="stable")[:_TRIED]].tolist()
    return chosen


def _windows(codes: Ints) -> Iterator[NDArray[np.uint64]]:
    """Give keys of the windows of 1, 2, 4, ... symbols that begin at each place."""
    with np.errstate(over="ignore"):
        keys = (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        length = 1
        while True:
            yield keys
            if 4 * length > len(codes) or length >= _LONGEST_WINDOW:
                return
            keys = (keys[:-length] ^ (keys[:-length] >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) + keys[length:]
            length *= 2


def _judged(codes: Ints, cut: _Cut, rules: _Rules) -> _Cut:
    """Say whether the segments between these places are repeats of one another.

    1. Count the symbols of each segment. The usual counts are the median over the segments between two places.
    2. A segment is a whole repeat where it has nearly all of the usual symbols and little else, and what is needed.
    3. All segments between two places have to be whole; what lies before and behind them may be cut short, but may not
       be something else.
    4. The repeats have to cover most of the sequence, and most kinds of symbols occur equally often in each.
    """
    kinds, places = int(codes.max()) + 1, cut.places
    if (len(places) + 1) * kinds > _CELLS:
        return cut
    # The first segment lies before the first place, the last one behind the last repeat.
    behind = int(places[-1] + cut.period)
    bounds = np.r_[0, places, [behind] if behind < len(codes) else [], len(codes)].astype(np.int64)
    segments = len(bounds) - 1
    segment = np.repeat(np.arange(segments), np.diff(bounds))
    counts = np.bincount(segment * kinds + codes, minlength=segments * kinds).reshape(-1, kinds)
    inner = slice(1, len(places))
    usual = np.median(counts[inner], axis=0)
    common = np.minimum(counts, usual).sum(axis=1)
    size = counts.sum(axis=1)
    whole = common >= ALIKE * np.maximum(size, usual.sum())
    whole &= (counts[:, rules.recurring] > 0).all(axis=1)
    needed = [flags for flags in rules.needed if flags.any()]
    for flags in needed:
        whole &= np.bincount(segment, flags, minlength=segments) > 0
    is_rest_alike = common[-1] >= ALIKE * size[-1]
    if not needed:  # what stands before the repeats may be the model's first layers, and the repeats the others
        is_rest_alike &= common[0] >= ALIKE * size[0]
    repeats = np.flatnonzero(whole)
    if not whole[inner].all() or not is_rest_alike or len(repeats) < rules.least:
        return cut
    # What is cut short at either end counts as covered, before the first place up to one repeat of it.
    cut_short = size[-1] * (not whole[-1]) + min(size[0], size[1]) * (not whole[0])
    covered = (size[repeats].sum() + cut_short) / len(codes)
    middle = np.median(counts[repeats], axis=0)
    is_kind = counts[1:].any(axis=0)
    steady = float(((counts[repeats] == middle) & (middle > 0))[:, is_kind].mean())
    if covered < COVERED or steady < STEADY:
        return cut
    return _Cut(places, cut.ratio, cut.begin, steady, Repetition(bounds[repeats], bounds[repeats + 1]))
