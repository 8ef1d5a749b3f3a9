"""Work of nodes: phase and pipeline action, op with its shapes, message.

The host tells all of it: a kernel belongs where its launch lies, work on a CPU where it begins.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_rows, group_codes, lookup, rows_of
from usp_prof.model.hardware import Precision, element_bytes, precision
from usp_prof.replay.build import graph_of
from usp_prof.tables import calls
from usp_prof.tables.events.phases import PHASES, phase_of_mark

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns
    from usp_prof.replay.graph import Ints
    from usp_prof.tables.table_set import TableSet


_PRODUCTS = {
    "aten::mm": 0, "aten::bmm": 0, "aten::matmul": 0, "aten::addmm": 1, "aten::addmm_": 1, "aten::baddbmm": 1,
    "aten::_scaled_mm": 0, "aten::_grouped_mm": 0, "aten::linear": 0, "aten::_addmm_activation": 1,
}  # fmt: skip
"""Matrix products, with the place of their left factor."""
_ATTENTION = re.compile(r"attention|flash|sdpa", re.IGNORECASE)


class Family(StrEnum):
    """What kind of work an op is."""

    PRODUCT = "product"
    ATTENTION = "attention"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Shape:
    """An op with its shapes; `flop` is 0 where no formula is known."""

    name: str
    family: Family
    flop: float
    sizes: frozenset[int]
    """All sizes in its inputs."""
    precision: Precision | None
    rows: int = 0
    """Of a product: its rows."""


def shape_of(name: str, dims: str, types: str) -> Shape:
    """Read an op's shapes; what cannot be read is an op of another family."""
    tensors = _list(dims)
    kinds = _list(types)
    kind = next((found for text in kinds if isinstance(text, str) and (found := precision(text))), None)
    sizes = frozenset(size for tensor in tensors for size in _sizes(tensor))
    if name in _PRODUCTS:
        flop, rows = _product(name, tensors)
        return Shape(name, Family.PRODUCT, flop, sizes, kind, rows)
    return Shape(name, Family.ATTENTION if _ATTENTION.search(name) else Family.OTHER, 0.0, sizes, kind)


def _product(name: str, tensors: list[object]) -> tuple[float, int]:
    left = _PRODUCTS[name]
    if len(tensors) < left + 2:
        return 0.0, 0
    one, other = (_sizes(tensor) for tensor in tensors[left : left + 2])
    if len(one) < 2 or len(other) < 2:
        return 0.0, 0
    columns = other[0] if name == "aten::linear" else other[-1]
    return 2.0 * prod(one) * columns, prod(one[:-1])


def _sizes(tensor: object) -> list[int]:
    if not isinstance(tensor, list):
        return []
    return [int(size) for size in tensor if isinstance(size, int)]


def _list(text: str) -> list[object]:
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []


FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
_KINDS = ("F", "B", "I", "W")


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Parallel to the graph's measured nodes; -1 where a thing is not known or does not apply."""

    phase: Ints
    """FORWARD, BACKWARD, OPTIMIZER or 0."""
    kind: Ints
    """Place of the action's kind in F, B, I, W."""
    stage: Ints
    micro_batch: Ints
    shape: Ints
    """Place in `shapes` of the op behind a node."""
    shapes: tuple[Shape, ...]
    bytes: Ints
    """Of a communication's part: the larger of what went in and came out."""
    element: Ints
    """Bytes of one element of a communication."""
    issued_ns: Ints
    """When the host issued it, on its own clock."""

    def of_shapes(self, values: list[float] | list[bool]) -> NDArray[np.float64]:
        """Spread one figure for each shape over the nodes; 0 for nodes without."""
        return lookup(np.asarray(values, np.float64), self.shape, missing=0.0)


def work_of(tables: TableSet) -> Work:
    """Look at every node of a run's graph, once."""
    return tables.memo("whatif work", lambda: _work(tables))


def _work(tables: TableSet) -> Work:
    nodes = graph_of(tables).nodes
    columns = {
        name: np.full(len(nodes), -1, np.int64)
        for name in ("kind", "stage", "micro_batch", "shape", "bytes", "element", "issued_ns")
    }
    phase = np.zeros(len(nodes), np.int64)
    shapes: dict[tuple[str, str, str], int] = {}
    known: list[Shape] = []
    of_part = _messages(tables)
    for rank in tables.ranks:
        rows = nodes.of_rank(rank)
        host = nodes.of_host[rows]
        launches = tables.columns("launches", rank)
        if host.any() and nodes.event is not None:
            called = launches["start_ns"][rows_of(launches["event"], nodes.event[rows[host]])]
            columns["issued_ns"][rows[host]] = called
            _by_actions(tables, rank, called, rows[host], phase, columns)
        work = rows[~host]
        table = tables.columns("activities", rank)
        row = rows_of(table["event"], nodes.event[work] if nodes.event is not None else work)
        at = _moments(tables, rank, table)[row]
        columns["issued_ns"][work] = at
        ops = tables.columns("ops", rank)
        op = rows_of(ops["event"], table["op_event"][row])
        phase[work] = np.where(op >= 0, _phase_of_ops(ops)[op], 0)
        _by_marks(tables, rank, at, work, phase)
        _by_actions(tables, rank, at, work, phase, columns)
        columns["shape"][work] = _shapes(ops, op, shapes, known)
        part = table["collective"][row]
        for name in ("bytes", "element"):
            columns[name][work] = lookup(of_part[rank][name], part, missing=-1)
    return Work(phase, shapes=tuple(known), **columns)


