"""Trace record: one rank's events as columns, in the form that every trace format is read into.

Nothing above `usp_prof.inputs` knows the format of a file. What a format does not record is absent here (-1, empty
texts), and the format declares it (`cannot_tell`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import Parted, array_of, texts_of
from usp_prof.model.health import HealthRow
from usp_prof.model.schema import DURATION, RANK, START, Column, Kind, Schema, integer, text

EVENTS = Schema(
    "events",
    "Every duration and instant event of the traces, as written; nothing is dropped, merged or rounded.",
    (
        RANK,
        integer("event", "Place among the events of its file, from 0; other tables point here."),
        text("phase", "Chrome's phase: X (complete), i (instant), b/e, ...; flow and metadata events are left out."),
        text("category", "Category in today's spelling (cpu_op, kernel, gpu_memcpy, cuda_runtime, ...)."),
        text("name", "Name as written."),
        text("process", "The trace's pid as text."),
        text("thread", "The trace's tid as text; for device events Kineto writes the stream here."),
        START,
        DURATION,
        integer("device", "Device index from the arguments."),
        integer("stream", "Stream from the arguments (also on Triton launchers, which are CPU ops)."),
        integer("correlation", "Correlation id that connects a launch to its device work."),
        integer("external_id", "External id that connects device work to a CPU op."),
        text("args", "The arguments as JSON text, as written."),
    ),
)
THREADS = Schema(
    "threads",
    "Names that the trace gives to its processes and threads (a thread is a stream on a device process).",
    (
        RANK,
        text("process", "The trace's pid as text."),
        text("thread", "The trace's tid as text."),
        text("process_name", "Name of the process."),
        text("process_labels", "Labels of the process (CPU, GPU 0, ...)."),
        text("thread_name", "Name of the thread or stream."),
        integer("sort_index", "Where viewers place it."),
    ),
)


DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
"""Categories of device work."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedArguments:
    """Some arguments of each event, by event row.

    A program repeats the same work, so each distinct combination of values is stored once. Reading them from every
    event's arguments later would double the read time.
    """

    code: NDArray[np.int32]
    """Index in `texts`."""
    texts: pa.StringArray
    """Distinct combinations as JSON objects; the first is empty."""

    @classmethod
    def none(cls, rows: int) -> RepeatedArguments:
        """Return the arguments of events that have none."""
        return cls(np.zeros(rows, np.int32), texts_of(["{}"]))

    def select(self, keep: Flags) -> RepeatedArguments:
        """Return only the rows marked in `keep`."""
        return RepeatedArguments(self.code[keep], self.texts)


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One rank of a trace file: its events and threads as tables, and the top-level fields next to the events."""

    events: pa.Table
    """In the schema `EVENTS`, without the rank; times are absolute (`baseTimeNanoseconds` + ts).

    Integers have the narrowest type that fits (`widened` converts them to the schema's types).
    """

    inputs: RepeatedArguments
    """Inputs of the ops: shapes, types, scalars."""

    launches: RepeatedArguments
    """Launches of the device work: grid, block, bytes, ..."""

    sequence: Ints | NDArray[np.int32]
    """Autograd's sequence number by event row; -1 if there is none."""

    threads: pa.Table
    """In the schema `THREADS`."""

    metadata: Mapping[str, Any]
    """Every top-level field of the file except the events."""

    health: tuple[HealthRow, ...]
    file: str
    json_bytes: int
    """Size of the uncompressed JSON."""


# Tables by schema: columns in order, texts dictionary-encoded, missing values as absent.


_CODED = pa.dictionary(pa.int32(), pa.string())
PLAIN_TEXT = frozenset({"args"})
"""Texts that are mostly distinct are stored plain: a dictionary would only add cost."""


def to_table(schema: Schema, columns: Mapping[str, Any], rows: int) -> pa.Table:
    """Build a table; an integer column that is missing is -1 (absent). Integers keep their given width."""
    arrays = [_array(column, columns.get(column.name), rows) for column in schema.columns]
    return pa.Table.from_arrays(arrays, names=list(schema.names))


def widened(schema: Schema, table: pa.Table, rank: int) -> Parted:
    """Convert a reader's table to its schema: 64-bit integers, no nulls, and the rank column filled in."""
    kinds = {column.name: column.kind for column in schema.columns}
    place = schema.names.index("rank")
    wide = pa.schema(
        [
            pa.field(field.name, pa.int64() if kinds[field.name] is Kind.INT else field.type, nullable=False)
            for field in table.schema
        ]
    )

    def make(begin: int, end: int) -> pa.Table:
        part = table.slice(begin, end - begin)
        ranks = array_of(np.full(part.num_rows, rank, np.int64))
        return part.set_column(place, "rank", ranks).cast(wide)

    return Parted(wide, table.num_rows, make)


def _array(column: Column, value: Any, rows: int) -> Any:  # noqa: ANN401 - an array or chunked array
    if value is None:
        return array_of(np.full(rows, -1, np.int8))
    if column.kind is Kind.TEXT and column.name not in PLAIN_TEXT:
        return value if pa.types.is_dictionary(value.type) else value.dictionary_encode().cast(_CODED)
    return array_of(value) if isinstance(value, np.ndarray) else value
