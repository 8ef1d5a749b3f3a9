"""Exchanges: traffic of sends and receives by direction, and how unevenly an all-to-all spreads over its members."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.columns.rows import group_codes, lookup, numbered, per_code, rows_by_code, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Pair:
    """Traffic from one rank to another; `wait_ns` is the receiver's median wait for the sender."""

    source: int
    target: int
    axis: str
    transfers: int
    bytes: int
    wait_ns: float
    transfer_ns: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """All-to-alls of one axis: imbalance of what members receive, and bytes by (source, target) where splits tell."""

    axis: str
    calls: int
    imbalance: float
    sent: tuple[tuple[int, int, int], ...]
    """(source, target, bytes), largest first."""


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Parts of the chosen calls: one entry a part in each array."""

    call: Ints
    rank: Ints
    row: Ints
    """Row of the call among the chosen ones."""
    wait: Ints
    transfer: Ints
    part: Ints
    """Row of its rank's `collectives`."""


def pairs(tables: TableSet, calls: Columns, parts: Columns) -> tuple[Pair, ...]:
    """Sum up matched sends and receives by direction."""
    chosen = _chosen(calls, parts, calls["complete"] & calls.matches("matched_by", "p2p"))
    if not len(chosen.call):
        return ()
    sender = _values(tables, chosen, "peer")
    receives = np.flatnonzero(_values(tables, chosen, "op") == "recv")
    axis = calls.codes("axis")[0][chosen.row]
    # One number for each sender, receiver and axis.
    direction = group_codes(sender[receives], chosen.rank[receives], axis[receives])
    directions = []
    for places in rows_by_code(direction).values():
        rows = receives[places]
        of_call = chosen.row[rows]
        size = calls["bytes"][of_call]
        directions.append(
            Pair(
                source=int(sender[rows[0]]),
                target=int(chosen.rank[rows[0]]),
                axis=str(calls["axis"][of_call[0]]),
                transfers=len(rows),
                bytes=int(size.sum()) if (size >= 0).all() else -1,
                wait_ns=float(np.median(chosen.wait[rows])),
                transfer_ns=float(np.median(chosen.transfer[rows])),
            )
        )
    return tuple(sorted(directions, key=lambda pair: (pair.axis, pair.source, pair.target)))


def exchanges(tables: TableSet, calls: Columns, parts: Columns) -> tuple[Exchange, ...]:
    """Measure how unevenly all-to-alls fall on their members: what the largest receives over the mean, call by call."""
    chosen = _chosen(calls, parts, calls["complete"] & calls.matches("op", "all_to_all"))
    if not len(chosen.call):
        return ()
    received = _values(tables, chosen, "out_bytes")
    # From here on one entry a call.
    row_of_call, call = numbered(chosen.row)
    smallest, largest, total = (
        per_code(call, received, reduce, len(row_of_call)) for reduce in (np.minimum, np.maximum, np.add)
    )
    is_known = (smallest >= 0) & (total > 0)  # -1: what a member received is not recorded
    ratio = np.where(is_known, largest * np.bincount(call) / np.maximum(total, 1), np.nan)
    axis = calls["axis"][row_of_call]
    sent = _sent(tables, calls, chosen)
    measured = []
    for name in sorted(set(axis.tolist())):
        on_axis = axis == name
        if (on_axis & is_known).any():
            imbalance = float(np.mean(ratio[on_axis & is_known]))
            measured.append(Exchange(name, int(on_axis.sum()), imbalance, sent.get(name, ())))
    return tuple(measured)


def _sent(tables: TableSet, calls: Columns, chosen: _Parts) -> dict[str, tuple[tuple[int, int, int], ...]]:
    """Add up bytes from member to member where the split sizes are written; loops over distinct splits only."""
    code_of_group, group_keys = calls.codes("group")
    group, axis = code_of_group[chosen.row], calls["axis"][chosen.row]
    splits, sizes = _values(tables, chosen, "in_split"), _values(tables, chosen, "in_bytes")
    # Bytes by axis, source and target.
    sums: dict[tuple[str, int, int], float] = {}
    keys = list(zip(axis.tolist(), group.tolist(), chosen.rank.tolist(), splits.tolist(), sizes.tolist(), strict=True))
    distinct, times = np.unique(np.array([str(key) for key in keys]), return_index=True, return_counts=True)[1:]
    for first, repeated in zip(distinct.tolist(), times.tolist(), strict=True):
        name, code, rank, text, size = keys[first]
        members = _members(group_keys[code])
        split = _split(text)
        if len(split) != len(members) or sum(split) <= 0 or size < 0:
            continue
        for member, share in zip(members, split, strict=True):
            key = (name, rank, member)
            sums[key] = sums.get(key, 0.0) + repeated * size * share / sum(split)
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return {
        name: tuple((source, target, round(total)) for (n, source, target), total in ordered if n == name)
        for name in sorted({key[0] for key in sums})
    }


def _members(group: str) -> list[int]:
    ranks = group.rpartition("@")[2]
    return [int(rank) for rank in ranks.split(",") if rank.strip().isdigit()]


def _split(text: str) -> list[int]:
    try:
        sizes = json.loads(text) if text else []
    except ValueError:
        return []
    return sizes if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes) else []


def _chosen(calls: Columns, parts: Columns, wanted: Flags) -> _Parts:
    row = rows_of(calls["call"], parts["call"])  # -1: a call that is not among these
    kept = lookup(wanted, row, missing=False)
    return _Parts(
        parts["call"][kept],
        parts["rank"][kept],
        row[kept],
        parts["wait_ns"][kept],
        parts["transfer_ns"][kept],
        parts["part"][kept],
    )


def _values(tables: TableSet, chosen: _Parts, name: str) -> NDArray[Any]:
    """Give a column of `collectives` for each of some parts (at least one)."""
    by_rank = rows_by_code(chosen.rank)
    columns = {rank: tables.columns("collectives", rank)[name] for rank in by_rank}
    values = np.empty(len(chosen.rank), next(iter(columns.values())).dtype)
    for rank, rows in by_rank.items():
        values[rows] = columns[rank][chosen.part[rows]]
    return values
