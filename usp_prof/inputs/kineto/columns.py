"""Columns of a file's events, appended piece by piece, with one dictionary of texts for the complete file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.inputs.argument_decoder import ArgumentDecoder, DecodedArguments
from usp_prof.inputs.growing import ArgumentTexts, Kinds, NarrowNumbers, Numbers, Texts, has, plain_text, spread
from usp_prof.inputs.kineto import nanoseconds, wire
from usp_prof.inputs.kineto.arguments import GrowingArguments, Links, OpArguments, WorkArguments
from usp_prof.inputs.kineto.thread_names import ThreadNames
from usp_prof.inputs.kineto.wire import category_text
from usp_prof.inputs.trace_record import DEVICE_WORK

_Given = Ints | None
"""By row; `None` if it is absent in all of them."""
_Common = wire.Timed | wire.WholeTimed | wire.Metadata | wire.FlowBegin | wire.FlowStep | wire.FlowEnd

_PASSED_OVER = frozenset({"s", "t", "f", "M"})
_WITHOUT_LINKS = "python_function"
_OP = "cpu_op"
_TS = 4
"""Index of the start among the fields of an event."""
_CODED = {"phase": plain_text, "category": category_text, "process": plain_text, "thread": plain_text}
INPUT_FIELDS = ("dims", "types", "concrete")
LAUNCH_FIELDS = ("grid", "block", "occupancy", "graph", "bytes", "size")
LINK_COLUMNS = ("device", "stream", "correlation", "external_id")
_OP_ARGUMENTS = ArgumentDecoder(OpArguments)
_WORK_ARGUMENTS = ArgumentDecoder(WorkArguments)
_LINKS = ArgumentDecoder(Links)
_IS_PASSED_OVER, _IS_METADATA, _HAS_NO_LINKS, _IS_OP, _IS_WORK = range(5)
"""Flags of an event's kind, numbered as in `Kinds`."""


def _kinds() -> Kinds:
    """Return the coder of columns with few distinct values; its flags are in the order of their numbers above."""
    return Kinds(
        lambda key: key[0] in _PASSED_OVER,
        lambda key: key[0] == "M",
        lambda key: key[1] == _WITHOUT_LINKS,
        lambda key: category_text(key[1]) == _OP,
        lambda key: category_text(key[1]) in DEVICE_WORK,
    )


@dataclass(slots=True)
class Counts:
    """Counts collected while reading."""

    finer_than_ns: int = 0
    unplaced: int = 0
    flows: int = 0


