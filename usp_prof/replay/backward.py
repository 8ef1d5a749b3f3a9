"""Backward passes: which work is recomputed forward, how often, and when each gradient is complete.

One forward may run again several times: with nested checkpoints, or if a split backward runs its graph in parts. So
the repetitions are counted.

Recomputation is detected from sequence numbers. Autograd numbers an op when it builds a graph, which happens in
forward only. So an op inside the autograd engine that has its own number is a recomputed forward:

    evaluate_function: SiluBackward0    the engine
      SiluBackward0                     the node that it evaluates
        aten::linear      sequence 47   recomputed, with everything inside it
        aten::silu_backward             backward
        evaluate_function: ...          an engine inside the engine (a reentrant checkpoint): backward again
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.intervals import time_of
from usp_prof.columns.rows import combinations, distinct, lookup, rows_of, sorted_by
from usp_prof.columns.table import Columns
from usp_prof.replay.graph import Nodes
from usp_prof.replay.node_work import Family, Shape, shape_of
from usp_prof.tables.events.classification import ENGINE
from usp_prof.tables.table_set import TableSet, memoized, memoized_of_rank

_COMPILED = ("CompiledFunction", "Torch-Compiled Region", "## Call CompiledFxGraph")
"""Names of compiled code, whose recomputation leaves no ops in the trace."""
_ELSEWHERE, _ENGINE, _AGAIN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Recomputation:
    """How often forward is recomputed, over all ranks."""

    products: float
    """Recomputed FLOP of matrix products divided by those of forward: 1 if each forward ran once more."""
    attention: float
    """Recomputed attention ops divided by those of forward; NaN if the trace has none."""

    @property
    def most(self) -> float:
        """The larger of the two ratios."""
        return float(np.nanmax([self.products, self.attention]))


@memoized("recomputation")
def measured(tables: TableSet) -> Recomputation | None:
    """Return how often forward is recomputed, or `None` if the ops do not show it (no engine, compiled code)."""
    forward, recomputed = _Tally(), _Tally()
    for rank in tables.ranks:
        ops = tables.columns("ops", rank)
        if not _shows_recomputation(ops):
            return None
        runs_again = ops_run_again(ops)
        # Count each op that launches work once: it may launch several kernels, and enclosing ops repeat its shapes.
        work = distinct(rows_of(ops["event"], tables.columns("activities", rank)["op_event"]))
        work = work[work >= 0]
        recomputed.add(ops, work[runs_again[work]])
        forward.add(ops, work[ops.matches("phase", "forward")[work]])
    if not forward.product_flop:
        return None
    attention = recomputed.attention_ops / forward.attention_ops if forward.attention_ops else float("nan")
    return Recomputation(recomputed.product_flop / forward.product_flop, attention)


def nodes_run_again(tables: TableSet, nodes: Nodes) -> Flags:
    """Mark the measured nodes that are recomputation: device work, and the host calls that launched it."""
    is_again = np.zeros(len(nodes), dtype=bool)
    for rank in tables.ranks:
        ops, work = tables.columns("ops", rank), tables.columns("activities", rank)
        runs_again = ops_run_again(ops)
        op_row = rows_of(ops["event"], work["op_event"])
        work_again = lookup(runs_again, op_row, missing=False)
        if not (work["launch_event"] >= 0).any():
            # On a CPU, work that is not an op (a timed wait in its place) is recomputed if the ops around it are.
            computes = work.matches("kind", "compute") & (op_row < 0)
            work_again |= computes & time_of(ops, runs_again).holds(work["start_ns"])
        rows = nodes.of_rank(rank)
        event = nodes.event[rows] if nodes.event is not None else rows
        launched = np.isin(event, work["launch_event"][work_again])
        is_again[rows] = np.where(nodes.of_host[rows], launched, np.isin(event, work["event"][work_again]))
    return is_again


def ops_run_again(ops: Columns) -> Flags:
    """Mark the ops that are a forward inside backward, by the rule at the top of this file."""
    is_engine = ops.satisfies("name", lambda name: name.startswith(ENGINE))
    parent = rows_of(ops["event"], ops["parent"])
    under_engine = lookup(is_engine, parent, missing=False)  # parent -1: a top-level op
    builds_graph = (ops["sequence"] >= 0) & ~is_engine & ~under_engine
    # Place of each op: that of its parent, unless an engine or a forward inside the engine begins here. Filled level by
    # level from the outside; the last entry is the parent of top-level ops.
    place = np.append(np.where(is_engine, _ENGINE, _ELSEWHERE), _ELSEWHERE)
    depth = ops["depth"]
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero((depth == level) & ~is_engine)
        around = place[parent[rows]]
        place[rows] = np.where(builds_graph[rows] & (around == _ENGINE), _AGAIN, around)
    return np.asarray(place[:-1] == _AGAIN)


def _shows_recomputation(ops: Columns) -> bool:
    """Return whether autograd ran here and numbered its ops, and no code is compiled."""
    is_engine = ops.satisfies("name", lambda name: name.startswith(ENGINE))
    is_compiled = any(name.startswith(_COMPILED) for name in ops.codes("name")[1])
    return not is_compiled and bool((ops["sequence"][is_engine] >= 0).any())


class _Tally:
    """Totals over ops: FLOP of matrix products, and the number of attention ops."""

    def __init__(self) -> None:
        self.product_flop = 0.0
        self.attention_ops = 0

    def add(self, ops: Columns, rows: Ints) -> None:
        """Add the given rows of a rank's ops."""
        for shape, count in _shapes(ops, rows):
            self.product_flop += shape.flop * count
            self.attention_ops += count * (shape.family is Family.ATTENTION)


