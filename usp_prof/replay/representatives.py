"""Representatives: the model replicas that are replayed if a run is too large to replay all ranks.

Between two data-parallel calls, model replicas work independently and do the same work. So a few replicas, each with
all of its ranks, represent the run, as long as they include the stragglers:

  1. Ranks that communicate on any axis other than data parallelism belong to the same replica.
  2. The lateness of a replica is the time that the median member of its calls with other replicas waits for it.
  3. The latest replicas are chosen, up to a quarter of the node limit. The rest are the replicas of requested ranks,
     and those whose lateness is closest to the median.

Calls and clocks are still those of all ranks. If a call waited for a rank that was left out, no edit can shorten that
wait. It is the possible error of each gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, lowest_reached, middles, numbered
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import spans
from usp_prof.model.topology import DATA_AXES, Axis
from usp_prof.tables import calls, clock
from usp_prof.tables.calls import Parts
from usp_prof.tables.table_set import TableSet

MOST_NODES = 4_000_000
"""Maximum number of nodes to replay if fewer replicas can represent the run; with all edits they use about 2 GB."""
LATE_SHARE = 0.25
"""Share of the node limit reserved for the replicas that the others wait for."""
FEWEST_OTHERS = 2
"""Minimum number of ordinary replicas, so that a median over peers is not that of the stragglers."""
REPRESENTED = "ranks_represented"
"""Code of the health row that lists the replayed ranks."""
_MOST_SPANS = 8
"""Maximum number of rank spans listed in the note."""
_ALIKE = (*DATA_AXES, Axis.WORLD)
"""Axes whose members do the same work independently."""


@dataclass(frozen=True, slots=True)
class Representatives:
    """The tables that are replayed: those of all ranks, or of the representative ones."""

    tables: TableSet
    doubt: float = 0.0
    """Largest share of a step that any of them waited for ranks that were left out."""
    note: HealthRow | None = None
    """Health row that lists these ranks; `None` if they are all ranks."""
    which: str = ""
    """The same as text that continues `it is`."""


def representatives(tables: TableSet, wanted: Iterable[int] = ()) -> Representatives:
    """Return the ranks to replay: all if they fit, otherwise representatives with as many `wanted` ranks as fit.

    The default choice is reused if it includes the `wanted` ranks. Of other choices only the most recent is cached,
    because its replay uses several GB.
    """
    requested = tuple(sorted(wanted))
    chosen = tables.memo(("representatives", MOST_NODES), lambda: _representatives(tables, (), MOST_NODES))
    if not set(requested) <= set(chosen.tables.ranks):
        latest: dict[object, Representatives] = tables.memo("representatives of some", dict)
        key = MOST_NODES, requested
        if key not in latest:
            latest.clear()
            latest[key] = _representatives(tables, requested, MOST_NODES)
        chosen = latest[key]
    return chosen


def _representatives(tables: TableSet, wanted: Sequence[int], most_nodes: int) -> Representatives:
    # By rank: approximate number of nodes.
    nodes = np.array([sum(tables.view(name, rank).num_rows for name in _NODES) for rank in tables.ranks], np.int64)
    if nodes.sum() <= most_nodes:
        return Representatives(tables)
    ranks = np.array(tables.ranks, np.int64)
    matched = calls.match_calls(tables)
    is_apart = matched.columns().satisfies("axis", lambda axis: axis in _ALIKE)
    replica = _replicas(ranks, matched.parts, is_apart)
    lateness = _lateness(ranks, matched, is_apart, replica)
    is_wanted = np.isin(np.arange(len(lateness)), replica[np.isin(ranks, wanted)])
    chosen = _chosen(np.bincount(replica, nodes).astype(np.int64), lateness, is_wanted, most_nodes)
    if len(chosen) == len(lateness):
        return Representatives(tables)
    part = tables.only(ranks[np.isin(replica, chosen)].tolist())
    part.memo("clock", lambda: clock.fit_clocks(tables))
    part.memo("calls", lambda: matched.among(part.ranks))
    doubt = _unread_wait(part)
    which = (
        f"from {len(part.ranks)} of {len(ranks)} ranks, {len(chosen)} of {len(lateness)} "
        f"replicas of the model, including those that the others wait for ({_rank_spans(part.ranks)}); their "
        f"calls waited for other ranks for at most {doubt:.1%} of a step, which the error of each gain includes"
    )
    detail = f"findings and their gains are {which}"
    return Representatives(part, doubt, HealthRow(REPRESENTED, Severity.INFO, count=len(ranks), detail=detail), which)


def _rank_spans(ranks: Sequence[int]) -> str:
    texts = spans(ranks).split(", ")
    return f"ranks {', '.join(texts[:_MOST_SPANS])}" + (" ..." if len(texts) > _MOST_SPANS else "")


_NODES = ("activities", "launches")
"""Tables whose rows become nodes."""


def _replicas(ranks: Ints, matched: Parts, is_apart: Flags) -> Ints:
    """Return the replica number of each rank, counted from 0."""
    parts = matched.by_call("call")
    # Parts are sorted by call: adjacent parts of the same call are a pair of ranks of one replica.
    row = np.searchsorted(ranks, parts["rank"])
    follows = (parts["call"][1:] == parts["call"][:-1]) & ~is_apart[parts["call"][1:]]
    pairs = distinct(row[:-1][follows] * len(ranks) + row[1:][follows])
    return numbered(lowest_reached(pairs // len(ranks), pairs % len(ranks), np.arange(len(ranks))))[1]


def _lateness(ranks: Ints, matched: calls.Calls, is_apart: Flags, replica: Ints) -> Ints:
    """Return by replica how much later it arrives than the median member, summed over calls with others, in ns."""
    is_taken = is_apart & matched.columns()["complete"]
    parts = matched.parts.by_call("call", "wait_ns")
    rows = np.flatnonzero(is_taken[parts["call"]])
    call, wait_ns = numbered(parts["call"][rows])[1], parts["wait_ns"][rows]
    late_ns = np.maximum(middles(call, wait_ns)[1][call] - wait_ns, 0)
    place_of_rank = np.searchsorted(ranks, parts["rank"][rows])
    return np.bincount(replica[place_of_rank], late_ns, minlength=int(replica.max()) + 1).astype(np.int64)


def _chosen(nodes: Ints, lateness: Ints, is_wanted: Flags, most_nodes: int) -> Ints:
    """Return the replicas to replay: the latest, then at least FEWEST_OTHERS wanted or ordinary ones.

    Each array has one entry per replica.
    """
    latest = np.argsort(-lateness, kind="stable")
    late = _that_fit(latest, nodes, LATE_SHARE * most_nodes, fewest=1)
    distance = np.abs(lateness - np.median(lateness))
    ordinary = np.lexsort((distance, ~is_wanted))
    ordinary = ordinary[~np.isin(ordinary, late)]
    return np.append(late, _that_fit(ordinary, nodes, most_nodes - nodes[late].sum(), FEWEST_OTHERS))


def _that_fit(replicas: Ints, nodes: Ints, room: float, fewest: int) -> Ints:
    """Return the first replicas whose nodes fit into `room`, but at least `fewest`."""
    count = int((np.cumsum(nodes[replicas]) <= room).sum())
    return replicas[: max(count, fewest)]


def _unread_wait(part: TableSet) -> float:
    """Return the largest share of step time that any rank waited in calls for members that were left out."""
    matched = calls.match_calls(part)
    is_inside = matched.columns()["complete"] & (matched.columns()["step"] >= 0)
    # The last member of a call does not wait, so the minimum wait of the replayed members is for one left out.
    least_wait = np.full(len(is_inside), np.iinfo(np.int64).max)
    parts = matched.parts.by_call("call", "wait_ns")
    np.minimum.at(least_wait, parts["call"], parts["wait_ns"])
    unread_ns = np.where(is_inside, least_wait, 0)
    shares = [0.0]
    for rank in part.ranks:
        steps = part.columns("steps", rank)
        steps_ns = int((steps["end_ns"] - steps["start_ns"]).sum())
        if steps_ns > 0:
            shares.append(float(unread_ns[matched.parts.of_rank(rank, "call")["call"]].sum()) / steps_ns)
    return max(shares)
