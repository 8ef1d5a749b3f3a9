"""What ran in the step? Ops, kernels and calls, told apart by name, shape and place, with their time per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.gate.measured import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.tables.columns import Columns
    from usp_prof.tables.table_set import TableSet

KEPT = 200
"""So many of each sort are kept, by time; the rest is too small to explain anything."""

_Key = tuple[str, str, str]


def work_of(tables: TableSet) -> tuple[Work, ...]:
    """List the work of a run: mean time and number per step and rank, largest first within each sort."""
    sums: dict[str, dict[_Key, list[float]]] = {"call": {}, "kernel": {}, "op": {}, "host op": {}}
    rank_steps = 0
    for rank in tables.ranks:
        rank_steps += int((tables.columns("steps", rank)["step"] >= 0).sum())
        on_device = len(tables.columns("kernels", rank)) > 0
        _add(sums["host op" if on_device else "op"], _ops(tables.columns("ops", rank)))
        _add(sums["kernel"], _kernels(tables.columns("kernels", rank)))
        _add(sums["call"], _calls(tables.columns("collectives", rank)))
    found: list[Work] = []
    for sort, rows in sums.items():
        listed = [Work(sort, *key, ns / max(rank_steps, 1), n / max(rank_steps, 1)) for key, (ns, n) in rows.items()]
        listed.sort(key=lambda each: (-each.ns_per_step, each.name, each.shape, each.phase))
        found += listed[:KEPT]
    return tuple(found)


def _ops(ops: Columns) -> list[tuple[_Key, float, float]]:
    return _grouped(ops, ("name", "input_dims", "phase"), ops["self_ns"])


def _kernels(kernels: Columns) -> list[tuple[_Key, float, float]]:
    rows = _grouped(kernels, ("name", "op", "kind"), kernels["dur_ns"])
    return [((name, f"of {op}" if op else "", ""), ns, n) for (name, op, _), ns, n in rows]


def _calls(parts: Columns) -> list[tuple[_Key, float, float]]:
    size = np.maximum(parts["in_bytes"], parts["out_bytes"])
    rows = []
    for each in np.unique(size).tolist():
        some = parts.take(size == each)
        shape = f"{each} B" if each >= 0 else ""
        rows += [
            ((f"{axis} {op}", shape, ""), ns, n)
            for (op, axis, _), ns, n in _grouped(some, ("op", "axis", "dtype"), some["dur_ns"])
        ]
    return rows


def _grouped(table: Columns, names: Sequence[str], time: NDArray[np.int64]) -> list[tuple[_Key, float, float]]:
    """Sum the time and the number of the rows inside steps, by three text columns."""
    inside = table["step"] >= 0
    if not inside.any():
        return []
    coded = [table.codes(name) for name in names]
    index = np.zeros(len(table), dtype=np.int64)
    for codes, texts in coded:
        index = index * (len(texts) + 1) + codes
    groups, where = np.unique(index[inside], return_inverse=True)
    first = np.full(len(groups), -1)
    rows = np.flatnonzero(inside)
    first[where[::-1]] = rows[::-1]
    total = np.bincount(where, weights=time[inside].astype(np.float64))
    count = np.bincount(where)
    keys = zip(*([values[code] for code in codes[first].tolist()] for codes, values in coded), strict=True)
    return [((a, b, c), ns, float(n)) for (a, b, c), ns, n in zip(keys, total.tolist(), count.tolist(), strict=True)]


def _add(sums: dict[_Key, list[float]], rows: list[tuple[_Key, float, float]]) -> None:
    for key, ns, number in rows:
        slot = sums.setdefault(key, [0.0, 0.0])
        slot[0] += ns
        slot[1] += number
