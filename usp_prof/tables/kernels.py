"""Table of kernels: device work, its kind, and the op that launched it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from usp_prof import limits
from usp_prof.columns.arrays import Ints
from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Kind, Schema, flag, integer, real, text
from usp_prof.tables.build import table
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.classification import KINDS
from usp_prof.tables.events.frame import EventFrame, compact
from usp_prof.tables.events.links import Links, streams
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "kernels",
    "Device work: kernels, copies and memsets of GPU traces, linked to launch and CPU op if the trace shows them.",
    (
        RANK,
        EVENT,
        text("name", "Kernel name."),
        text("kind", "compute, communication, memcpy or memset, by the classification table."),
        text("library", "Library of a communication kernel (nccl, rccl, deepep, nvshmem, multimem, ...)."),
        integer("device", "Device index."),
        integer("stream", "Stream."),
        integer("lane", "Lane within the stream: 0, and 1, 2, ... where kernels of one stream overlap."),
        START,
        DURATION,
        integer("correlation", "Correlation id."),
        integer("launch_event", "Event of the runtime or driver call that launched it; -1 when unlinked."),
        integer("op_event", "Event of the innermost CPU op around the launch; -1 when unlinked."),
        text("op", "Name of that CPU op."),
        integer("graph", "CUDA graph id when launched by a graph."),
        integer("bytes", "Bytes moved by a copy or memset.", "bytes"),
        real("occupancy", "Estimated achieved occupancy, as written.", "%"),
        integer("blocks", "Number of thread blocks in the grid."),
        integer("threads_per_block", "Threads in a block."),
        flag("before_window", "Launched before recording began: its launch is not in the trace."),
        STEP,
    ),
)

_FIELDS = (
    Field("bytes", "bytes", within=limits.COUNT),
    Field("size", "size", within=limits.COUNT),
    Field("occupancy", "est. achieved occupancy %", Kind.FLOAT),
    Field("graph", "graph id"),
    *(Field(f"grid{axis}", "grid", item=axis, within=limits.GRID[axis]) for axis in range(3)),
    *(Field(f"block{axis}", "block", item=axis, within=limits.BLOCK[axis]) for axis in range(3)),
)


def build(frame: EventFrame, links: Links, steps: Steps) -> pa.Table:
    """Build the table: one row per piece of device work, with or without a known launch."""
    rows = links.work
    args = frame.launched(rows, _FIELDS)
    columns = {
        **frame.event_columns(rows),
        "name": frame.text("name", rows),
        "kind": compact(links.kind, KINDS),
        "library": links.library,
        "device": frame.ints("device", rows),
        "stream": streams(frame, rows),
        "lane": links.lane,
        "correlation": frame.ints("correlation", rows),
        "launch_event": frame.event_at(links.call),
        "op_event": frame.event_at(links.op),
        "op": _op_names(frame, links.op),
        "graph": args["graph"],
        "bytes": np.where(args["bytes"] >= 0, args["bytes"], args["size"]),
        "occupancy": args["occupancy"],
        "blocks": _product(args, "grid"),
        "threads_per_block": _product(args, "block"),
        "before_window": links.before_window,
        "step": steps.of_device(frame.start[rows]),
    }
    return table(SCHEMA, columns, len(rows))


def _op_names(frame: EventFrame, ops: Ints) -> pa.DictionaryArray:
    codes, values = frame.codes("name")
    own = np.where(ops >= 0, codes[np.maximum(ops, 0)], len(values)) if len(frame) else ops
    return compact(own, [*values, ""])


def _product(args: dict[str, Ints], prefix: str) -> Ints:
    x, y, z = (args[f"{prefix}{axis}"] for axis in range(3))
    return np.where((x >= 0) & (y >= 0) & (z >= 0), x * y * z, -1)
