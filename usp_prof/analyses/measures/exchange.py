"""Exchanges: traffic of sends and receives by direction, and how unevenly an all-to-all spreads over its members."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, lookup, per_code, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    call: NDArray[np.int64]
    rank: NDArray[np.int64]
    row: NDArray[np.int64]
    """Row of the call among the chosen ones."""
    wait: NDArray[np.int64]
    transfer: NDArray[np.int64]
    part: NDArray[np.int64]


def pairs(tables: TableSet, calls: Columns, parts: Columns) -> tuple[Pair, ...]:
    """Sum up matched sends and receives by direction."""
    chosen = _chosen(calls, parts, calls["complete"] & calls.matches("matched_by", "p2p"))
    if not len(chosen.call):
        return ()
    receives = _texts(tables, chosen, "op") == "recv"
    peers = _numbers(tables, chosen, "peer")
    kept = np.flatnonzero(receives)
    direction = group_codes(peers[kept], chosen.rank[kept], calls.codes("axis")[0][chosen.row[kept]])
    found = []
    for code in range(int(direction.max()) + 1 if len(kept) else 0):
        rows = kept[direction == code]
        of_call = chosen.row[rows]
        found.append(
            Pair(
                int(peers[rows[0]]),
                int(chosen.rank[rows[0]]),
                str(calls["axis"][of_call[0]]),
                len(rows),
                int(calls["bytes"][of_call].sum()) if (calls["bytes"][of_call] >= 0).all() else -1,
                float(np.median(chosen.wait[rows])),
                float(np.median(chosen.transfer[rows])),
            )
        )
    return tuple(sorted(found, key=lambda p: (p.axis, p.source, p.target)))


def exchanges(tables: TableSet, calls: Columns, parts: Columns) -> tuple[Exchange, ...]:
    """Measure how unevenly all-to-alls fall on their members."""
    chosen = _chosen(calls, parts, calls["complete"] & calls.matches("op", "all_to_all"))
    if not len(chosen.call):
        return ()
    received = _numbers(tables, chosen, "out_bytes")
    codes = group_codes(chosen.row)
    count = int(codes.max()) + 1
    low = per_code(codes, received, np.minimum, count)
    largest, total = (per_code(codes, received, how, count) for how in (np.maximum, np.add))
    known = (low >= 0) & (total > 0)
    ratio = np.where(known, largest * np.bincount(codes) / np.maximum(total, 1), np.nan)
    axis = calls["axis"][np.unique(chosen.row)]
    sent = _sent(tables, calls, chosen)
    return tuple(
        Exchange(name, int((axis == name).sum()), float(np.mean(ratio[(axis == name) & known])), sent.get(name, ()))
        for name in sorted(set(axis.tolist()))
        if ((axis == name) & known).any()
    )


def _sent(tables: TableSet, calls: Columns, chosen: _Parts) -> dict[str, tuple[tuple[int, int, int], ...]]:
    """Add up bytes from member to member where the split sizes are written; loops over distinct splits only."""
    splits, names = _texts(tables, chosen, "in_split"), calls.codes("group")[1]
    group, axis = calls.codes("group")[0][chosen.row], calls["axis"][chosen.row]
    sizes = _numbers(tables, chosen, "in_bytes")
    sums: dict[tuple[str, int, int], float] = {}
    keys = list(zip(axis.tolist(), group.tolist(), chosen.rank.tolist(), splits.tolist(), sizes.tolist(), strict=True))
    distinct, times = np.unique(np.array([str(key) for key in keys]), return_index=True, return_counts=True)[1:]
    for first, repeated in zip(distinct.tolist(), times.tolist(), strict=True):
        name, code, rank, text, size = keys[first]
        members = _members(names[code])
        rows = _split(text)
        if len(rows) != len(members) or sum(rows) <= 0 or size < 0:
            continue
        for member, share in zip(members, rows, strict=True):
            key = (name, rank, member)
            sums[key] = sums.get(key, 0.0) + repeated * size * share / sum(rows)
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
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return found if isinstance(found, list) and all(isinstance(n, int) for n in found) else []


def _chosen(calls: Columns, parts: Columns, wanted: NDArray[np.bool_]) -> _Parts:
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


def _numbers(tables: TableSet, chosen: _Parts, name: str) -> NDArray[np.int64]:
    found = np.full(len(chosen.rank), -1, np.int64)
    for rank in np.unique(chosen.rank).tolist():
        mine = chosen.rank == rank
        found[mine] = tables.columns("collectives", rank)[name][chosen.part[mine]]
    return found


def _texts(tables: TableSet, chosen: _Parts, name: str) -> NDArray[np.object_]:
    found = np.full(len(chosen.rank), "", object)
    for rank in np.unique(chosen.rank).tolist():
        mine = chosen.rank == rank
        found[mine] = tables.columns("collectives", rank)[name][chosen.part[mine]]
    return found
