"""Representatives: of a run too large to be replayed whole, the replicas that are replayed in place of all.

Between two calls of data parallelism, replicas of the model work on their own and do the same. So a few of them, each
with all its ranks, tell what all do, provided that those which the others wait for are among them:

  1. Ranks that talk on any axis but that of data are one replica.
  2. A replica is late by how long it keeps the median member of its calls with other replicas waiting.
  3. The latest are taken, up to a quarter of the bound, and beside them those of ranks that were asked for and those
     whose lateness is nearest to the median.

What is read of calls and clocks stays what all ranks told. A call that waited for a rank left out takes that much
longer here, whatever an edit does: by so much a gain may be off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import distinct, lowest_reached, numbered
from usp_prof.model.health import HealthRow, Severity, spans
from usp_prof.model.topology import Axis
from usp_prof.tables import calls, clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.tables.matching.parts import Parts
    from usp_prof.tables.table_set import TableSet

MOST_NODES = 4_000_000
"""Nodes that are replayed at most, where fewer replicas can stand for all: with all edits they take about 2 GB."""
LATE_SHARE = 0.25
"""Of that, so much is for the replicas that the others wait for."""
FEWEST_OTHERS = 2
"""Replicas beside the latest that are taken in any case: a median over peers is then that of ordinary ones."""
REPRESENTED = "ranks_represented"
"""Code of the row of health that says which ranks were replayed."""
_NAMED = 8
"""Spans of ranks that the note names."""
_ALIKE = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD, Axis.WORLD)
"""Axes whose members do the same work, each on its own."""


@dataclass(frozen=True, slots=True)
class Representatives:
    """The tables that are replayed: those of all ranks, or of some that stand for all."""

    tables: TableSet
    doubt: float = 0.0
    """The share of a step in which they waited for ranks left out, at most."""
    note: HealthRow | None = None
    """Which ranks these are; `None` where they are all."""
    which: str = ""
    """The same, to follow `it is`."""


def representatives(tables: TableSet, wanted: Iterable[int] = ()) -> Representatives:
    """Choose the ranks to replay: all of them where they are not too many; `wanted` ranks as far as they fit.

    Ranks that have `wanted` among them anyhow serve all who ask. Of others the latest are kept, since what is replayed
    of them takes some GB.
    """
    asked_for = tuple(sorted(wanted))
    chosen = tables.memo(("representatives", MOST_NODES), lambda: _representatives(tables, (), MOST_NODES))
    if not set(asked_for) <= set(chosen.tables.ranks):
        latest: dict[object, Representatives] = tables.memo("representatives of some", dict)
        key = MOST_NODES, asked_for
        if key not in latest:
            latest.clear()
            latest[key] = _representatives(tables, asked_for, MOST_NODES)
        chosen = latest[key]
    chosen.tables.assumptions = tables.assumptions  # which may have come later
    return chosen


def _representatives(tables: TableSet, wanted: Sequence[int], most_nodes: int) -> Representatives:
    # By rank: about how many nodes it has.
    nodes = np.array([sum(tables.view(name, rank).num_rows for name in _NODES) for rank in tables.ranks], np.int64)
    if nodes.sum() <= most_nodes:
        return Representatives(tables)
    ranks = np.array(tables.ranks, np.int64)
    matched = calls.of(tables)
    is_apart = matched.columns().satisfies("axis", lambda axis: axis in _ALIKE)
    replica = _replicas(ranks, matched.parts, is_apart)
    lateness = _lateness(ranks, matched, is_apart, replica)
    is_wanted = np.isin(np.arange(len(lateness)), replica[np.isin(ranks, wanted)])
    chosen = _chosen(np.bincount(replica, nodes).astype(np.int64), lateness, is_wanted, most_nodes)
    if len(chosen) == len(lateness):
        return Representatives(tables)
    part = tables.only(ranks[np.isin(replica, chosen)].tolist())
    part.memo("clock", lambda: clock.of(tables))
    part.memo("calls", lambda: matched.among(part.ranks))
    doubt = _unread_wait(part)
    which = (
        f"from {len(part.ranks)} of {len(ranks)} ranks, {len(chosen)} of {len(lateness)} "
        f"replicas of the model, with those that the others wait for among them ({_listed(part.ranks)}); their "
        f"calls waited for other ranks in at most {doubt:.1%} of a step, which is in the error of each gain"
    )
    detail = f"findings and their gains are {which}"
    return Representatives(part, doubt, HealthRow(REPRESENTED, Severity.INFO, count=len(ranks), detail=detail), which)


def _listed(ranks: Sequence[int]) -> str:
    named = spans(ranks).split(", ")
    return f"ranks {', '.join(named[:_NAMED])}" + (" ..." if len(named) > _NAMED else "")


_NODES = ("activities", "launches")
"""Tables whose rows become nodes."""


def _replicas(ranks: Ints, matched: Parts, is_apart: Flags) -> Ints:
    """Give each of these ranks the number of its replica, counted from 0."""
    pairs = np.zeros(0, np.int64)
    for parts in matched.each_block("call"):
        # Parts are sorted by call: one and the next of the same call are a pair of ranks of one replica.
        row = np.searchsorted(ranks, parts["rank"])
        follows = (parts["call"][1:] == parts["call"][:-1]) & ~is_apart[parts["call"][1:]]
        pairs = distinct(np.append(pairs, row[:-1][follows] * len(ranks) + row[1:][follows]))
    return numbered(lowest_reached(pairs // len(ranks), pairs % len(ranks), np.arange(len(ranks))))[1]


def _lateness(ranks: Ints, matched: calls.Calls, is_apart: Flags, replica: Ints) -> Ints:
    """Give by replica, summed over its calls with others, how much later it arrived than the median member, in ns."""
    is_taken = is_apart & matched.columns()["complete"]
    lateness = np.zeros(int(replica.max()) + 1)
    for parts in matched.parts.each_block("call", "wait_ns"):
        rows = np.flatnonzero(is_taken[parts["call"]])
        call, wait_ns = numbered(parts["call"][rows])[1], parts["wait_ns"][rows]
        # The members of each call in turn, by their wait; the middle one of each is the median.
        by_wait = np.lexsort((wait_ns, call))
        size = np.bincount(call)
        first = np.cumsum(size) - size
        median_wait = wait_ns[by_wait][first + size // 2]
        late_ns = np.maximum(median_wait[call] - wait_ns, 0)
        place_of_rank = np.searchsorted(ranks, parts["rank"][rows])
        lateness += np.bincount(replica[place_of_rank], late_ns, minlength=len(lateness))
    return lateness.astype(np.int64)


def _chosen(nodes: Ints, lateness: Ints, is_wanted: Flags, most_nodes: int) -> Ints:
    """Choose replicas: the latest, then those that are wanted and the most ordinary, at least FEWEST_OTHERS of these.

    Each array has an entry for each replica.
    """
    latest = np.argsort(-lateness, kind="stable")
    late = _that_fit(latest, nodes, LATE_SHARE * most_nodes, fewest=1)
    distance = np.abs(lateness - np.median(lateness))
    others = np.lexsort((distance, ~is_wanted))
    others = others[~np.isin(others, late)]
    return np.append(late, _that_fit(others, nodes, most_nodes - nodes[late].sum(), FEWEST_OTHERS))


def _that_fit(replicas: Ints, nodes: Ints, room: float, fewest: int) -> Ints:
    """Take replicas in this order while there is room for their nodes, but so many in any case."""
    count = int((np.cumsum(nodes[replicas]) <= room).sum())
    return replicas[: max(count, fewest)]


def _unread_wait(part: TableSet) -> float:
    """Give the largest share of its steps that any rank's calls waited for the last member, which is left out."""
    matched = calls.of(part)
    is_inside = matched.columns()["complete"] & (matched.columns()["step"] >= 0)
    # The last member of a call waits for nobody: the least wait among those that are here is for one that is not.
    least_wait = np.full(len(is_inside), np.iinfo(np.int64).max)
    for parts in matched.parts.each_block("call", "wait_ns"):
        np.minimum.at(least_wait, parts["call"], parts["wait_ns"])
    unread_ns = np.where(is_inside, least_wait, 0)
    shares = [0.0]
    for rank in part.ranks:
        steps = part.columns("steps", rank)
        steps_ns = int((steps["end_ns"] - steps["start_ns"]).sum())
        if steps_ns > 0:
            shares.append(float(unread_ns[matched.parts.of(rank, "call")["call"]].sum()) / steps_ns)
    return max(shares)
