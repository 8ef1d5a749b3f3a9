"""Fused optimizer: the elementwise kernels of an optimizer's update become one launch.

Only optimizers whose update is elementwise have a fused form (Adam, SGD and their kin), and only their elementwise
kernels become part of it. What else runs inside the optimizer's mark stays as it is: matrix products (the
Newton-Schulz iterations of Muon), collectives of a sharded optimizer, reductions (norms for clipping) and copies.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.replay.graph import EdgeKind, NodeKind, events_of
from usp_prof.replay.host_gaps import overlap
from usp_prof.whatif.edits.kind import EditKind, Request

if TYPE_CHECKING:
    from usp_prof.replay.graph import Flags, Graph, Ints
    from usp_prof.tables.table_set import TableSet

STEP_OF = re.compile(r"^Optimizer\.step#(?P<optimizer>.+)\.step$")
"""How `torch.optim` marks a step, with the optimizer's class in it."""
KNOWN = re.compile(r"adam|sgd|adagrad|adadelta|rmsprop|rprop|lion", re.IGNORECASE)
"""Classes whose update is elementwise: Adam, AdamW, NAdam, RAdam, FusedAdam, DistAdam, SGD, ASGD, RMSprop, ..."""
OTHERWISE = re.compile(r"muon|shampoo|soap|adam_?mini|adafactor|lamb|lars", re.IGNORECASE)
"""Classes with such a name inside theirs whose update also multiplies matrices or reduces."""
ELEMENTWISE = re.compile(r"elementwise_kernel|multi_tensor_apply|^triton_poi_")
NO_UPDATE = re.compile(r"copy|fill|norm|reduce", re.IGNORECASE)
"""Elementwise kernels that move, clear or measure values rather than update them."""


def fused_optimizer(graph: Graph, request: Request) -> Graph:
    """Let the optimizer's update be one launch: its kernels follow each other, and the host issues them in no time."""
    nodes = graph.nodes
    update, launch = updates(graph, request.tables)
    later_update, later_launch = (rows & ~_firsts(graph, rows) for rows in (update, launch))
    kept = ~((graph.edges.kind == EdgeKind.LAUNCH) & later_update[graph.edges.target])
    gap = np.where(later_update | later_launch, np.minimum(graph.gap, 0), graph.gap)
    duration = np.where(later_launch & (nodes.kind == NodeKind.HOST), 0, graph.duration)
    return replace(graph, edges=graph.edges.take(kept)).with_changes(gap=gap, duration=duration)


def updates(graph: Graph, tables: TableSet) -> tuple[Flags, Flags]:
    """Mark the elementwise kernels of known optimizers' steps, and the host's calls that launch them."""
    nodes, events = graph.nodes, events_of(graph)
    elementwise = [ELEMENTWISE.search(name) is not None and NO_UPDATE.search(name) is None for name in graph.names]
    named = lookup(elementwise, nodes.name, missing=False)
    update, launch = np.zeros(len(nodes), dtype=bool), np.zeros(len(nodes), dtype=bool)
    for rank in tables.ranks:
        begin, end = _steps_of_known(tables, rank)
        if not len(begin):
            continue
        launches = tables.columns("launches", rank)
        at = launches["start_ns"]
        launched_inside = launches["event"][overlap(begin, end, at, at + 1) > 0]
        work = tables.columns("activities", rank)
        inside = np.isin(work["launch_event"], launched_inside) & (work["launch_event"] >= 0)
        rows = nodes.of_rank(rank)
        update[rows] = (
            named[rows] & (nodes.kind[rows] == NodeKind.COMPUTE) & np.isin(events[rows], work["event"][inside])
        )
        updating = np.isin(work["event"], events[rows[update[rows]]])
        launch[rows] = (nodes.kind[rows] == NodeKind.HOST) & np.isin(events[rows], work["launch_event"][updating])
    return update, launch


def _steps_of_known(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    """Give when a rank's host is inside the step of a known optimizer, on its own clock, sorted by begin."""
    marks = tables.columns("annotations", rank)
    codes, names = marks.codes("name")
    hits = lookup([_is_known(name) for name in names], codes, missing=False) & ~marks["on_device"]
    begin = marks["start_ns"][hits]
    order = np.argsort(begin, kind="stable")
    end = (begin + marks["dur_ns"][hits])[order]
    return begin[order], np.maximum.accumulate(end) if len(end) else end


def _is_known(mark: str) -> bool:
    found = STEP_OF.match(mark)
    return found is not None and bool(KNOWN.search(found["optimizer"])) and not OTHERWISE.search(found["optimizer"])


def _firsts(graph: Graph, rows: Flags) -> Flags:
    """Mark the first of these nodes of each lane and step."""
    place = np.flatnonzero(rows)
    first = np.ones(len(place), dtype=bool)
    lane, step = graph.nodes.lane[place], graph.nodes.step[place]
    first[1:] = (lane[1:] != lane[:-1]) | (step[1:] != step[:-1])
    found = np.zeros(len(rows), dtype=bool)
    found[place[first]] = True
    return found


FUSED_EDITS = (EditKind("fused_optimizer", "fused_optimizer", (), fused_optimizer),)
