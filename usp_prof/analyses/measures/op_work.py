"""Op work: the op that each piece of device work belongs to, and what that op must compute and move.

A kernel belongs to the innermost op around its launch. If that op has no formula, it belongs to the nearest enclosing
op that has one. An op's FLOP count once, however many kernels it launched, and not at all if an op inside it counts
them: `aten::linear` leaves them to its `aten::mm`. Ops that compute and move nothing (views) own their kernels only if
no op around them has a formula.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from usp_prof.analyses import formulas
from usp_prof.analyses.formulas import Cost
from usp_prof.analyses.formulas.bandwidth import LIST, element_type
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, first_rows, group_codes, lookup, rows_of
from usp_prof.columns.table import Columns
from usp_prof.model.selection import Selection
from usp_prof.tables.table_set import TableSet

_FULL = ("fp32", "float32")


@dataclass(frozen=True, slots=True)
class OpKind:
    """Ops of one name and shape, and the cost of one of them; `cost` is `None` without a formula."""

    name: str
    dims: str
    types: str
    values: str
    cost: Cost | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RankWork:
    """One rank's compute; each array has one entry per activity."""

    names: list[str]
    name: Ints
    """Index into `names`."""
    event: Ints
    start_ns: Ints
    dur_ns: Ints
    kinds: list[OpKind]
    kind: Ints
    """Index into `kinds` of the op that it belongs to; -1 if unknown."""
    owner: Ints
    """Row in `ops` of that op; -1 if unknown."""
    step: Ints
    on_gpu: bool


def of_rank(tables: TableSet, rank: int, selection: Selection) -> RankWork:
    """Return one rank's compute in the selected steps, with the op and cost of each activity; memoized."""
    return tables.memo_of_rank(rank, ("op work", selection), lambda: _measure(tables, rank, selection))


def _measure(tables: TableSet, rank: int, selection: Selection) -> RankWork:
    activities = tables.columns("activities", rank)
    wanted = activities.matches("kind", "compute") & (activities["step"] >= 0)
    chosen = activities.take(wanted & tables.selects(selection, activities["step"]))
    ops = tables.columns("ops", rank)
    name, names = chosen.codes("name")
    # A run that trains in full precision has one type for all of its numbers.
    kinds, kind_of = _op_kinds(ops, "float" if tables.declared.dtype in _FULL else "")
    launcher = rows_of(ops["event"], chosen["op_event"])
    _set_list_costs(kinds, lookup(kind_of, launcher, missing=-1), name, names)
    owner = enclosing_ops(ops, chosen["op_event"], _counts_itself(ops, kinds, kind_of))
    owner = np.where(owner >= 0, owner, launcher)
    kind = np.where(owner >= 0, lookup(kind_of, owner, missing=-1), -1)
    event, start, dur = (chosen[column] for column in ("event", "start_ns", "dur_ns"))
    return RankWork(names, name, event, start, dur, kinds, kind, owner, chosen["step"], tables.ran_on_gpu(rank))


def _set_list_costs(kinds: list[OpKind], kind: Ints, name: Ints, names: list[str]) -> None:
    """Set the cost of ops on tensor lists by the element type in their kernels' names, if it is still missing."""
    has_no_cost = lookup([of_kind.cost is None and LIST in of_kind.types for of_kind in kinds], kind, missing=False)
    for place in distinct(kind[has_no_cost]).tolist():
        kernels = [names[code] for code in distinct(name[kind == place]).tolist()]
        element = next(filter(None, map(element_type, kernels)), "")
        if element:
            kinds[place] = replace(kinds[place], cost=_cost(kinds[place], element))


def _cost(kind: OpKind, lists: str) -> Cost | None:
    return formulas.cost(kind.name, formulas.parse(kind.dims, kind.types, kind.values, lists))


def _op_kinds(ops: Columns, lists: str) -> tuple[list[OpKind], Ints]:
    """Return the distinct ops by name and shape, and for each op row its index among them."""
    if not len(ops):
        return [], np.zeros(0, np.int64)
    coded = [ops.codes(name) for name in ("name", "input_dims", "input_types", "concrete_inputs")]
    group = group_codes(*(codes for codes, _ in coded))
    first = first_rows(group)
    kinds = []
    for row in first.tolist():
        name, dims, types, values = (texts[codes[row]] for codes, texts in coded)
        kinds.append(_kind(name, dims, types, values, lists))
    return kinds, group


@lru_cache(maxsize=1 << 14)
def _kind(name: str, dims: str, types: str, values: str, lists: str) -> OpKind:
    """Return the kind of one op with its cost. It is cached, since ranks run the same ops."""
    kind = OpKind(name, dims, types, values)
    return replace(kind, cost=_cost(kind, lists))


def _counts_itself(ops: Columns, kinds: list[OpKind], kind_of: Ints) -> Flags:
    """Return which ops count by their own formula: those with no op inside that counts the same work."""
    moves_bytes = lookup([kind.cost is not None and kind.cost.bytes > 0 for kind in kinds], kind_of, missing=False)
    multiplies = lookup([kind.cost is not None and kind.cost.flop > 0 for kind in kinds], kind_of, missing=False)
    parent = rows_of(ops["event"], ops["parent"])
    return moves_bytes & ~np.where(multiplies, _encloses(multiplies, parent), _encloses(moves_bytes, parent))


def _encloses(wanted: Flags, parent: Ints) -> Flags:
    """Return which ops contain a wanted op at any depth."""
    encloses = np.zeros(len(wanted), dtype=bool)
    # From the wanted ops outward, level by level. Ops that are already marked have been followed before.
    above = distinct(parent[wanted])
    above = above[above >= 0]
    while len(above):
        encloses[above] = True
        above = distinct(parent[above])
        above = above[above >= 0]
        above = above[~encloses[above]]
    return encloses


def enclosing_ops(ops: Columns, events: Ints, wanted: Flags) -> Ints:
    """Return the `ops` row of the innermost wanted op around each op, which may be the op itself; -1 without any.

    `wanted` has one entry per row of `ops`; `events` identifies ops by their event.
    """
    parent = rows_of(ops["event"], ops["parent"])
    # The row that each search has reached; -1 when it has ended, at a wanted op or at the top.
    current = rows_of(ops["event"], events)
    enclosing = np.full(len(current), -1, np.int64)
    while (current >= 0).any():
        is_wanted = lookup(wanted, current, missing=False)
        enclosing[is_wanted] = current[is_wanted]
        current = np.where(is_wanted, -1, lookup(parent, current, missing=-1))
    return enclosing
