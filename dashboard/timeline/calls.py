"""Rows of calls: one row per group; a call is the wait for the last member, then the transfer."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from usp_prof.analyses.stragglers import compute as stragglers_of
from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import text_codes
from usp_prof.columns.table import Columns
from usp_prof.model.metric import Unit
from usp_prof.model.printable import spans
from usp_prof.model.topology import ranks_in_key
from usp_prof.report.format import quantity
from usp_prof.tables.calls import match_calls as calls_of
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.rows import Slices, Track, category_number, depths, slices_of
from usp_prof.timeline.store import TimelineStore, load, write

CALLS_FORM = "calls-9"
"""Name and version of the stored format."""
MOST_GROUPS = 256
MOST_LETTERS = 20
"""Maximum number of letters for members; longer lists are cut."""
WAITING = "annotation"
"""Category whose muted color shows waiting."""


def prepare_calls(tables: TableSet, folder: Path) -> None:
    """Build and write the rows of every group, longest wait first; if too many, of those with the most calls."""
    table = calls_of(tables).columns()
    group_code, keys = table.codes("group")
    axis_code, axis_names = table.codes("axis")
    counts = np.bincount(group_code, minlength=len(keys)) if len(group_code) else np.zeros(0, np.int64)
    most_calls_first = np.argsort(-counts, kind="stable")[:MOST_GROUPS].tolist()
    groups = [group for group in most_calls_first if counts[group]]
    calls_of_group = {group: np.flatnonzero(group_code == group) for group in groups}
    titles = {}
    for group, calls in calls_of_group.items():
        axis = axis_names[int(axis_code[calls[0]])]
        titles[group] = _title_of_group(axis, keys[group])
    waited = np.zeros(len(keys), np.int64)
    np.add.at(waited, group_code, np.maximum(table["last_ns"] - table["first_ns"], 0))
    groups.sort(key=lambda group: (-int(waited[group]), titles[group]))
    delayed = _delayed_ranks(tables)
    for number, group in enumerate(groups):
        write(_slices_of_group(table, calls_of_group[group], number, delayed), folder / f"rank{number}")
    labels = {number: titles[group] for number, group in enumerate(groups)}
    (folder / "run.json").write_text(json.dumps({"steps": [], "labels": labels}), encoding="utf-8")


def _delayed_ranks(tables: TableSet) -> set[tuple[int, str]]:
    """Return ranks, with the axis, that are late mostly because other ranks delay them."""
    lateness = stragglers_of(tables).lateness
    return {(late.rank, late.axis) for late in lateness if late.own_ns < late.late_by_ns / 2}


def open_calls(folder: Path) -> TimelineStore:
    """Open prepared rows; a group's number takes the place of a rank."""
    labels = json.loads((folder / "run.json").read_text(encoding="utf-8"))["labels"]
    store = load(folder, [int(number) for number in labels])
    store.labels = {int(number): label for number, label in labels.items()}
    return store


def _title_of_group(axis: str, key: str) -> str:
    """Return a group's title: its axis and members."""
    members = key.rpartition("@")[2]
    if ranks := ranks_in_key(key):
        strides = {after - before for before, after in pairwise(ranks)}
        # Equally spaced ranks are shortened to the first two and the last: 3, 7, ..., 31.
        even = len(ranks) > 3 and len(strides) == 1 and strides != {1}
        members = f"{ranks[0]},{ranks[1]}..{ranks[-1]}" if even else spans(ranks).replace(" ", "")
    if len(members) > MOST_LETTERS:
        members = f"{members[: MOST_LETTERS - 3]}..."
    return f"{axis or 'unknown'} {members}"


def _slices_of_group(table: Columns, rows: Ints, number: int, delayed: set[tuple[int, str]]) -> Slices:
    """Build the waits and transfers of a group's calls; names start with what a narrow slice should show."""
    first, last, end = (table[name][rows] for name in ("first_ns", "last_ns", "end_ns"))
    last = np.clip(last, first, end)
    depth = depths(first, end - first)
    op_code, op_names = table.codes("op")
    axis_code, axis_names = table.codes("axis")
    sizes = zip(op_code[rows].tolist(), table["bytes"][rows].tolist(), strict=True)
    transfers = [
        f"{op_names[op]} ({quantity(size, Unit.BYTES)})" if size >= 0 else op_names[op] for op, size in sizes
    ]  # labels leave out what is in parentheses: half a size would be wrong
    axes = [axis_names[code] for code in axis_code[rows].tolist()]
    late_ranks = table["late_rank"][rows].tolist()
    waits = [
        "waiting" if late < 0 else f"delayed (waiting for rank {late}, itself delayed)" if (late, axis) in delayed
        else f"waiting for rank {late}"
        for late, axis in zip(late_ranks, axes, strict=True)
    ]  # fmt: skip
    # Each call has two slices: first all waits, then all transfers.
    code, names = text_codes([*waits, *transfers])
    start = np.concatenate([first, last])
    dur = np.concatenate([last - first, end - last])
    axis = np.array([category_number(name or "unknown") for name in axes])
    category = np.concatenate([np.full(len(rows), category_number(WAITING)), axis]).astype(np.uint8)
    lane = np.concatenate([depth, depth])
    shown = np.flatnonzero(dur > 0)
    track = Track("", "device", "", lane[shown], start[shown], dur[shown], np.full(len(shown), -1), code[shown], names,
                  category[shown])  # fmt: skip
    return slices_of(number, [track])