def _shapes(ops: Columns, rows: Ints) -> Iterator[tuple[Shape, int]]:
    """Yield each distinct shape of the given ops and the number of ops that have it."""
    columns = [ops.codes(name) for name in ("name", "input_dims", "input_types")]
    triples, place = combinations(*(codes[rows] for codes, _ in columns))
    for triple, count in zip(triples, np.bincount(place).tolist(), strict=True):
        yield shape_of(*(texts[code] for (_, texts), code in zip(columns, triple, strict=True))), count


# Gradients: each is complete when autograd has accumulated it for its parameter.

ACCUMULATES = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True, eq=False)
class Accumulated:
    """One rank's gradient accumulations, in order: host time on its own clock, number of elements, and step."""

    at: Ints
    elements: Ints
    step: Ints

    def completed(self, shares: Floats, step: int, since: int) -> Ints:
        """Return when each share of a step's gradients was complete, counted from `since`; empty if there are none."""
        rows = np.flatnonzero((self.step == step) & (self.at >= since))
        if not len(rows):
            return rows
        done = np.cumsum(self.elements[rows])
        needed = np.rint(shares * done[-1]).astype(np.int64)
        return np.asarray(self.at[rows][np.minimum(np.searchsorted(done, needed), len(rows) - 1)])


@memoized_of_rank
def accumulated(tables: TableSet, rank: int) -> Accumulated:
    """Return one rank's gradient accumulations."""
    ops = tables.columns("ops", rank)
    rows = sorted_by(ops["start_ns"], np.flatnonzero(ops.matches("name", ACCUMULATES)))
    codes, texts = ops.codes("input_dims")
    used = distinct(codes[rows])
    # Number of elements by shape code; only the shapes of accumulations are parsed.
    elements = np.ones(len(texts), np.int64)
    elements[used] = [_elements(texts[code]) for code in used.tolist()]
    return Accumulated(ops["start_ns"][rows], elements[codes[rows]], ops["step"][rows])


def _elements(text: str) -> int:
    """Return the number of elements of an op's first input, or 1 if its shape was not recorded."""
    try:
        first = json.loads(text)[0]
        return max(1, int(np.prod(np.array(first, np.int64))))
    except (ValueError, LookupError, TypeError):
        return 1
