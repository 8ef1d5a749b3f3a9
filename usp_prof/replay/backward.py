"""Backward passes: which work is a forward that runs again, how often, and when each gradient is complete.

How often is counted, because it differs: under nested checkpoints, or where a split backward runs its graph in parts,
one forward may run again several times.

The ops tell. Autograd gives an op a sequence number where it builds a graph, which is in forward. Backward builds none,
so that an op inside the autograd engine with a number of its own is a forward that runs again:

    evaluate_function: SiluBackward0    the engine
      SiluBackward0                     the node that it evaluates
        aten::linear      sequence 47   runs again: it, and all inside it
        aten::silu_backward             backward
        evaluate_function: ...          an engine within the engine (a reentrant checkpoint): backward again
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.intervals import time_of
from usp_prof.columns.rows import lookup, rows_of, sorted_by
from usp_prof.replay.node_work import Family, Shape, shape_of
from usp_prof.tables.events.classification import ENGINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.columns.table import Columns
    from usp_prof.replay.graph import Nodes
    from usp_prof.tables.table_set import TableSet


_COMPILED = ("CompiledFunction", "Torch-Compiled Region", "## Call CompiledFxGraph")
"""Compiled code runs again without any op that could tell."""
_ELSEWHERE, _ENGINE, _AGAIN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Recomputation:
    """How often forward runs again, over all ranks."""

    products: float
    """FLOP of matrix products that ran again over those of forward: 1 where each forward ran once more."""
    attention: float
    """Attention ops that ran again over those of forward; NaN where none was seen."""

    @property
    def most(self) -> float:
        """How often a forward runs again: of products or attention, the one that does more often."""
        return float(np.nanmax([self.products, self.attention]))


def measured(tables: TableSet) -> Recomputation | None:
    """Count what runs again; `None` where the ops cannot tell (no engine, compiled code, no forward)."""
    return tables.memo("recomputation", lambda: _measured(tables))


def _measured(tables: TableSet) -> Recomputation | None:
    forward, again = _Tally(), _Tally()
    for rank in tables.ranks:
        ops = tables.columns("ops", rank)
        if not _can_tell(ops):
            return None
        runs_again = ops_run_again(ops)
        # An op may launch several kernels, and ops around it repeat its shapes: ops with work of their own count once.
        work = np.unique(rows_of(ops["event"], tables.columns("activities", rank)["op_event"]))
        work = work[work >= 0]
        again.add(ops, work[runs_again[work]])
        forward.add(ops, work[ops.matches("phase", "forward")[work]])
    if not forward.product_flop:
        return None
    attention = again.attention_ops / forward.attention_ops if forward.attention_ops else float("nan")
    return Recomputation(again.product_flop / forward.product_flop, attention)


def nodes_run_again(tables: TableSet, nodes: Nodes) -> Flags:
    """Mark the measured nodes that run again: device work, and the host calls that launched it."""
    is_again = np.zeros(len(nodes), dtype=bool)
    for rank in tables.ranks:
        ops, work = tables.columns("ops", rank), tables.columns("activities", rank)
        runs_again = ops_run_again(ops)
        op_row = rows_of(ops["event"], work["op_event"])
        work_again = lookup(runs_again, op_row, missing=False)
        if not (work["launch_event"] >= 0).any():
            # On a host, work that is no op itself (a timed wait in its place) runs again with the ops around it.
            computes = work.matches("kind", "compute") & (op_row < 0)
            work_again |= computes & time_of(ops, runs_again).holds(work["start_ns"])
        rows = nodes.of_rank(rank)
        event = nodes.event[rows] if nodes.event is not None else rows
        launched = np.isin(event, work["launch_event"][work_again])
        is_again[rows] = np.where(nodes.of_host[rows], launched, np.isin(event, work["event"][work_again]))
    return is_again


def ops_run_again(ops: Columns) -> Flags:
    """Mark the ops that are a forward inside backward, as the table at the top of this file tells them."""
    is_engine = ops.satisfies("name", lambda name: name.startswith(ENGINE))
    parent = rows_of(ops["event"], ops["parent"])
    under_engine = lookup(is_engine, parent, missing=False)  # parent -1: the op lies in no other
    builds_graph = (ops["sequence"] >= 0) & ~is_engine & ~under_engine
    # Place of each op: that of the op around it, unless an engine or a forward inside the engine begins here. Filled
    # level by level from the outside; the last entry is that of ops that lie in no other.
    place = np.append(np.where(is_engine, _ENGINE, _ELSEWHERE), _ELSEWHERE)
    depth = ops["depth"]
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero((depth == level) & ~is_engine)
        around = place[parent[rows]]
        place[rows] = np.where(builds_graph[rows] & (around == _ENGINE), _AGAIN, around)
    return np.asarray(place[:-1] == _AGAIN)


def _can_tell(ops: Columns) -> bool:
    """Say whether autograd ran here and numbered its ops, and nothing is compiled."""
    is_engine = ops.satisfies("name", lambda name: name.startswith(ENGINE))
    is_compiled = any(name.startswith(_COMPILED) for name in ops.codes("name")[1])
    return not is_compiled and bool((ops["sequence"][is_engine] >= 0).any())


class _Tally:
    """What some ops come to: FLOP of matrix products, and how many attention ops there are."""

    def __init__(self) -> None:
        self.product_flop = 0.0
        self.attention_ops = 0

    def add(self, ops: Columns, rows: Ints) -> None:
        """Count some rows of a rank's ops."""
        for shape, count in _shapes(ops, rows):
            self.product_flop += shape.flop * count
            self.attention_ops += count * (shape.family is Family.ATTENTION)


