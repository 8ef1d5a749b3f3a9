"""Table of activities: what kept a rank's device busy, in one form for GPU and CPU traces.

On GPU traces these are the kernels. On CPU-only traces, the compute lane is the computing thread (its leaf aten ops and
paced waits), and each gloo worker thread is a communication lane. Sends and receives are posted by the calling thread
and have their own lanes. Analyses read this table and need not know the kind of device.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import lookup, rows_of
from usp_prof.columns.table import Columns
from usp_prof.contract import parse_mark
from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, integer, text
from usp_prof.tables.build import empty, table
from usp_prof.tables.collectives import lanes_of
from usp_prof.tables.communication.parts import Parts
from usp_prof.tables.events.classification import KINDS
from usp_prof.tables.events.devices import lacks_device_work
from usp_prof.tables.events.frame import HOST_OPS, MARKS, EventFrame, compact
from usp_prof.tables.events.links import Links
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "activities",
    "Device work of GPU and CPU traces in one format. Activities of one lane never overlap; lanes may.",
    (
        RANK,
        EVENT,
        text("name", "Kernel or op name."),
        text("kind", "compute, communication, memcpy or memset."),
        text("lane", "Lane: 'stream 7', 'stream 7/1' for overlaps, 'cpu', 'gloo 13653', 'gloo p2p 0', ..."),
        START,
        DURATION,
        integer("collective", "Row in `collectives` of the same rank that this activity belongs to; -1 for none."),
        text("axis", "Parallel axis of a communication (dp, tp, cp, pp, ep, world, unknown); empty for other work."),
        integer("op_event", "Event of the CPU op that it belongs to; -1 when unknown."),
        integer("launch_event", "Event of the host call that launched it; -1 when unknown or on CPU."),
        STEP,
    ),
)

COMPUTING_LANE = "cpu"

# Host ops that are not computation: they post, wait, or only enclose other ops.
_NO_WORK = re.compile(
    r"c10d|_c10d_functional|autograd::|torch::autograd|torch::jit|profiler::|record_param_comms|symm_mem::|gloo:|nccl:"
)
# Those of them that wait for communication.
_WAITS = re.compile(r"_c10d_functional(_autograd)?::wait")


def build(frame: EventFrame, links: Links, parts: Parts, collectives: pa.Table, steps: Steps) -> pa.Table:
    """Build the table in order of start: the kernels, or on a CPU the computing threads' ops and gloo's ranges.

    A rank whose device was not recorded has no rows: its host ops launch the work, they are not the work.
    """
    if lacks_device_work(frame):
        return empty(SCHEMA)
    columns = _device(frame, links, parts) if len(links.work) else _host(frame, links, parts)
    row, collective = columns.pop("row"), columns["collective"]
    axis_of_part, axes = Columns(collectives).codes("axis")
    axis = lookup(axis_of_part, collective, missing=len(axes))  # -1 (no communication): the empty text after all axes
    columns |= {
        **frame.event_columns(row),
        "name": frame.text("name", row),
        "axis": compact(axis, [*axes, ""]),
        "step": steps.of_device(frame.start[row]),
    }
    return table(SCHEMA, columns, len(row))


def without_unpacking(activities: Columns) -> Columns:
    """Return a rank's activities without the copies with which gloo's threads unpack what arrived.

    They are part of the transfer.
    """
    unpacking_lanes = {
        lane.replace("gloo", COMPUTING_LANE) for lane in activities.codes("lane")[1] if lane.startswith("gloo")
    }
    return activities.take(~activities.satisfies("lane", unpacking_lanes.__contains__))


def _device(frame: EventFrame, links: Links, parts: Parts) -> dict[str, Any]:
    row = links.work
    return {
        "row": row,
        "kind": compact(links.kind, KINDS),
        "lane": compact(links.named_lane, links.lane_names),
        "collective": rows_of(parts.row, row),
        "op_event": frame.event_at(links.op),
        "launch_event": frame.event_at(links.call),
    }


def _host(frame: EventFrame, links: Links, parts: Parts) -> dict[str, Any]:
    """Return the computing ops, the paced waits that represent compute, and the parts."""
    compute = computing(frame)
    row = np.concatenate([compute, parts.row[: 0 if parts.on_host else None]])
    communication = np.arange(len(row)) >= len(compute)
    order = np.lexsort((row, frame.duration[row] > 0, frame.start[row]))
    row, communication = row[order], communication[order]
    collective = rows_of(parts.row, row) if not parts.on_host else np.full(len(row), -1)
    lanes, names = _host_lanes(frame, row, collective, lanes_of(frame, links, parts))
    op = np.where(communication, lookup(parts.post, collective, missing=-1), row)
    return {
        "row": row,
        "kind": compact(np.where(communication, 1, 0), KINDS),
        "lane": compact(lanes, names),
        "collective": collective,
        "op_event": frame.event_at(op),
        "launch_event": -1,
    }


def computing(frame: EventFrame) -> Ints:
    """Find the host events that count as computation.

    An op that spends at least half of its time outside inner ops counts, and so does a paced wait; inner ops are part
    of it. An op that only encloses others is represented by them:

        aten::linear 10 us, inside it aten::mm 9 us    -> aten::mm
        aten::dropout 10 us, inside it aten::empty 2 us    -> aten::dropout

    An op of a distributed tensor that waits for communication only encloses others, too:

        aten::add 10 us, inside it _c10d_functional::wait_tensor 3 us and aten::add 4 us    -> the inner aten::add
    """
    ops = frame.rows(*HOST_OPS)
    waiting = ops[frame.by_name(ops, lambda name: _WAITS.match(name) is not None)]
    ops = ops[~frame.by_name(ops, lambda name: _NO_WORK.match(name) is not None or "::" not in name)]
    marks = frame.rows(*MARKS)
    marks = marks[frame.by_name(marks, is_paced)]
    row = np.concatenate([ops, marks, waiting])
    tracks = frame.nested(row)
    levels = [np.flatnonzero(tracks.depth == depth) for depth in range(1, int(tracks.depth.max(initial=0)) + 1)]
    # Time of direct children by row. Parent -1, of top rows, adds to the last entry.
    inner_ns = np.zeros(len(row) + 1, np.int64)
    np.add.at(inner_ns, tracks.parent, frame.duration[row])
    waits = np.arange(len(row)) >= len(ops) + len(marks)
    for level in reversed(levels):  # from the inside: whether an op waits
        waits[tracks.parent[level[waits[level]]]] = True
    is_mark = (np.arange(len(row)) >= len(ops)) & ~waits
    is_whole = ((2 * inner_ns[:-1] <= frame.duration[row]) & ~waits) | is_mark
    # From the outside: whether an enclosing range already counts.
    is_covered = np.zeros(len(row), dtype=bool)
    for level in levels:
        parent = tracks.parent[level]
        is_covered[level] = is_covered[parent] | is_whole[parent]
    return np.asarray(row[is_whole & ~is_covered], np.int64)


def is_paced(name: str) -> bool:
    """Return whether an annotation marks a timed wait in the place of compute."""
    mark = parse_mark(name)
    return mark is not None and mark.area == "pace"


def _host_lanes(
    frame: EventFrame, row: Ints, collective: Ints, of_parts: tuple[Ints, list[str]]
) -> tuple[Ints, list[str]]:
    """Name the busiest computing thread cpu and others by their number; parts have their own lanes."""
    codes, threads = frame.codes("thread")
    thread = codes[row]
    count = np.bincount(thread[collective < 0], minlength=len(threads))
    busiest_first = sorted(np.flatnonzero(count).tolist(), key=lambda code: (-count[code], threads[code]))
    names = [
        COMPUTING_LANE if place == 0 else f"{COMPUTING_LANE} {threads[code]}"
        for place, code in enumerate(busiest_first)
    ]
    lane_of_thread = np.zeros(len(threads) + 1, np.int64)
    lane_of_thread[busiest_first] = np.arange(len(names))
    lanes, names_of_parts = of_parts
    lane_of_part = lookup(lanes, collective, missing=0) + len(names)
    return np.where(collective >= 0, lane_of_part, lane_of_thread[thread]), [*names, *names_of_parts]
