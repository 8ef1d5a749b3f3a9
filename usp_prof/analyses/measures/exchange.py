"""Exchanges: traffic of sends and receives by direction, and how unevenly an all-to-all spreads over participants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import group_codes, numbered, per_code, rows_by_code
from usp_prof.columns.table import Columns
from usp_prof.model.topology import ranks_in_key
from usp_prof.tables import calls as call_table
from usp_prof.tables.events.arguments import recorded_list
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
    """All-to-alls of one axis: imbalance of received bytes, and bytes by (source, target) if splits are recorded."""

    axis: str
    calls: int
    imbalance: float
    sent: tuple[tuple[int, int, int], ...]
    """(source, target, bytes), largest first."""


def pairs(tables: TableSet, calls: Columns) -> tuple[Pair, ...]:
    """Return the traffic of matched sends and receives by direction."""
    row_of_call = _rows(tables, calls, calls["complete"] & calls.matches("matched_by", "p2p"))
    axis_codes, axis_names = calls.codes("axis")
    directions = []
    for rank in tables.ranks if (row_of_call >= 0).any() else ():
        parts = call_table.match_calls(tables).parts.of_rank(rank, "call", "part", "wait_ns", "transfer_ns")
        collectives = tables.columns("collectives", rank)
        is_receive = collectives.matches("op", "recv")[parts["part"]]
        receives = np.flatnonzero(is_receive & (row_of_call[parts["call"]] >= 0))
        row = row_of_call[parts["call"][receives]]
        sender, axis = collectives["peer"][parts["part"][receives]], axis_codes[row]
        for places in rows_by_code(group_codes(sender, axis)).values():
            size, first = calls["bytes"][row[places]], places[0]
            directions.append(
                Pair(
                    source=int(sender[first]),
                    target=rank,
                    axis=axis_names[axis[first]],
                    transfers=len(places),
                    bytes=int(size.sum()) if (size >= 0).all() else -1,
                    wait_ns=float(np.median(parts["wait_ns"][receives[places]])),
                    transfer_ns=float(np.median(parts["transfer_ns"][receives[places]])),
                )
            )
    return tuple(sorted(directions, key=lambda pair: (pair.axis, pair.source, pair.target)))


def exchanges(tables: TableSet, calls: Columns) -> tuple[Exchange, ...]:
    """Return the imbalance of all-to-alls per axis: largest over mean bytes that a participant receives."""
    wanted = calls["complete"] & calls.matches("op", "all_to_all")
    if not wanted.any():
        return ()
    row_of_call = _rows(tables, calls, wanted)
    ratio = np.full(len(calls), np.nan)
    all_parts = call_table.match_calls(tables).parts
    received_of_ranks = (
        {"received": columns["out_bytes"]} for _, columns in tables.one_by_one("collectives", all_parts.ranks)
    )
    parts = all_parts.by_call("call", "received", extra_columns=received_of_ranks)
    row = row_of_call[parts["call"]]
    rows, call = numbered(row[row >= 0])
    received = parts["received"][row >= 0]
    smallest, largest, total = (
        per_code(call, received, reduce, len(rows)) for reduce in (np.minimum, np.maximum, np.add)
    )
    is_known = (smallest >= 0) & (total > 0)  # -1: the bytes received are not recorded
    ratio[rows] = np.where(is_known, largest * np.bincount(call) / np.maximum(total, 1), np.nan)
    sent = _sent(tables, calls, row_of_call)
    measured = []
    for name in sorted(set(calls["axis"][wanted].tolist())):
        on_axis = wanted & calls.matches("axis", name)
        ratios = ratio[on_axis & ~np.isnan(ratio)]
        if len(ratios):
            measured.append(Exchange(name, int(on_axis.sum()), float(np.mean(ratios)), sent.get(name, ())))
    return tuple(measured)


def _rows(tables: TableSet, calls: Columns, wanted: Flags) -> Ints:
    """Return for each call number its row in `calls`, or -1 for calls that are not wanted."""
    row_of_call = np.full(len(call_table.match_calls(tables).columns()), -1, np.int64)
    row_of_call[calls["call"][wanted]] = np.flatnonzero(wanted)
    return row_of_call


def _sent(tables: TableSet, calls: Columns, row_of_call: Ints) -> dict[str, tuple[tuple[int, int, int], ...]]:
    """Return bytes by axis, source and target from recorded split sizes. Equal splits are processed once."""
    group_of_call, group_keys = calls.codes("group")
    # Bytes by axis, source and target.
    sums: dict[tuple[str, int, int], float] = {}
    for rank in tables.ranks:
        parts = call_table.match_calls(tables).parts.of_rank(rank, "call", "part")
        row = row_of_call[parts["call"]]
        part, row = parts["part"][row >= 0], row[row >= 0]
        if not len(row):
            continue
        collectives = tables.columns("collectives", rank)
        columns = calls["axis"][row], group_of_call[row], collectives["in_split"][part], collectives["in_bytes"][part]
        count_of_kind = Counter(zip(*(column.tolist() for column in columns), strict=True))
        for (name, code, text, size), repeated in sorted(count_of_kind.items()):
            members = ranks_in_key(group_keys[code])
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


def _split(text: str) -> list[int]:
    sizes = recorded_list(text)
    return sizes if all(isinstance(size, int) for size in sizes) else []
