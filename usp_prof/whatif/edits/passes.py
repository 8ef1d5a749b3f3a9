"""Accumulation edit: more or fewer micro-batches between two updates, in runs without a pipeline.

The last micro-batch of a step also reduces gradients, and stays as it is. The others take their time so many times more
or less often.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError
from usp_prof.replay.node_work import work_of
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.edits.pipeline import PASSES, after_passes

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph, Ints
    from usp_prof.tables.table_set import TableSet


def micro_batches(graph: Graph, request: Request) -> Graph:
    """Run so many micro-batches of the same size between two updates: the batch, and its step, grow or shrink."""
    wanted, number = request.whole(), passes_of(graph, request.tables)
    now = int(number.max(initial=-1)) + 1
    if wanted == now:
        return graph
    if now < 2:
        shown = "one micro-batch" if now else "no micro-batches"
        raise UsageError(
            f"edit {request.edit}: the run shows {shown} a step, not what one without gradient sync takes",
            hint="record with gradient accumulation, and marks for each pass (pp::F mb=..., or train::fwd_bwd)",
        )
    number = np.append(number, np.full(graph.added, -1))
    factor = np.where((number >= 0) & (number < now - 1), (wanted - 1) / (now - 1), 1.0)
    edges = graph.edges
    lag = np.rint(edges.lag * factor[edges.target]).astype(np.int64)
    return graph.with_changes(
        duration=_times(graph.duration, factor),
        transfer=_times(graph.transfer, factor),
        gap=_times(graph.gap, factor),
        edges=replace(edges, lag=lag),
    )


def passes_of(graph: Graph, tables: TableSet) -> Ints:
    """Give the number of the micro-batch of each measured node within its step; -1 outside of all."""
    work = work_of(tables)
    if (work.micro_batch >= 0).any():
        return work.micro_batch
    found = np.full(len(graph.nodes) - graph.added, -1, np.int64)
    for rank in tables.ranks:
        marks = tables.columns("annotations", rank)
        rows = np.flatnonzero(marks.matches("name", "train::fwd_bwd") & ~marks["on_device"])
        if not len(rows):
            continue
        rows = rows[np.argsort(marks["start_ns"][rows], kind="stable")]
        begin, end = marks["start_ns"][rows], (marks["start_ns"] + marks["dur_ns"])[rows]
        step = marks["step"][rows]
        within = np.arange(len(rows)) - np.searchsorted(step, step)
        mine = np.flatnonzero(graph.nodes.rank[: len(found)] == rank)
        at = work.issued_ns[mine]
        place = np.searchsorted(begin, at, side="right") - 1
        inside = (place >= 0) & (at < end[np.maximum(place, 0)])
        found[mine[inside]] = within[place[inside]]
    return found


def _times(values: Ints, factor: np.ndarray) -> Ints:
    return np.asarray(np.rint(values * factor), np.int64)


EDITS = (EditKind(PASSES, "micro_batches=16", (), micro_batches, after_passes, modelled=True),)
