"""Event frame: a rank's events as arrays, by category, with arguments read on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Ints
from usp_prof.columns.arrow import coded
from usp_prof.columns.lanes import Tracks, nest
from usp_prof.columns.rows import lookup, sorted_rows
from usp_prof.columns.table import Columns
from usp_prof.inputs.trace_record import TraceRecord
from usp_prof.model.schema import Kind
from usp_prof.tables.events.arguments import Field, read_arguments

HOST_CALLS = ("cuda_runtime", "cuda_driver", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver", "xpu_runtime")
HOST_OPS = ("cpu_op",)
MARKS = ("user_annotation",)


class EventFrame:
    """The events of one rank. Rows are indexes in the events table; texts stay coded until needed."""

    def __init__(self, record: TraceRecord, rank: int) -> None:
        self.record = record
        self.rank = rank
        self._columns = Columns(record.events)
        self._texts: dict[str, tuple[Ints, list[str]]] = {}
        self._categories: dict[str, Ints] = {}
        self.odd_values: Counter[str] = Counter()
        """Number of values outside their range, by argument, among those read so far."""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._columns)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's top-level fields."""
        return self.record.metadata

    def ints(self, name: str, rows: Ints | None = None) -> Ints:
        """Return an integer column, of some rows or of all."""
        column = self._columns[name]
        return np.asarray(column if rows is None else column.take(rows), np.int64)

    @cached_property
    def event(self) -> Ints:
        """Event numbers by row."""
        return self.ints("event")

    def event_at(self, rows: Ints) -> Ints:
        """Return the event numbers of some rows; -1 for a row of -1."""
        return np.where(rows >= 0, self.event[rows], -1)

    @cached_property
    def start(self) -> Ints:
        """Starts by row."""
        return self.ints("start_ns")

    @cached_property
    def duration(self) -> Ints:
        """Durations by row; 0 if absent."""
        return np.maximum(self.ints("dur_ns"), 0)

    @cached_property
    def end(self) -> Ints:
        """Ends by row."""
        return self.start + self.duration

    def shorten(self, rows: Ints, duration: Ints) -> None:
        """Replace durations of some rows that are wrong, before any table is built."""
        changed = self.duration.copy()
        changed[rows] = duration
        self.duration = changed
        self.end = self.start + changed

    def codes(self, name: str) -> tuple[Ints, list[str]]:
        """Return a text column as codes and distinct texts."""
        if name not in self._texts:
            self._texts[name] = self._columns.narrow_codes(name)
        return self._texts[name]

    @cached_property
    def track(self) -> Ints:
        """Number of the (process, thread) pair by row."""
        process, processes = self.codes("process")
        thread, threads = self.codes("thread")
        if len(processes) < 2:
            return thread
        return np.asarray(process.astype(np.int64) * (len(threads) + 1) + thread, np.int64)

    def rows(self, *categories: str) -> Ints:
        """Return the rows of complete events of these categories, in file order."""
        parts = [self._category(name) for name in categories]
        present = [part for part in parts if len(part)]
        if len(present) < 2:
            return present[0] if present else np.zeros(0, np.int64)
        return np.sort(np.concatenate(present))

    def _category(self, name: str) -> Ints:
        if name not in self._categories:
            codes, values = self.codes("category")
            phase, phases = self.codes("phase")
            wanted = [code for code, value in enumerate(values) if value == name]
            hits = np.isin(codes, wanted) if len(wanted) != 1 else codes == wanted[0]
            if name != "cpu_instant_event":
                hits = hits & lookup([text == "X" for text in phases], phase, missing=False)
            self._categories[name] = np.flatnonzero(hits)
        return self._categories[name]

    def in_order_of_time(self, rows: Ints) -> Ints:
        """Sort rows by start; equal starts by duration and identity, so that the file's order is irrelevant.

        Old traces have whole microseconds, so consecutive launches seem to start together.
        """
        return rows[sorted_rows(self.start.take(rows), self.duration.take(rows), *self._identity(rows))]

    def _identity(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Return a sort key for rows with equal times: ids increase in order of execution, outer ops first."""
        name = self._name_rank.take(self.codes("name")[0].take(rows))
        return self.ints("correlation", rows), self.ints("external_id", rows), name

    @cached_property
    def _name_rank(self) -> Ints:
        """Index of each name code in alphabetical order."""
        names = self.codes("name")[1]
        rank = np.empty(len(names), np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        return rank

    def by_name(self, rows: Ints, say: Callable[[str], Any], dtype: Any = bool) -> NDArray[Any]:  # noqa: ANN401 - NumPy's
        """Apply a function to the names of rows, once per distinct name."""
        codes, values = self.codes("name")
        own = codes.take(rows)
        used = np.zeros(len(values), dtype=bool)
        used[own] = True
        table = np.zeros(len(values), dtype=dtype)
        used_codes = np.flatnonzero(used)
        table[used_codes] = np.fromiter((say(values[code]) for code in used_codes.tolist()), dtype, len(used_codes))
        return table.take(own)

    def event_columns(self, rows: Ints) -> dict[str, Any]:
        """Return the columns that every table of events has: rank, event, start and duration of some rows."""
        return {
            "rank": self.rank,
            "event": self.event[rows],
            "start_ns": self.start[rows],
            "dur_ns": self.duration[rows],
        }

    def text(self, name: str, rows: Ints) -> pa.DictionaryArray:
        """Return a text column of some rows with only their texts."""
        codes, values = self.codes(name)
        return compact(codes.take(rows), values)

    def texts(self, name: str, rows: Ints) -> NDArray[Any]:
        """Return a text column of some rows as str objects."""
        codes, values = self.codes(name)
        return lookup(values, codes[rows], missing="")

    def arguments(self, rows: Ints, fields: Iterable[Field]) -> dict[str, Any]:
        """Read argument fields of some rows: integers and floats as NumPy arrays, texts as Arrow arrays."""
        wanted = tuple(fields)
        return self._within(read_arguments(self._args, rows, wanted), wanted)

    def launched(self, rows: Ints, fields: Iterable[Field]) -> dict[str, NDArray[Any]]:
        """Read numeric fields of the launch (grid, block, bytes) of some rows of device work."""
        launches, wanted = self.record.launches, tuple(fields)
        # Each distinct launch is parsed once.
        read = read_arguments(pa.chunked_array([launches.texts]), np.arange(len(launches.texts)), wanted)
        read = self._within(read, wanted)
        return {name: values[launches.code[rows]] for name, values in read.items()}

    def _within(self, read: dict[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
        """Replace numbers outside their field's range by absent values, and count them."""
        for field in fields:
            if field.kind is not Kind.INT:
                continue
            values = read[field.name]
            odd = ((values < field.within.low) | (values > field.within.high)) & (values != -1)
            if odd.any():
                self.odd_values[field.key] += int(np.count_nonzero(odd))
                read[field.name] = np.where(odd, -1, values)
        return read

    @cached_property
    def _args(self) -> pa.ChunkedArray:
        column = self.record.events.column("args")
        return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column

    def nested(self, rows: Ints) -> Tracks:
        """Nest some rows on their threads; the result's rows are indexes in `rows`."""
        return nest(self.track[rows], self.start[rows], self.duration[rows], *self._identity(rows), rounded=True)


def compact(codes: Ints, values: list[str]) -> pa.DictionaryArray:
    """Return a dictionary column with only the used texts, in order of their codes."""
    is_used = np.zeros(len(values) + 1, dtype=bool)
    is_used[codes] = True
    place = np.cumsum(is_used) - 1
    used_values = [values[code] for code in np.flatnonzero(is_used[:-1]).tolist()]
    return coded(place[codes].astype(np.int32), used_values)