@dataclass(slots=True)
class EventColumns:
    """The columns of the events read so far, as lists of pieces."""

    kinds: Kinds = field(default_factory=_kinds)
    names: Texts = field(default_factory=Texts)
    starts: Numbers[np.int64] = field(default_factory=lambda: Numbers(np.int64))
    durations: Numbers[np.int64] = field(default_factory=lambda: Numbers(np.int64))
    links: dict[str, NarrowNumbers] = field(default_factory=lambda: {name: NarrowNumbers() for name in LINK_COLUMNS})
    args: ArgumentTexts = field(default_factory=ArgumentTexts)
    inputs: GrowingArguments = field(default_factory=lambda: GrowingArguments(OpArguments, INPUT_FIELDS))
    launches: GrowingArguments = field(default_factory=lambda: GrowingArguments(WorkArguments, LAUNCH_FIELDS))
    sequence: NarrowNumbers = field(default_factory=NarrowNumbers)
    thread_names: ThreadNames = field(default_factory=ThreadNames)
    counts: Counts = field(default_factory=Counts)

    def add(self, events: Sequence[wire.Event | wire.ExactEvent]) -> None:
        """Append decoded events."""
        self.take(transposed(events), events)

    def take(self, fields: list[Any], events: Sequence[wire.Event | wire.ExactEvent]) -> None:
        """Append decoded events whose fields are given as columns (`transposed`)."""
        if not events:
            return
        categories, names, processes, threads, times, durations, args, phases = fields
        codes = self.kinds.look_up(phases, categories, processes, threads)
        wanted = self._wanted(codes, events)
        starts, spans = self._nanoseconds(times, durations)  # `nanoseconds.ABSENT` if one is missing
        if not wanted.all():
            chosen = wanted.tolist()
            names, args = list(compress(names, chosen)), list(compress(args, chosen))
            codes, starts, spans = codes[wanted], starts[wanted], spans[wanted]
        self._append(codes, names, starts, spans, args)

    def take_common(self, fields: list[Any], events: Sequence[_Common]) -> None:
        """Append events of the common kinds; `fields` has the columns of those that become rows."""
        names: Sequence[str] = ()
        if fields:
            categories, names, processes, threads, times, durations, args, phases = fields
            if isinstance(durations[0], int):
                starts, spans = nanoseconds.from_whole(times), nanoseconds.from_whole(durations)
            else:
                starts, spans = self._nanoseconds(times, durations)
            codes = self.kinds.look_up(phases, categories, processes, threads)
            self._append(codes, names, starts, spans, args)
        if len(names) < len(events):
            metadata = [event for event in events if type(event) is wire.Metadata]
            self.thread_names.add(metadata)
            self.counts.flows += len(events) - len(names) - len(metadata)

    def _append(
        self, codes: NDArray[np.int32], names: Sequence[str], starts: Ints, spans: Ints, args: Sequence[msgspec.Raw]
    ) -> None:
        """Append rows, except those without a usable start."""
        has_start = starts != nanoseconds.ABSENT
        if not has_start.all():
            self.counts.unplaced += int(np.count_nonzero(~has_start))
            chosen = has_start.tolist()
            names, args = list(compress(names, chosen)), list(compress(args, chosen))
            codes, starts, spans = codes[has_start], starts[has_start], spans[has_start]
        if not len(codes):
            return
        self.kinds.add(codes)
        self.starts.add(starts)
        self.durations.add(spans)
        self.names.add(names)
        self._add_args(args, codes)

    def _wanted(self, codes: NDArray[np.int32], events: Sequence[wire.Event | wire.ExactEvent]) -> Flags:
        """Return a mask of events that become rows; record names of threads and count flows."""
        passed = self.kinds.marked(_IS_PASSED_OVER, codes)
        metadata = np.flatnonzero(self.kinds.marked(_IS_METADATA, codes)).tolist() if passed.any() else []
        self.thread_names.add([events[place] for place in metadata])
        self.counts.flows += int(np.count_nonzero(passed)) - len(metadata)
        return ~passed

    def _nanoseconds(self, times: Sequence[Any], durations: Sequence[Any]) -> tuple[Ints, ...]:
        if isinstance(durations[0], float):
            microseconds = np.stack([_floats(times), _floats(durations)])
            out, finer = nanoseconds.from_floats(microseconds)
        else:
            out, finer = nanoseconds.from_texts([bytes(value) for value in chain(times, durations)])
            out = out.reshape(2, -1)
        self.counts.finer_than_ns += finer
        return out[0], out[1]

    def _add_args(self, args: Sequence[msgspec.Raw], codes: NDArray[np.int32]) -> None:
        """Append the texts of arguments, and the values decoded from them: links, inputs of ops, launches."""
        sizes = np.fromiter(map(len, args), np.int64, len(args))  # 0: the event has no arguments
        self.args.add(b"".join(args), sizes)
        written = sizes > 0
        marks = self.kinds.marks(codes)  # one bit per flag
        is_op = has(marks, _IS_OP) & written
        is_work = has(marks, _IS_WORK) & written
        is_other = written & ~(is_op | is_work | has(marks, _HAS_NO_LINKS))
        ops = self._decoded(_OP_ARGUMENTS, args, sizes, is_op)
        work = self._decoded(_WORK_ARGUMENTS, args, sizes, is_work)
        other_links = self._decoded(_LINKS, args, sizes, is_other)
        self.inputs.add(is_op, ops)
        self.launches.add(is_work, work)
        self._add_numbers(self.sequence, [(ops.numbers["sequence"], is_op)])
        for name in LINK_COLUMNS:
            parts = ((ops, is_op), (work, is_work), (other_links, is_other))
            self._add_numbers(self.links[name], [(_link(decoded, name), rows) for decoded, rows in parts])

    def _decoded(
        self, decoder: ArgumentDecoder, args: Sequence[msgspec.Raw], sizes: Ints, rows: Flags
    ) -> DecodedArguments:
        """Decode the arguments of the marked rows."""
        if not rows.all():
            args, sizes = list(compress(args, rows.tobytes())), sizes[rows]
        return decoder.decode(b"".join(args), sizes)

    def _add_numbers(self, column: NarrowNumbers, parts: Sequence[tuple[_Given, Flags]]) -> None:
        """Append one column: each part has the values of its own rows; rows in no part are absent."""
        given = [(values, rows) for values, rows in parts if values is not None]
        row_count = len(parts[0][1])
        if not given:
            column.add_absent(row_count)
        elif len(given) == 1:
            column.add(spread(*given[0]))
        else:
            row_values = np.full(row_count, -1, np.int64)
            for values, rows in given:
                row_values[rows] = values
            column.add(row_values)

    def table(self) -> tuple[dict[str, Any], int]:
        """Return the columns as complete arrays (with the file's own times), and the number of events."""
        starts = self.starts.array()
        rows = len(starts)
        return {
            "event": np.arange(rows, dtype=np.int64),
            **dict(zip(_CODED, self.kinds.arrays([*_CODED.values()]), strict=True)),
            "name": self.names.array(plain_text),
            "start_ns": starts,
            "dur_ns": self.durations.array(),
            **{name: column.array() for name, column in self.links.items()},
            "args": self.args.array(),
        }, rows


def transposed(events: Sequence[wire.Event | wire.ExactEvent]) -> list[Any]:
    """Convert events to columns; starts that are floats become an array."""
    return side_by_side(map(astuple, events))


def side_by_side(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Convert rows of fields to columns, as `transposed` does."""
    fields: list[Any] = list(zip(*rows, strict=True))
    if fields and isinstance(fields[_TS][0], float):
        fields[_TS] = _floats(fields[_TS])
    return fields


def too_large(fields: list[Any]) -> bool:
    """Return whether a start is so large that its float may have lost nanoseconds."""
    return bool(fields) and nanoseconds.too_large_for_floats(_floats(fields[_TS]))


def _link(decoded: DecodedArguments, column: str) -> _Given:
    """Return one of `LINK_COLUMNS`; the external id is spelled differently in traces of 2021."""
    if column != "external_id":
        return decoded.numbers[column]
    external, external_2021 = decoded.numbers["external"], decoded.numbers["external_2021"]
    if external is None or external_2021 is None:
        return external_2021 if external is None else external
    return np.asarray(np.maximum(external, external_2021), np.int64)


def _floats(values: Sequence[float] | Floats) -> Floats:
    return values if isinstance(values, np.ndarray) else np.fromiter(values, np.float64, len(values))