def _shapes(ops: Columns, rows: Ints) -> Iterator[tuple[Shape, int]]:
    """Give the distinct shapes of some ops and how many ops have each; each is read once."""
    columns = [ops.codes(name) for name in ("name", "input_dims", "input_types")]
    triples = np.stack([codes[rows] for codes, _ in columns], axis=1)
    distinct, counts = np.unique(triples, axis=0, return_counts=True)
    for triple, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        yield shape_of(*(texts[code] for (_, texts), code in zip(columns, triple, strict=True))), count


# Gradients: when each gradient of a backward is complete, by autograd's accumulation of each parameter.

ACCUMULATES = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True, eq=False)
class Accumulated:
    """When one rank's host accumulated gradients, in order on its own clock; of how many elements; in which step."""

    at: Ints
    elements: Ints
    step: Ints

    def completed(self, shares: Floats, step: int, since: int) -> Ints:
        """Say when each share of a step's gradients was complete, of those from a moment on; empty if none is seen."""
        rows = np.flatnonzero((self.step == step) & (self.at >= since))
        if not len(rows):
            return rows
        done = np.cumsum(self.elements[rows])
        wanted = np.rint(shares * done[-1]).astype(np.int64)
        return np.asarray(self.at[rows][np.minimum(np.searchsorted(done, wanted), len(rows) - 1)])


def accumulated(tables: TableSet, rank: int) -> Accumulated:
    """Look at one rank's accumulations, once."""
    return tables.memo_of_rank(rank, "accumulated gradients", lambda: _accumulated(tables, rank))


def _accumulated(tables: TableSet, rank: int) -> Accumulated:
    ops = tables.columns("ops", rank)
    rows = sorted_by(ops["start_ns"], np.flatnonzero(ops.matches("name", ACCUMULATES)))
    codes, texts = ops.codes("input_dims")
    used = np.unique(codes[rows])
    # By code: the elements of shapes that accumulations have; the others are not read.
    elements = np.ones(len(texts), np.int64)
    elements[used] = [_elements(texts[code]) for code in used.tolist()]
    return Accumulated(ops["start_ns"][rows], elements[codes[rows]], ops["step"][rows])


def _elements(text: str) -> int:
    """Count the elements of an op's first input; 1 where its shape was not recorded."""
    try:
        first = json.loads(text)[0]
        return max(1, int(np.prod(np.array(first, np.int64))))
    except (ValueError, LookupError, TypeError):
        return 1
