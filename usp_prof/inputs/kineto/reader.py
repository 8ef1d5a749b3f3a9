"""Reader of a Kineto trace file: events and threads as columns, top-level fields, and health.

The text is read piece by piece. Valid pieces are decoded in one typed call; invalid ones are salvaged event by event.
Peak memory grows with the piece size and the columns, not with the JSON.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from usp_prof import limits
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import array_of, coded, numbers_of
from usp_prof.inputs.argument_decoder import DECODE_ERRORS
from usp_prof.inputs.growing import filter_texts
from usp_prof.inputs.kineto import nanoseconds, wire
from usp_prof.inputs.kineto.columns import EventColumns, side_by_side, too_large, transposed
from usp_prof.inputs.kineto.damage import Damage, join_begin_end, repeated
from usp_prof.inputs.kineto.salvage import salvage, salvage_fields
from usp_prof.inputs.kineto.split import HEAD_LIMIT, Feed, checked_head, parse_tail, split_end
from usp_prof.inputs.memory import no_collection
from usp_prof.inputs.remote import Location
from usp_prof.inputs.source import Source
from usp_prof.inputs.trace_record import EVENTS, TraceRecord, to_table
from usp_prof.model.errors import InputError

_CARRY_LIMIT = 4 << 20
"""Size in bytes of invalid text above which the reader stops waiting for its end."""
_UNCOMMON = 8
"""Number of consecutive uncommon pieces after which the fast decoder is no longer tried."""


def read(path: Location) -> TraceRecord:
    """Read one trace file; raise only if it is unusable."""
    with no_collection():
        return _Reading(path).run()


class _Reading:
    """The state of reading one file."""

    def __init__(self, path: Location) -> None:
        self.source = Source(path)
        self.feed = Feed(self.source.blocks())
        self.columns = EventColumns()
        self.damage = Damage()
        self.metadata: dict[str, Any] = {}
        self.exact = False
        self.uncommon = 0
        self.closed = False

    def run(self) -> TraceRecord:
        """Read from start to end."""
        head = self.feed.open_events()
        if head is None:
            raise self._no_trace()
        self.metadata.update(self._fields(head, self.feed.fields))
        while not self.closed and (self.feed.buffer or not self.feed.ended):
            self._piece(self.feed.piece())
            self._open_next_list()
        self._tail()
        self.damage.fault = self.source.fault
        self.damage.ends_early = not self.closed
        return self._result()

    def _no_trace(self) -> InputError:
        problem = "has no list of trace events" if self.source.size else "is empty"
        if self.damage.events_lost:
            problem = "has no event that can be read"
        if self.source.fault is not None:
            problem = f"cannot be unpacked ({self.source.fault.detail})"
        return InputError(
            f"{self.source.path} {problem}",
            hint="give a Chrome trace as torch.profiler exports it (.json, .json.gz, .zst), or the folder of one run",
        )

    def _piece(self, json_list: bytes) -> None:
        """Read events, given as a JSON list."""
        json_list = self._sound_text(json_list)
        if self.feed.ended and not self.feed.buffer:
            end = split_end(json_list[1:-1])
            if end is not None and self._decode(b"[" + end[0] + b"]"):
                self.metadata.update(parse_tail(end[1]) or {})
                self.closed = True
                return
        elif self._decode(json_list):
            return
        self._salvage(json_list[1:-1])

    def _sound_text(self, piece: bytes) -> bytes:
        if piece.isascii():
            return piece
        try:
            piece.decode("utf-8")
        except UnicodeDecodeError:
            text = piece.decode("utf-8", "replace")
            self.damage.invalid_utf8 += text.count("\ufffd") - piece.count("\ufffd".encode())
            return text.encode()
        return piece

    def _decode(self, text: bytes) -> bool:
        if self.uncommon < _UNCOMMON and self._decode_common(text):
            self.uncommon = 0
            return True
        self.uncommon += 1
        decoder = wire.EXACT_EVENTS if self.exact else wire.EVENTS
        try:
            events = decoder.decode(text)
        except DECODE_ERRORS:
            return False
        self._take(events, text)
        return True

    def _decode_common(self, text: bytes) -> bool:
        """Decode a piece that contains only the common kinds of events; takes half the time."""
        decoder, (complete, instant) = wire.COMMON[self.exact]
        try:
            events = decoder.decode(text)
            rows = [astuple(event) for event in events if (kind := type(event)) is complete or kind is instant]
            fields = side_by_side(rows)
            if not self.exact and too_large(fields):
                self.exact = True
                return self._decode_common(text)
            self.columns.take_common(fields, events)
        except (*DECODE_ERRORS, OverflowError):
            return False
        return True

    def _take(self, events: list[Any], text: bytes) -> None:
        fields = transposed(events)
        if not self.exact and too_large(fields):
            self.exact = True
            if self._decode(text):
                return
        self.columns.take(fields, events)

    def _salvage(self, piece: bytes) -> None:
        final = self.feed.ended and not self.feed.buffer
        saved = salvage(piece, exact=self.exact, final=final or len(piece) > _CARRY_LIMIT)
        if not self.exact and too_large(transposed(saved.events)):
            self.exact = True
            saved = salvage(piece, exact=True, final=final or len(piece) > _CARRY_LIMIT)
        self.columns.add(saved.events)
        self.damage.events_lost += saved.events_lost
        self.damage.bytes_lost += saved.bytes_lost
        self.damage.repaired += saved.repaired
        self.closed = saved.ended
        rest = piece[saved.used :]
        if rest:
            self.feed.give_back(rest)

    def _open_next_list(self) -> None:
        """Continue with another list of the same key, as written by tools that join files."""
        fields = self.feed.open_next_events() if self.closed else None
        if fields is not None:
            self.metadata.update(fields)
            self.closed = False

    def _tail(self) -> None:
        """Read the fields after the last list, if the salvaging reader reached its end."""
        if not self.closed:
            return
        self.feed.fill(HEAD_LIMIT)
        tail, self.feed.buffer = self.feed.buffer, b""
        self.metadata.update(self._fields(tail, parse_tail(tail)))

    def _fields(self, text: bytes, parsed: dict[str, Any] | None) -> dict[str, Any]:
        if parsed is not None:
            return parsed
        fields, lost = salvage_fields(self._sound_text(text))
        self.damage.field_bytes_lost += lost
        return fields

    def _result(self) -> TraceRecord:
        self.metadata, self.damage.odd_values = checked_head(self.metadata)
        columns, rows = self.columns.table()
        if not rows and self.damage.events_lost and not self.columns.counts.flows:
            raise self._no_trace()
        in_window = self._near(columns["start_ns"])
        base_ns = self._base(columns["start_ns"])
        columns["start_ns"] += base_ns
        self._settle_durations(columns)
        columns["category"] = _with_step_marks(columns["category"], columns["name"])
        keep, self.damage.unpaired = join_begin_end(columns, rows)
        keep &= in_window
        keep, self.damage.duplicates = repeated(columns, keep)
        events, sequence = to_table(EVENTS, columns, rows), self.columns.sequence.array()
        inputs, launches = self.columns.inputs.columns(), self.columns.launches.columns()
        if not keep.all():
            events, sequence = _without(events, keep), sequence[keep]
            inputs, launches = inputs.select(keep), launches.select(keep)
        health = self.damage.rows(self.columns.counts, events=events.num_rows, based=base_ns > 0)
        return TraceRecord(
            events=events,
            inputs=inputs,
            launches=launches,
            sequence=sequence,
            threads=self.columns.thread_names.table(),
            metadata=self.metadata,
            health=tuple(health),
            file=str(self.source.path),
            json_bytes=self.source.size,
        )

    def _near(self, starts: Ints) -> Flags:
        """Return which events are in the trace's time window; move all others to its middle, so sums stay in bounds."""
        in_window = np.ones(len(starts), bool)
        if len(starts) and float(starts.max()) - float(starts.min()) > limits.MAX_WINDOW_NS:
            middle = np.sort(starts)[len(starts) // 2]
            in_window = np.abs(starts.astype(float) - float(middle)) <= limits.MAX_WINDOW_NS
            starts[~in_window] = middle
            self.columns.counts.unplaced += int(np.count_nonzero(~in_window))
        return in_window

    def _base(self, starts: Ints) -> int:
        """Return the offset to add to the file's times; 0 if the sum would not be a valid time."""
        base = self.metadata.get("baseTimeNanoseconds")
        if not isinstance(base, int) or base <= 0:
            return 0
        if len(starts) and not limits.NUMBER.holds(int(np.abs(starts).max()) + base):
            self.damage.odd_values.append(f"baseTimeNanoseconds={base} with the events' own times")
            return 0
        return base

    def _settle_durations(self, columns: dict[str, Any]) -> None:
        """Keep events with a missing, negative or out-of-range duration as instants: their duration is unknown."""
        durations = columns["dur_ns"]
        phase = columns["phase"]
        phases = phase.dictionary.to_pylist()
        has_phase = np.array([text in _PHASES for text in phases], bool)
        self.damage.without_phase = int(np.count_nonzero(~has_phase[numbers_of(phase.indices)])) if len(phases) else 0
        complete = numbers_of(phase.indices) == (phases.index("X") if "X" in phases else -1)
        missing = (durations == nanoseconds.ABSENT) | (durations > limits.MAX_WINDOW_NS)
        self.damage.missing_duration = int(np.count_nonzero(missing & complete))
        durations[missing] = np.where(complete[missing], 0, -1)
        negative = (durations < 0) & ~missing
        self.damage.negative_duration = int(np.count_nonzero(negative))
        durations[negative] = 0


_PHASES = frozenset("XBEiIbneSTpFstfCPNODMVvRc(),=")
"""Every phase of Chrome's trace format; without a valid phase it is unknown whether an event has a duration."""


def _with_step_marks(category: pa.DictionaryArray, name: pa.DictionaryArray) -> pa.DictionaryArray:
    """Assign profiler step marks to their own category: until 2021 they were written as ops."""
    ops = [code for code, text in enumerate(category.dictionary.to_pylist()) if text == "cpu_op"]
    names = name.dictionary.to_pylist()
    is_mark = np.array([text.startswith("ProfilerStep#") for text in names], bool)
    if not ops or not is_mark.any():
        return category
    codes = numbers_of(category.indices)
    misplaced = is_mark[numbers_of(name.indices)] & np.isin(codes, ops)
    if not misplaced.any():
        return category
    values = category.dictionary.to_pylist()
    values = values if "user_annotation" in values else [*values, "user_annotation"]
    codes = codes.copy()
    codes[misplaced] = values.index("user_annotation")
    return coded(codes, values)


def _without(events: pa.Table, keep: Flags) -> pa.Table:
    """Remove rows and renumber the rest."""
    args = filter_texts(events.column("args"), keep)
    events = events.drop_columns(["args"]).filter(array_of(keep))
    events = events.add_column(EVENTS.names.index("args"), "args", args)
    return events.set_column(EVENTS.names.index("event"), "event", array_of(np.arange(events.num_rows)))
