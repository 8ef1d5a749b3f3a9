"""What did the host run? CPU ops with shapes, nested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Kind, Schema, integer, text
from usp_prof.tables.arguments import Field, read_arguments
from usp_prof.tables.build import table
from usp_prof.tables.frame import HOST_OPS, compact
from usp_prof.tables.phases import PHASES, phases
from usp_prof.tables.views import numbers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.readers.inputs import Inputs
    from usp_prof.tables.frame import EventFrame
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
        integer("self_ns", "Duration less that of the ops directly inside it.", "ns"),
        integer("depth", "How many ops of the same thread enclose it."),
        integer("parent", "Event of the op that directly encloses it; -1 at the top."),
        text("input_dims", "Shapes of the inputs as JSON text."),
        text("input_types", "Types of the inputs as JSON text."),
        text("concrete_inputs", "Scalar inputs as JSON text."),
        integer("external_id", "External id."),
        integer("sequence", "Autograd sequence number; ties a backward op to its forward op."),
        text("phase", "forward, backward, optimizer or empty, from marks, threads and names."),
        STEP,
    ),
)

_FIELDS = (
    Field("input_dims", "Input Dims", Kind.TEXT, coded=True),
    Field("input_types", "Input type", Kind.TEXT, coded=True),
    Field("concrete_inputs", "Concrete Inputs", Kind.TEXT, coded=True),
)


def build(frame: EventFrame, steps: Steps) -> pa.Table:
    """Build the table: every CPU op in order of start, outer ones first."""
    rows = frame.rows(*HOST_OPS)
    tracks = frame.ops
    children = np.zeros(len(rows) + 1, np.int64)
    np.add.at(children, tracks.parent, frame.duration[rows])  # tops add to the last place, which nothing reads
    order = np.lexsort((tracks.depth, frame.start[rows]))
    chosen = rows[order]
    parent = tracks.parent[order]
    columns = {
        "rank": frame.rank,
        "event": frame.event[chosen],
        "name": frame.text("name", chosen),
        "thread": frame.text("thread", chosen),
        "start_ns": frame.start[chosen],
        "dur_ns": frame.duration[chosen],
        "self_ns": np.maximum(frame.duration[chosen] - children[:-1][order], 0),
        "depth": tracks.depth[order],
        "parent": np.where(parent >= 0, frame.event[rows[np.maximum(parent, 0)]], -1) if len(rows) else parent,
        "external_id": frame.ints("external_id")[chosen],
        "phase": compact(phases(frame, frame.track[chosen], frame.start[chosen]), PHASES),
        "step": steps.of_host(frame.start[chosen]),
        "sequence": frame.raw.inputs.sequence[chosen],
        **_inputs(frame.raw.inputs, chosen),
    }
    return table(SCHEMA, columns, len(rows))


def _inputs(inputs: Inputs, rows: NDArray[np.int64]) -> dict[str, pa.DictionaryArray]:
    """Give the texts of rows: each distinct combination is read once."""
    texts = pa.chunked_array([inputs.texts])
    read = read_arguments(texts, np.arange(len(inputs.texts)), _FIELDS)
    code = inputs.code[rows]
    return {name: compact(numbers_of(each.indices)[code], each.dictionary.to_pylist()) for name, each in read.items()}
