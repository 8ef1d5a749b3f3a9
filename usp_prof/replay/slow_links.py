"""Which groups have a slower link than their peers? The same operation with the same bytes, group against group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.order import group_codes
from usp_prof.tables import calls

if TYPE_CHECKING:
    from usp_prof.columns.table import Columns
    from usp_prof.replay.graph import Graph, Ints
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class LinkSlowness:
    """A group's transfers against the median of the other groups of its axis, for the same operations and bytes."""

    group: str
    axis: str
    ratio: float
    """Median over its kinds of calls of how many times as long a transfer takes."""
    calls: int
    extra_ns: int
    """What its transfers take longer in all."""


def calls_of(tables: TableSet) -> Columns:
    """Give the calls that tie nodes of a graph, in the order of their numbers there."""
    found = calls.of(tables)
    read = np.bincount(found.part_columns()["call"])
    return found.columns().take(np.flatnonzero(read > 1))


def ratios(tables: TableSet) -> tuple[Columns, Ints, np.ndarray]:
    """Give the calls, the code of each call's group, and how its kind compares with that of other groups (1: alike)."""
    rows = calls_of(tables)
    ratio = np.ones(len(rows))
    if not len(rows):
        return rows, np.zeros(0, np.int64), ratio
    group = rows.codes("group")[0]
    kind = group_codes(rows.codes("axis")[0], rows.codes("op")[0], rows["bytes"], rows.codes("matched_by")[0])
    timed = (rows["transfer_ns"] > 0) & ~rows.matches("matched_by", "p2p")
    for each in np.unique(kind[timed]).tolist():
        mine = timed & (kind == each)
        groups = np.unique(group[mine])
        if len(groups) < 2:
            continue
        medians = np.array([np.median(rows["transfer_ns"][mine & (group == g)]) for g in groups])
        for g, median in zip(groups.tolist(), medians.tolist(), strict=True):
            others = float(np.median(medians[groups != g]))
            ratio[mine & (group == g)] = median / others if others else 1.0
    return rows, group, ratio


def link_slowness(tables: TableSet) -> list[LinkSlowness]:
    """List the groups whose transfers take longer than other groups', by name."""
    rows, group, ratio = ratios(tables)
    texts = rows.codes("group")[1] if len(rows) else []
    found = []
    for code in np.unique(group[ratio != 1]).tolist():
        mine = (group == code) & (ratio != 1)
        extra = rows["transfer_ns"][mine] * (1 - 1 / ratio[mine])
        axis = str(rows["axis"][np.flatnonzero(mine)[0]])
        slower = float(np.average(ratio[mine], weights=rows["transfer_ns"][mine]))
        found.append(LinkSlowness(texts[code], axis, slower, int(mine.sum()), int(extra.sum())))
    return sorted(found, key=lambda each: (-each.extra_ns, each.group))


def group_word(group: str) -> str:
    """Write a group's key as an edit's word, in which commas have another meaning."""
    return group.replace(",", "+")


def as_peers(graph: Graph, tables: TableSet, wanted: str) -> Ints:
    """Give the transfers with the named group (or every slower one) as fast as the others."""
    rows, group, ratio = ratios(tables)
    texts = rows.codes("group")[1] if len(rows) else []
    named = np.array([wanted in ("all", "", group_word(text)) for text in texts] + [False])
    factor = np.append(np.where(named[group], np.maximum(ratio, 1.0), 1.0), 1.0)
    return np.asarray(np.rint(graph.transfer / factor[graph.nodes.call]), np.int64)
