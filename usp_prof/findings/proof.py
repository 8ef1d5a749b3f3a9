"""Proof of a finding: its most significant place in the timeline, and a SELECT whose first rows show the cause.

The SELECT can be passed to `usp-prof query` unchanged.
"""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.model.finding import EMPTY, PlainMap
from usp_prof.replay.graph import Graph


def longest(graph: Graph, rows: Flags, weight: Ints | None = None) -> PlainMap:
    """Return rank, step, start and end of the longest (or heaviest) node, with times on the common clock."""
    place = np.flatnonzero(rows & (graph.nodes.step >= 0))
    if not len(place):
        return EMPTY
    row = int(place[np.argmax((graph.nodes.duration if weight is None else weight)[place])])
    return spot(graph, row, int(graph.nodes.start[row]), int(graph.nodes.end[row]))


def spot(graph: Graph, row: int, start: int, end: int) -> PlainMap:
    """Return a node's rank and step, with the given time range."""
    return {
        "at_rank": int(graph.nodes.rank[row]),
        "at_step": int(graph.nodes.step[row]),
        "start_ns": start,
        "end_ns": end,
    }


def slowest_step(graph: Graph, rows: Flags) -> PlainMap:
    """Return the rank and step with the largest total of these nodes, from their first start to their last end."""
    place = np.flatnonzero(rows & (graph.nodes.step >= 0))
    if not len(place):
        return EMPTY
    pair = np.stack([graph.nodes.rank[place], graph.nodes.step[place]])
    distinct, group = np.unique(pair, axis=1, return_inverse=True)
    group = group.ravel()
    most = int(np.argmax(np.bincount(group, graph.nodes.duration[place])))
    slowest = place[group == most]
    start, end = int(graph.nodes.start[slowest].min()), int(graph.nodes.end[slowest].max())
    return {"at_rank": int(distinct[0, most]), "at_step": int(distinct[1, most]), "start_ns": start, "end_ns": end}


# SELECT statements for `usp-prof query`, whose first rows show the cause of a finding.
#
# Rows of single nodes are selected by rank and event, so that the SELECT returns exactly the events that the rule used:
#         SELECT * FROM launches WHERE (rank, event) IN ((2, 4711), (2, 5230)) ORDER BY rank, start_ns

MOST = 10
"""Maximum number of rows in a proof."""


def heaviest(graph: Graph, rows: Flags, weight: Ints | None = None) -> str:
    """Return a SELECT of the longest (or heaviest) marked nodes: host calls or device activities."""
    weights = graph.nodes.duration if weight is None else weight
    place = np.flatnonzero(rows & graph.measured)
    if not len(place) or graph.nodes.event is None:
        return ""
    place, table = _heaviest_of_a_table(graph, place, weights)
    pairs = zip(graph.nodes.rank[place].tolist(), graph.nodes.event[place].tolist(), strict=True)
    keys = ", ".join(f"({rank}, {event})" for rank, event in sorted(set(pairs)))
    return f"SELECT * FROM {table} WHERE (rank, event) IN ({keys}) ORDER BY dur_ns DESC"


def gaps_before(graph: Graph, nodes: Ints, gap_ns: Ints) -> str:
    """Return a SELECT of the longest gaps before these nodes; `gap_ns` has one entry per node of the graph.

    No table contains gaps, so the SELECT returns the length with the event that ends the gap.
    """
    place = nodes[graph.measured[nodes]]
    if not len(place) or graph.nodes.event is None:
        return ""
    place, table = _heaviest_of_a_table(graph, place, gap_ns)
    rank, event, gap = (column[place].tolist() for column in (graph.nodes.rank, graph.nodes.event, gap_ns))
    values = ", ".join(map(str, zip(rank, event, gap, strict=True)))
    return (
        f"SELECT rank, step, start_ns - gap_ns AS start_ns, gap_ns AS dur_ns, name AS next_name FROM {table} "
        f"JOIN (VALUES {values}) AS gaps(rank, event, gap_ns) USING (rank, event) ORDER BY dur_ns DESC, rank, start_ns"
    )


def _heaviest_of_a_table(graph: Graph, place: Ints, weights: Ints) -> tuple[Ints, str]:
    """Return nodes of the heaviest node's table, sorted by weight, and the name of the table."""
    place = place[np.argsort(-weights[place], kind="stable")]
    of_host = graph.nodes.of_host[place]
    return place[of_host == of_host[0]][:MOST], "launches" if of_host[0] else "activities"


def largest(table: str, where: str, by: str) -> str:
    """Return a SELECT of the table rows with the largest values of a column."""
    return f"SELECT * FROM {table} WHERE {where} ORDER BY {by} DESC LIMIT {MOST}"


COMPUTE_BY_RANK = (
    "SELECT rank, step, sum(dur_ns) AS compute_ns FROM activities "
    "WHERE kind = 'compute' AND step >= 0 GROUP BY rank, step ORDER BY compute_ns DESC, rank, step"
)
"""SELECT of the compute time per rank and step, longest first."""


def equals(column: str, value: str) -> str:
    """Return an SQL condition on a text column."""
    quoted = value.replace("'", "''")
    return f"\"{column}\" = '{quoted}'"
