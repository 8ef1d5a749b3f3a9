"""Tables of events and threads that the trace reader returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import Parted, array_of, texts_of
from usp_prof.inputs.kineto import wire
from usp_prof.inputs.kineto.growing import plain_text
from usp_prof.model.schema import DURATION, RANK, START, Column, Kind, Schema, integer, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from usp_prof.inputs.kineto.combinations import Inputs, Launches
    from usp_prof.model.health import HealthRow


SCHEMA = Schema(
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


# What the reader passes to the table builders: one rank's file as columns, and its problems.


@dataclass(frozen=True, slots=True)
class RawTrace:
    """One trace file: its events and threads as tables, and the top-level fields next to the events."""

    events: pa.Table
    """In the schema `SCHEMA`, without the rank; times are absolute (`baseTimeNanoseconds` + ts).

    Integers have the narrowest type that fits (`widened` converts them to the schema's types).
    """

    inputs: Inputs
    """The inputs of the ops among the events, collected while reading."""

    threads: pa.Table
    """In the schema `THREADS`."""

    metadata: Mapping[str, Any]
    """Every top-level field of the file except the events, as parsed JSON."""

    health: tuple[HealthRow, ...]
    file: str
    json_bytes: int
    """Size of the uncompressed JSON."""

    work: Launches | None = None
    """Launches of the device work among the events, collected while reading; `None` if only the arguments have them."""


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


# Names of the threads and streams of a trace.


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


_INT64 = 1 << 63


@dataclass(slots=True)
class ThreadNames:
    """Collector of `process_name`, `process_labels`, `thread_name` and `thread_sort_index` events."""

    _processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    _threads: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, events: Iterable[wire.Event | wire.ExactEvent | wire.Metadata]) -> None:
        """Add metadata events; later ones replace earlier ones, as in the viewers."""
        for event in events:
            process, thread = plain_text(event.pid), plain_text(event.tid)
            arguments = _arguments(event.args)
            if event.name in {"process_name", "process_labels", "process_sort_index"}:
                row = self._processes.setdefault(process, {})
                if event.name == "process_labels":
                    row["process_labels"] = plain_text(arguments.get("labels"))
                elif event.name == "process_name":
                    row["process_name"] = plain_text(arguments.get("name"))
            elif event.name == "thread_name":
                self._threads.setdefault((process, thread), {})["thread_name"] = plain_text(arguments.get("name"))
            elif event.name == "thread_sort_index":
                self._threads.setdefault((process, thread), {})["sort_index"] = _index(arguments.get("sort_index"))

    def table(self) -> pa.Table:
        """Return one row per thread; a process without threads has one row with an empty thread."""
        alone = set(self._processes) - {process for process, _ in self._threads}
        keys = sorted([*self._threads, *((process, "") for process in alone)])
        rows = [
            {"process": p, "thread": t, **self._processes.get(p, {}), **self._threads.get((p, t), {})} for p, t in keys
        ]
        texts = ("process", "thread", "process_name", "process_labels", "thread_name")
        columns: dict[str, Any] = {name: texts_of([row.get(name, "") for row in rows]) for name in texts}
        columns["sort_index"] = np.array([row.get("sort_index", -1) for row in rows], np.int64)
        return to_table(THREADS, columns, len(rows))


def _arguments(text: msgspec.Raw) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(text)
    except wire.DECODE_ERRORS:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _index(value: object) -> int:
    if isinstance(value, float) and abs(value) < _INT64:
        return int(value)
    if isinstance(value, bool):
        return -1
    return value if isinstance(value, int) and -_INT64 <= value < _INT64 else -1
