"""Work of nodes: phase, pipeline action, op with its shapes, and message size.

All of it comes from the host side of the trace: a kernel is located by its launch, CPU work by its own start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import prod

import numpy as np

from usp_prof.columns.arrays import Floats, Ints
from usp_prof.columns.rows import first_rows, group_codes, lookup, range_at, rows_of, sorted_by
from usp_prof.columns.table import Columns
from usp_prof.contract import PIPELINE_KINDS
from usp_prof.model.hardware import Precision, element_bytes, precision
from usp_prof.replay.build import graph_of
from usp_prof.tables import calls
from usp_prof.tables.events.arguments import recorded_list
from usp_prof.tables.events.classification import PHASES, phase_of_mark
from usp_prof.tables.table_set import TableSet, memoized

_PRODUCTS = {
    "aten::mm": 0, "aten::bmm": 0, "aten::matmul": 0, "aten::addmm": 1, "aten::addmm_": 1, "aten::baddbmm": 1,
    "aten::_scaled_mm": 0, "aten::_grouped_mm": 0, "aten::linear": 0, "aten::_addmm_activation": 1,
}  # fmt: skip
"""Matrix products, with the position of their left factor among the inputs."""
_ATTENTION = re.compile(r"attention|flash|sdpa", re.IGNORECASE)


class Family(StrEnum):
    """Kind of work that an op does."""

    PRODUCT = "product"
    ATTENTION = "attention"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Shape:
    """An op with its shapes; `flop` is 0 if there is no formula for it."""

    name: str
    family: Family
    flop: float
    sizes: frozenset[int]
    """All dimension sizes of its inputs."""
    precision: Precision | None
    rows: int = 0
    """Number of rows of a matrix product; 0 for other ops."""


def shape_of(name: str, dims: str, types: str) -> Shape:
    """Parse an op's shapes; an unknown op belongs to the family OTHER."""
    tensors = recorded_list(dims)
    precisions = [precision(text) for text in recorded_list(types) if isinstance(text, str)]
    first_precision = next((read for read in precisions if read), None)
    sizes = frozenset(size for tensor in tensors for size in _sizes(tensor))
    if name in _PRODUCTS:
        flop, rows = _product(name, tensors)
        return Shape(name, Family.PRODUCT, flop, sizes, first_precision, rows)
    family = Family.ATTENTION if _ATTENTION.search(name) else Family.OTHER
    return Shape(name, family, 0.0, sizes, first_precision)


def _product(name: str, tensors: list[object]) -> tuple[float, int]:
    """Return the FLOP and the number of rows of a matrix product; zeros if its shapes are unknown.

    FLOP are 2 x rows x inner size x columns (multiply and add): (8, 4) times (4, 3) is 192 FLOP and 8 rows.
    """
    place = _PRODUCTS[name]
    factors = [_sizes(tensor) for tensor in tensors[place : place + 2]]
    if len(factors) < 2 or any(len(sizes) < 2 for sizes in factors):
        return 0.0, 0
    left, right = factors
    columns = right[0] if name == "aten::linear" else right[-1]  # linear takes its weight transposed
    return 2.0 * prod(left) * columns, prod(left[:-1])


def _sizes(tensor: object) -> list[int]:
    if not isinstance(tensor, list):
        return []
    return [int(size) for size in tensor if isinstance(size, int)]


FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
WEIGHT_GRADIENT = PIPELINE_KINDS.index("W")


@dataclass(frozen=True, slots=True, eq=False)
class NodeWork:
    """Work of each measured node: one entry per node in each array; -1 if unknown or not applicable."""

    phase: Ints
    """FORWARD, BACKWARD, OPTIMIZER or 0."""
    kind: Ints
    """Index of the action's kind in `PIPELINE_KINDS`; -1 outside of actions."""
    stage: Ints
    micro_batch: Ints
    shape: Ints
    """Index in `shapes` of the op that a node belongs to."""
    shapes: tuple[Shape, ...]
    bytes: Ints
    """Message size of communication: the larger of input and output bytes."""
    element: Ints
    """Bytes of one element of a communication."""
    issued_ns: Ints
    """When the host issued the work, on the host's own clock."""

    def of_shapes(self, values: list[float] | list[bool]) -> Floats:
        """Return the value of each node's shape; 0 for nodes without a shape."""
        return lookup(np.asarray(values, np.float64), self.shape, missing=0.0)