def _moments(tables: TableSet, rank: int, work: Columns) -> Ints:
    """Give when the host issued each activity, on the rank's own clock."""
    launches = tables.columns("launches", rank)
    call = rows_of(launches["event"], work["launch_event"])
    return np.where(call >= 0, lookup(launches["start_ns"], call, missing=0), work["start_ns"])


def _phase_of_ops(ops: Columns) -> Ints:
    codes, texts = ops.codes("phase")
    return np.append(lookup([PHASES.index(text) for text in texts], codes, missing=0), 0)


def _by_marks(tables: TableSet, rank: int, at: Ints, work: Ints, phase: Ints) -> None:
    """Take the phase of the host's mark around; of several the one that began last."""
    marks = tables.columns("annotations", rank)
    codes, texts = marks.codes("name")
    meaning = lookup([phase_of_mark(text) for text in texts], codes, missing=0)
    rows = np.flatnonzero((meaning > 0) & ~marks["on_device"])
    rows = rows[np.argsort(marks["start_ns"][rows], kind="stable")]
    if not len(rows):
        return
    begin, end = marks["start_ns"][rows], (marks["start_ns"] + marks["dur_ns"])[rows]
    place = np.searchsorted(begin, at, side="right") - 1
    inside = (place >= 0) & (at < end[np.maximum(place, 0)])
    phase[work[inside]] = meaning[rows][place[inside]]


def _by_actions(tables: TableSet, rank: int, at: Ints, work: Ints, phase: Ints, columns: dict[str, Ints]) -> None:
    actions = tables.columns("actions", rank)
    order = np.argsort(actions["start_ns"], kind="stable")
    if not len(order):
        return
    begin, end = actions["start_ns"][order], (actions["start_ns"] + actions["dur_ns"])[order]
    place = np.searchsorted(begin, at, side="right") - 1
    inside = (place >= 0) & (at < end[np.maximum(place, 0)])
    rows, found = work[inside], order[place[inside]]
    codes, texts = actions.codes("kind")
    kind = lookup([_KINDS.index(text) if text in _KINDS else -1 for text in texts], codes, missing=-1)
    columns["kind"][rows] = kind[found]
    columns["stage"][rows] = actions["stage"][found]
    columns["micro_batch"][rows] = actions["micro_batch"][found]
    phase[rows] = np.where(kind[found] == 0, FORWARD, BACKWARD)


def _shapes(ops: Columns, op: Ints, codes: dict[tuple[str, str, str], int], known: list[Shape]) -> Ints:
    """Give each op's shape a number; each distinct one is read once."""
    names, dims, types = (ops.codes(name) for name in ("name", "input_dims", "input_types"))
    triple = np.stack([lookup(each[0], op, missing=-1) for each in (names, dims, types)])
    back = group_codes(*triple)
    number = []
    for name, dim, kind in triple[:, first_rows(back)].T.tolist():
        if name < 0:
            number.append(-1)
            continue
        key = (names[1][name], dims[1][dim], types[1][kind])
        if key not in codes:
            codes[key] = len(known)
            known.append(shape_of(*key))
        number.append(codes[key])
    return np.array(number, np.int64)[back]


def _messages(tables: TableSet) -> dict[int, dict[str, Ints]]:
    """Give the bytes and the element size of each rank's parts; bytes are those of the whole call where it is known."""
    found = {}
    for rank in tables.ranks:
        parts = tables.columns("collectives", rank)
        codes, texts = parts.codes("dtype")
        element = lookup([element_bytes(text) for text in texts], codes, missing=0)
        found[rank] = {"bytes": np.maximum(parts["in_bytes"], parts["out_bytes"]), "element": element}
    matched = calls.of(tables)
    if len(matched.part_columns()):
        of_parts = matched.part_columns()
        whole = matched.columns()["bytes"][of_parts["call"]]
        for rank in tables.ranks:
            mine = of_parts["rank"] == rank
            size = found[rank]["bytes"].copy()
            size[of_parts["part"][mine]] = np.maximum(size[of_parts["part"][mine]], whole[mine])
            found[rank]["bytes"] = size
    return found
