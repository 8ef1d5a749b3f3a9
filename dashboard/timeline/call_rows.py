"""When did the calls run? Each group has rows of its own: waiting for the last member, then the transfer."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np

from dashboard.timeline.rows import Row, Slices, category_number, depths
from dashboard.timeline.store import load, write
from usp_prof.model.health import spans
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity
from usp_prof.tables import calls

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from dashboard.timeline.store import TimelineStore
    from usp_prof.tables.columns import Columns
    from usp_prof.tables.table_set import TableSet

FORM = "calls-2"
"""What is kept, and the version of its form."""
MOST_GROUPS = 256
WAITING = "annotation"
"""The category whose quiet colour shows waiting."""


def prepare(tables: TableSet, folder: Path) -> None:
    """Build and write the rows of every group; of very many, those with the most calls."""
    table = calls.of(tables).columns()
    codes, keys = table.codes("group")
    axes, axis_names = table.codes("axis")
    counts = np.bincount(codes, minlength=len(keys)) if len(codes) else np.zeros(0, np.int64)
    kept = [code for code in np.argsort(-counts, kind="stable")[:MOST_GROUPS].tolist() if counts[code]]
    titles = {code: _title(axis_names[int(axes[codes == code][0])], keys[code]) for code in kept}
    kept.sort(key=lambda code: titles[code])
    for number, code in enumerate(kept):
        write(_rows(table, np.flatnonzero(codes == code), number), folder / f"rank{number}")
    labels = {number: titles[code] for number, code in enumerate(kept)}
    (folder / "run.json").write_text(json.dumps({"steps": [], "labels": labels}), encoding="utf-8")


def open_rows(folder: Path) -> TimelineStore:
    """Open prepared rows; a group's number stands where a rank's does."""
    labels = json.loads((folder / "run.json").read_text(encoding="utf-8"))["labels"]
    store = load(folder, [int(number) for number in labels])
    store.labels = {int(number): label for number, label in labels.items()}
    return store


def _title(axis: str, key: str) -> str:
    """Call a group by its axis and members."""
    members = key.rpartition("@")[2]
    if re.fullmatch(r"\d+(,\d+)*", members):
        members = spans(int(rank) for rank in members.split(",")).replace(" ", "")
    return f"{axis or 'unknown'} {members}" if len(members) <= 20 else f"{axis or 'unknown'} {members[:17]}..."


def _rows(table: Columns, rows: NDArray[np.int64], number: int) -> Slices:
    first, last, end = (table[name][rows] for name in ("first_ns", "last_ns", "end_ns"))
    last = np.clip(last, first, end)
    depth = depths(first, end - first)
    ops, op_names = table.codes("op")
    axes, axis_names = table.codes("axis")
    texts = [
        f"{op_names[op]} {quantity(size, Unit.BYTES)}"
        for op, size in zip(ops[rows].tolist(), table["bytes"][rows].tolist(), strict=True)
    ]
    waits = [f"waiting for rank {late}" if late >= 0 else "waiting" for late in table["late_rank"][rows].tolist()]
    names = {name: place for place, name in enumerate(dict.fromkeys([*waits, *texts]))}
    start, dur = np.concatenate([first, last]), np.concatenate([last - first, end - last])
    name = np.array([names[text] for text in (*waits, *texts)], np.int64)
    axis = np.array([category_number(axis_names[code] or "unknown") for code in axes[rows].tolist()])
    category = np.concatenate([np.full(len(rows), category_number(WAITING)), axis]).astype(np.uint8)
    lane = np.concatenate([depth, depth])
    order = np.lexsort((start, lane))
    order = order[dur[order] > 0]
    lanes = int(depth.max(initial=0)) + 1
    offsets = np.searchsorted(lane[order], np.arange(lanes + 1))
    return Slices(
        tuple(Row(number, "", "device", level) for level in range(lanes)),
        offsets.astype(np.int64), start[order], dur[order], np.full(len(order), -1), name[order], category[order],
        tuple(names),
    )  # fmt: skip
