"""Can the groups that were read out of gloo's workers be? Members of a group run the same operations.

Where no event names a group, each rank's workers are given groups by that rank's trace alone. Over all ranks there is
more to see: a group whose members did not run the same is the wrong one, and where for each of them exactly one other
set of ranks ran the same, it was these.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import index_of
from usp_prof.columns.lookup import lookup
from usp_prof.columns.table import Columns, Replaced, table_of
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.events.frame import compact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from usp_prof.columns.table import View
    from usp_prof.model.topology import Group
    from usp_prof.tables.table_set import Source

    Told = Mapping[int, Counter[tuple[str, int]]]

_SAME = 0.9
"""Share of what ran that members have in common; where recording begins or ends in between, the rest differs."""
_EQUAL_SIZES = ("all_reduce", "broadcast", "reduce", "barrier")
"""Operations of equal size on all members. What else there is (gathers, scatters) told the group's size itself."""


def regrouped(sources: Mapping[int, Source], groups: Sequence[Group]) -> dict[int, Source]:
    """Give the ranks' tables with groups that their members' operations do not contradict."""
    told = _told(sources)
    instead: dict[int, dict[str, Group]] = {}
    for group in groups:
        ran = {rank: counts for rank, counts in told.get(group.key, {}).items() if rank in group.ranks}
        doubtful = all(op in _EQUAL_SIZES for counts in ran.values() for op, _ in counts)
        if len(ran) > 1 and doubtful and not _agree(ran, ran):
            others = {rank: other for rank in ran if (other := _other(rank, ran, group, groups)) is not None}
            if len(others) == len(ran):  # one that was recorded for a part of the time contradicts nothing
                for rank, other in others.items():
                    instead.setdefault(rank, {})[group.key] = other
    return {rank: _Regrouped(source, instead[rank]) if rank in instead else source for rank, source in sources.items()}


def _told(sources: Mapping[int, Source]) -> dict[str, dict[int, Counter[tuple[str, int]]]]:
    """Count what each rank ran in each group that no event named."""
    found: dict[str, dict[int, Counter[tuple[str, int]]]] = {}
    for rank, source in sources.items():
        columns = Columns(source.view("collectives"))
        if not columns.matches("library", "gloo").any():
            continue
        rows = columns.take(~columns.matches("op", *P2P) & (columns["sequence"] < 0))
        (group, keys), (op, operations) = rows.codes("group"), rows.codes("op")
        lines, counts = np.unique(np.stack([group, op, rows["in_bytes"]], axis=1), axis=0, return_counts=True)
        for (group_code, op_code, size), count in zip(lines.tolist(), counts.tolist(), strict=True):
            ran = found.setdefault(keys[group_code], {}).setdefault(rank, Counter())
            ran[operations[op_code], size] += count
    return found


def _agree(ran: Told, ranks: Iterable[int]) -> bool:
    """Say whether these ranks ran the same."""
    first, *others = (ran[rank] for rank in ranks)
    return all((first & other).total() >= _SAME * max(first.total(), other.total()) for other in others)


def _other(rank: int, ran: Told, wrong: Group, groups: Sequence[Group]) -> Group | None:
    """Find the one other set of ranks that ran the same as this rank; of its groups the one that was made first."""
    fitting = [
        group
        for group in groups
        if rank in group.ranks and group.size > 1 and group.ranks != wrong.ranks
        if all(member in ran for member in group.ranks) and _agree(ran, group.ranks)
    ]
    made = sorted(fitting, key=lambda group: (not group.name.isdigit(), len(group.name), group.name))
    return made[0] if len({group.ranks for group in fitting}) == 1 else None


class _Regrouped:
    """One rank's tables with other groups for some of its collectives."""

    def __init__(self, source: Source, instead: Mapping[str, Group]) -> None:
        self._source, self._instead = source, instead

    def table(self, name: str) -> pa.Table:
        """Give one table of this rank."""
        return table_of(self.view(name))

    def view(self, name: str) -> View:
        """Give one table of this rank, not read before its columns are asked for."""
        view = self._source.view(name)
        if name != "collectives":
            return view
        columns = Columns(view)
        codes, keys = columns.codes("group")
        moved = ~columns.matches("op", *P2P) & lookup([key in self._instead for key in keys], codes, missing=False)
        others = [self._instead[key].key if key in self._instead else key for key in keys]
        names = list(dict.fromkeys([*keys, *others]))
        place = np.array([names.index(name) for name in others], np.int64)
        size = np.array([self._instead[key].size if key in self._instead else -1 for key in keys])
        return Replaced(
            view,
            {
                "group": lambda: compact(np.where(moved, place[codes], codes), names),
                "group_size": lambda: index_of(np.where(moved, size[codes], columns["group_size"])),
            },
        )
