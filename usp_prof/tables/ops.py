"""Table of ops: CPU ops with their shapes, nested."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import Parted, numbers_of
from usp_prof.columns.rows import lookup, sorted_rows
from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Kind, Schema, integer, text
from usp_prof.tables.build import arrow_schema, table
from usp_prof.tables.events.arguments import Field, read_arguments
from usp_prof.tables.events.classification import PHASES, phase_finder
from usp_prof.tables.events.frame import HOST_OPS, EventFrame, compact
from usp_prof.tables.events.links import Links
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "ops",
    "CPU ops (aten, c10d, autograd, custom) with shapes and nesting.",
    (
        RANK,
        EVENT,
        text("name", "Op name."),
        text("thread", "Host thread."),
        START,
        DURATION,
        integer("self_ns", "Duration minus that of the ops directly inside it.", "ns"),
        integer("depth", "How many ops of the same thread enclose it."),
        integer("parent", "Event of the op that directly encloses it; -1 at the top."),
        text("input_dims", "Shapes of the inputs as JSON text."),
        text("input_types", "Types of the inputs as JSON text."),
        text("concrete_inputs", "Scalar inputs as JSON text."),
        integer("external_id", "External id."),
        integer("sequence", "Autograd sequence number; connects a backward op to its forward op."),
        text("phase", "forward, backward, optimizer or empty, from marks, threads and names."),
        STEP,
    ),
)

_FIELDS = (
    Field("input_dims", "Input Dims", Kind.TEXT),
    Field("input_types", "Input type", Kind.TEXT),
    Field("concrete_inputs", "Concrete Inputs", Kind.TEXT),
)


def build(frame: EventFrame, links: Links, steps: Steps) -> Parted | pa.Table:
    """Build the table: every CPU op in order of start, outer ones first."""
    rows, depth, above = frame.rows(*HOST_OPS), links.op_depth, links.op_parent
    within = np.zeros(len(rows) + 1, np.int64)
    np.add.at(within, above, frame.duration[rows])  # top-level ops add to the last entry, which is not read
    parent_event = lookup(frame.event[rows], above, missing=-1)
    order = sorted_rows(frame.start[rows], depth)
    phases, inputs = phase_finder(frame), frame.record.inputs
    # Each distinct combination of inputs is parsed once.
    read = read_arguments(pa.chunked_array([inputs.texts]), np.arange(len(inputs.texts)), _FIELDS)
    texts = {name: (numbers_of(column.indices), column.dictionary.to_pylist()) for name, column in read.items()}

    def make(begin: int, end: int) -> pa.Table:
        place = order[begin:end]
        chosen = rows[place]
        start = frame.start[chosen]
        columns = {
            **frame.event_columns(chosen),
            "name": frame.text("name", chosen),
            "thread": frame.text("thread", chosen),
            "self_ns": np.maximum(frame.duration[chosen] - within[place], 0),
            "depth": depth[place].astype(np.int64),
            "parent": parent_event[place],
            "external_id": frame.ints("external_id", chosen),
            "sequence": frame.record.sequence[chosen].astype(np.int64),
            "phase": compact(phases(frame.track[chosen], start), PHASES),
            "step": steps.of_host(start),
            **{name: compact(codes[inputs.code[chosen]], values) for name, (codes, values) in texts.items()},
        }
        return table(SCHEMA, columns, len(chosen))

    return Parted(arrow_schema(SCHEMA), len(rows), make).if_long()