@memoized("whatif work")
def work_of(tables: TableSet) -> NodeWork:
    """Return the work of all nodes of a run's graph."""
    nodes = graph_of(tables).nodes
    # One entry per node of all ranks, filled rank by rank: first host calls, then device work.
    columns = {
        name: np.full(len(nodes), -1, np.int64)
        for name in ("kind", "stage", "micro_batch", "shape", "bytes", "element", "issued_ns")
    }
    phase = np.zeros(len(nodes), np.int64)
    number_of_shape: dict[tuple[str, str, str], int] = {}
    shapes: list[Shape] = []
    messages = _messages(tables)
    for rank in tables.ranks:
        rows = nodes.of_rank(rank)
        is_host = nodes.of_host[rows]
        launches = tables.columns("launches", rank)
        if is_host.any() and nodes.event is not None:
            calls_of_host = rows[is_host]
            called_ns = launches["start_ns"][rows_of(launches["event"], nodes.event[calls_of_host])]
            columns["issued_ns"][calls_of_host] = called_ns
            _by_actions(tables, rank, called_ns, calls_of_host, phase, columns)
        work = rows[~is_host]
        activities = tables.columns("activities", rank)
        # By device node: its row in `activities`, and when it was issued.
        row = rows_of(activities["event"], nodes.event[work] if nodes.event is not None else work)
        issued_ns = _issued_ns(launches, activities)[row]
        columns["issued_ns"][work] = issued_ns
        ops = tables.columns("ops", rank)
        op = rows_of(ops["event"], activities["op_event"][row])
        phase[work] = lookup(ops.by_text("phase", PHASES.index, missing=0), op, missing=0)
        _by_marks(tables, rank, issued_ns, work, phase)
        _by_actions(tables, rank, issued_ns, work, phase, columns)
        columns["shape"][work] = _shapes(ops, op, number_of_shape, shapes)
        part = activities["collective"][row]
        for name in ("bytes", "element"):
            columns[name][work] = lookup(messages[rank][name], part, missing=-1)
    return NodeWork(phase, shapes=tuple(shapes), **columns)


def _issued_ns(launches: Columns, activities: Columns) -> Ints:
    """Return when the host issued each activity: the start of its launch or, without one, its own start."""
    call = rows_of(launches["event"], activities["launch_event"])
    return np.where(call >= 0, lookup(launches["start_ns"], call, missing=0), activities["start_ns"])


def _by_marks(tables: TableSet, rank: int, at: Ints, work: Ints, phase: Ints) -> None:
    """Set the phase of each node from the innermost phase annotation of the host."""
    marks = tables.columns("annotations", rank)
    phase_of_row = marks.by_text("name", phase_of_mark, missing=0)
    around = _row_around(marks, np.flatnonzero((phase_of_row > 0) & ~marks["on_device"]), at)
    inside = around >= 0
    phase[work[inside]] = phase_of_row[around[inside]]


def _by_actions(tables: TableSet, rank: int, at: Ints, work: Ints, phase: Ints, columns: dict[str, Ints]) -> None:
    """Set kind, stage, micro-batch and phase of each node from the enclosing pipeline action."""
    actions = tables.columns("actions", rank)
    around = _row_around(actions, np.arange(len(actions)), at)
    nodes, action = work[around >= 0], around[around >= 0]
    kind = actions.by_text(
        "kind", lambda text: PIPELINE_KINDS.index(text) if text in PIPELINE_KINDS else -1, missing=-1
    )[action]
    columns["kind"][nodes] = kind
    columns["stage"][nodes] = actions["stage"][action]
    columns["micro_batch"][nodes] = actions["micro_batch"][action]
    phase[nodes] = np.where(kind == PIPELINE_KINDS.index("F"), FORWARD, BACKWARD)


def _row_around(ranges: Columns, rows: Ints, at: Ints) -> Ints:
    """Return for each moment the last of `rows` to start before it, if it still runs then; otherwise -1."""
    rows = sorted_by(ranges["start_ns"], rows)
    start = ranges["start_ns"][rows]
    return lookup(rows, range_at(start, start + ranges["dur_ns"][rows], at), missing=-1)


def _shapes(ops: Columns, op: Ints, number_of_shape: dict[tuple[str, str, str], int], shapes: list[Shape]) -> Ints:
    """Return the shape number of each node (-1: no op); add new shapes to `number_of_shape` and `shapes`."""
    columns = [ops.codes(name) for name in ("name", "input_dims", "input_types")]
    # One column per node: the codes of its op's name, dims and types; -1 without an op.
    codes_of_node = np.stack([lookup(codes, op, missing=-1) for codes, _ in columns])
    group = group_codes(*codes_of_node)
    # By group of nodes with equal codes: the number of their shape.
    number_of_group = []
    for of_group in codes_of_node[:, first_rows(group)].T.tolist():
        if of_group[0] < 0:
            number_of_group.append(-1)
            continue
        name, dims, types = (texts[code] for code, (_, texts) in zip(of_group, columns, strict=True))
        key = (name, dims, types)
        if key not in number_of_shape:
            number_of_shape[key] = len(shapes)
            shapes.append(shape_of(name, dims, types))
        number_of_group.append(number_of_shape[key])
    return np.array(number_of_group, np.int64)[group]


def _messages(tables: TableSet) -> dict[int, dict[str, Ints]]:
    """Return bytes and element size of each rank's communication parts; bytes are those of the full call if known."""
    messages: dict[int, dict[str, Ints]] = {}
    matched = calls.match_calls(tables)
    size_of_call = matched.columns()["bytes"]
    for rank in tables.ranks:
        collectives = tables.columns("collectives", rank)
        size = np.maximum(collectives["in_bytes"], collectives["out_bytes"])
        parts = matched.parts.of_rank(rank, "call", "part")
        size[parts["part"]] = np.maximum(size[parts["part"]], size_of_call[parts["call"]])
        messages[rank] = {"bytes": size, "element": collectives.by_text("dtype", element_bytes, missing=0)}
    return messages
