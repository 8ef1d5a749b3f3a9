"""Through which ranks does the longest way to the end of a run lead? A walk back from the last end.

On one rank, work follows work, so the way stays there until it comes to a communication that was still being waited
for when it ended. What bounds that is its last member's arrival: the way goes on at that moment on that rank. So it
takes one step for each change of rank and none for the work between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.order import per_code
from usp_prof.analyses import _partition
from usp_prof.tables import calls as call_table
from usp_prof.tables import clock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.tables.table_set import TableSet

    Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """The way lies on one rank from `begin_ns` to `end_ns` of the common clock; `through` names what led away."""

    rank: int
    begin_ns: int
    end_ns: int
    through: str


@dataclass(frozen=True, slots=True, eq=False)
class _Exits:
    """Where the way leaves a rank: communication waited for at its end, by end; `at` is the last arrival."""

    end: Int
    at: Int
    to: Int
    axis: NDArray[np.object_]


def walk(tables: TableSet, rank: int, begin_ns: int, end_ns: int) -> tuple[Piece, ...]:
    """Walk from the end on a rank back to the begin; pieces come in order of time."""
    exits = tables.memo("exits", lambda: _exits(tables))
    here, now, pieces, through = rank, end_ns, [], ""
    while now > begin_ns:
        leave = exits.get(here)
        place = int(np.searchsorted(leave.end, now, side="right")) - 1 if leave is not None else -1
        while leave is not None and place >= 0 and leave.at[place] >= now:
            place -= 1
        if leave is None or place < 0 or leave.at[place] <= begin_ns:
            pieces.append(Piece(here, begin_ns, now, through))
            break
        pieces.append(Piece(here, int(leave.at[place]), now, through))
        through = str(leave.axis[place])
        now, here = int(leave.at[place]), int(leave.to[place])
    return tuple(reversed(pieces))


def _exits(tables: TableSet) -> dict[int, _Exits]:
    calls, parts = call_table.of(tables).columns(), call_table.of(tables).part_columns()
    if not len(calls):
        return {}
    clocks, count = clock.of(tables), len(calls)
    of_call, rank = parts["call"], parts["rank"]
    start, end = (np.zeros(len(of_call), np.int64) for _ in range(2))
    open_end = np.zeros(len(of_call), bool)
    for r in np.unique(rank).tolist():
        mine = np.flatnonzero(rank == r)
        collectives = tables.columns("collectives", r)
        begun = collectives["start_ns"][parts["part"][mine]]
        over = begun + collectives["dur_ns"][parts["part"][mine]]
        start[mine], end[mine] = clocks.align(r, begun), clocks.align(r, over)
        open_end[mine] = ~_partition.sets_of(tables, r).compute.holds(over - 1)
    last = per_code(of_call, start, np.maximum, count)
    order = np.lexsort((start, of_call))
    late = rank[order[np.searchsorted(of_call[order], np.arange(count), side="right") - 1]]
    # A posted send that outlasts its receive, or that waits for its receiver, holds nobody up by itself.
    leaves = calls["complete"][of_call] & open_end & (parts["wait_ns"] > 0) & (late[of_call] != rank)
    leaves &= ~_sends(tables, rank, parts["part"])
    found = {}
    for r in np.unique(rank[leaves]).tolist():
        rows = np.flatnonzero(leaves & (rank == r))
        rows = rows[np.lexsort((last[of_call[rows]], end[rows]))]
        found[r] = _Exits(end[rows], last[of_call[rows]], late[of_call[rows]], calls["axis"][of_call[rows]])
    return found


def _sends(tables: TableSet, rank: Int, part: Int) -> NDArray[np.bool_]:
    found = np.zeros(len(rank), bool)
    for r in np.unique(rank).tolist():
        mine = rank == r
        found[mine] = tables.columns("collectives", r).matches("op", "send")[part[mine]]
    return found
