"""Columns of a file's events, appended piece by piece, with one dictionary of texts for the whole file."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import astuple

from usp_prof.inputs.kineto import combinations, nanoseconds, wire
from usp_prof.inputs.kineto.arguments import ArgumentTexts
from usp_prof.inputs.kineto.combinations import INPUT_KEYS, GrowingDeviceWork, GrowingInputs
from usp_prof.inputs.kineto.growing import Kinds, NarrowNumbers, Numbers, Texts, category_text, has, plain_text, spread
from usp_prof.inputs.kineto.threads import ThreadNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    _Given = NDArray[np.int64] | None
    """By row; `None` where it is absent in all of them."""
    _OpArguments = tuple[list[_Given], _Given, Iterable[Sequence[msgspec.Raw | bytes]]]
    """The links, the sequence number, and the texts behind each of the keys that are wanted."""
    _Common = wire.Timed | wire.WholeTimed | wire.Metadata | wire.FlowBegin | wire.FlowStep | wire.FlowEnd

_PASSED_OVER = frozenset({"s", "t", "f", "M"})
_WITHOUT_LINKS = "python_function"
_OP = "cpu_op"
_TS = 4
"""Place of the start among the fields of an event."""
_CODED = {"phase": plain_text, "category": category_text, "process": plain_text, "thread": plain_text}
LINK_COLUMNS = ("device", "stream", "correlation", "external_id")
_NO_LINKS: list[_Given] = [None] * len(LINK_COLUMNS)


def _kinds() -> Kinds:
    """Code the columns of few values, and ask: flow or metadata? metadata? without links? an op? device work?"""
    return Kinds(
        lambda key: key[0] in _PASSED_OVER,
        lambda key: key[0] == "M",
        lambda key: key[1] == _WITHOUT_LINKS,
        lambda key: category_text(key[1]) == _OP,
        lambda key: category_text(key[1]) in combinations.CATEGORIES,
    )


@dataclass(slots=True)
class Counts:
    """What was found on the way."""

    finer_than_ns: int = 0
    unplaced: int = 0
    flows: int = 0
    odd_links: int = 0


@dataclass(slots=True)
class Columns:
    """The columns of the events read so far, a list of pieces for each."""

    kinds: Kinds = field(default_factory=_kinds)
    names: Texts = field(default_factory=Texts)
    starts: Numbers[np.int64] = field(default_factory=lambda: Numbers(np.int64))
    durations: Numbers[np.int64] = field(default_factory=lambda: Numbers(np.int64))
    links: dict[str, NarrowNumbers] = field(default_factory=lambda: {name: NarrowNumbers() for name in LINK_COLUMNS})
    args: ArgumentTexts = field(default_factory=ArgumentTexts)
    inputs: GrowingInputs = field(default_factory=GrowingInputs)
    work: GrowingDeviceWork = field(default_factory=GrowingDeviceWork)
    thread_names: ThreadNames = field(default_factory=ThreadNames)
    counts: Counts = field(default_factory=Counts)

    def add(self, events: Sequence[wire.Event | wire.ExactEvent]) -> None:
        """Take over decoded events."""
        self.take(transposed(events), events)

    def take(self, fields: list[Any], events: Sequence[wire.Event | wire.ExactEvent]) -> None:
        """Take over decoded events whose fields have been put side by side (`transposed`)."""
        if not events:
            return
        categories, names, processes, threads, times, durations, args, phases = fields
        codes = self.kinds.look_up(phases, categories, processes, threads)
        wanted = self._wanted(codes, events)
        starts, spans = self._nanoseconds(times, durations)
        if not wanted.all():
            chosen = wanted.tolist()
            names, args = list(compress(names, chosen)), list(compress(args, chosen))
            codes, starts, spans = codes[wanted], starts[wanted], spans[wanted]
        self._append(codes, names, starts, spans, args)

    def take_common(self, fields: list[Any], events: Sequence[_Common]) -> None:
        """Take over events as nearly all are, of which those that become rows have been put side by side."""
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
        self,
        codes: NDArray[np.int32],
        names: Sequence[str],
        starts: NDArray[np.int64],
        spans: NDArray[np.int64],
        args: Sequence[msgspec.Raw],
    ) -> None:
        """Append rows, all but those that cannot be placed."""
        placed = starts != nanoseconds.ABSENT
        if not placed.all():
            self.counts.unplaced += int(np.count_nonzero(~placed))
            chosen = placed.tolist()
            names, args = list(compress(names, chosen)), list(compress(args, chosen))
            codes, starts, spans = codes[placed], starts[placed], spans[placed]
        if not len(codes):
            return
        self.kinds.add(codes)
        self.starts.add(starts)
        self.durations.add(spans)
        self.names.add(names)
        self._add_args(args, codes)

    def _wanted(self, codes: NDArray[np.int32], events: Sequence[wire.Event | wire.ExactEvent]) -> NDArray[np.bool_]:
        """Mark what becomes a row; names of threads are taken here, flows are counted."""
        passed = self.kinds.marked(0, codes)
        metadata = np.flatnonzero(self.kinds.marked(1, codes)).tolist() if passed.any() else []
        self.thread_names.add([events[place] for place in metadata])
        self.counts.flows += int(np.count_nonzero(passed)) - len(metadata)
        return ~passed

    def _nanoseconds(self, times: Sequence[Any], durations: Sequence[Any]) -> tuple[NDArray[np.int64], ...]:
        if isinstance(durations[0], float):
            both = np.stack([_floats(times), _floats(durations)])
            out, finer = nanoseconds.from_floats(both)
        else:
            out, finer = nanoseconds.from_texts([bytes(value) for value in chain(times, durations)])
            out = out.reshape(2, -1)
        self.counts.finer_than_ns += finer
        return out[0], out[1]

    def _add_args(self, args: Sequence[msgspec.Raw], codes: NDArray[np.int32]) -> None:
        sizes = np.fromiter(map(len, args), np.int32, len(args))
        self.args.add(b"".join(args), sizes)
        said, marks = sizes > 0, self.kinds.marks(codes)
        ops, work = has(marks, 3) & said, has(marks, 4) & said
        others = said & ~(ops | work | has(marks, 2))
        of_ops, sequence, inputs = self._of_ops(_chosen(args, ops))
        of_work, launched = self._of_work(_chosen(args, work))
        more = self._of_others(_chosen(args, others))
        self.inputs.add(ops, inputs, sequence)
        self.work.add(work, launched)
        for name, *parts in zip(LINK_COLUMNS, of_ops, of_work, more, strict=True):
            self._add_link(self.links[name], *zip(parts, (ops, work, others), strict=True))

    def _add_link(self, column: NarrowNumbers, *parts: tuple[_Given, NDArray[np.bool_]]) -> None:
        """Append what some rows say, each part its own."""
        given = [(values, rows) for values, rows in parts if values is not None]
        if not given:
            column.add_absent(len(parts[0][1]))
        elif len(given) == 1:
            column.add(spread(*given[0]))
        else:
            whole = np.full(len(parts[0][1]), -1, np.int64)
            for values, rows in given:
                whole[rows] = values
            column.add(whole)

    def _of_ops(self, args: Sequence[msgspec.Raw]) -> _OpArguments:
        """Read what the arguments of ops say."""
        if not args:
            return _NO_LINKS, None, ()
        try:
            read = wire.OP_ARGUMENTS.decode_lines(b"".join(args))
            if len(read) == len(args):
                values = wire.by_field(read)
                inputs = zip(*(values[name] for name in wire.INPUT_FIELDS), strict=True)
                return _links(values), _given(values["sequence"]), inputs
        except (*wire.DECODE_ERRORS, OverflowError):
            pass
        return self._arguments_one_by_one(args, INPUT_KEYS)

    def _of_work(self, args: Sequence[msgspec.Raw]) -> tuple[list[_Given], Iterable[Sequence[msgspec.Raw | bytes]]]:
        """Read what the arguments of device work say: what ties it to others, and the texts behind its keys."""
        if not args:
            return _NO_LINKS, ()
        try:
            read = wire.WORK_ARGUMENTS.decode_lines(b"".join(args))
            if len(read) == len(args):
                values = wire.by_field(read)
                return _links(values), zip(*(values[name] for name in wire.LAUNCH_FIELDS), strict=True)
        except (*wire.DECODE_ERRORS, OverflowError):
            pass
        links, _, texts = self._arguments_one_by_one(args, combinations.LAUNCH_KEYS)
        return links, texts

    def _of_others(self, args: Sequence[msgspec.Raw]) -> list[_Given]:
        """Read what ties other events to each other."""
        if not args:
            return _NO_LINKS
        try:
            read = wire.LINKS.decode_lines(b"".join(args))
            if len(read) == len(args):
                return _links(wire.by_field(read))
        except (*wire.DECODE_ERRORS, OverflowError):
            pass
        return self._arguments_one_by_one(args, ())[0]

    def _arguments_one_by_one(self, args: Sequence[msgspec.Raw], wanted: Sequence[str]) -> _OpArguments:
        links, sequence = np.full((4, len(args)), -1, np.int64), np.full(len(args), -1, np.int64)
        texts: list[Sequence[bytes]] = [(b"",) * len(wanted)] * len(args)
        for row, text in enumerate(args):
            try:
                found = msgspec.json.decode(text)
            except wire.DECODE_ERRORS:
                found = None
            if isinstance(found, dict):
                keys = ("device", "stream", "correlation", "External id", "external id", "Sequence number")
                whole = [_whole(found.get(key)) for key in keys]
                links[:, row], sequence[row] = [*whole[:3], max(whole[3], whole[4])], whole[5]
                texts[row] = [msgspec.json.encode(found[key]) if key in found else b"" for key in wanted]
        self.counts.odd_links += bool(args)
        return list(links), sequence, texts

    def table(self, base_ns: int) -> tuple[dict[str, Any], int]:
        """Give the columns as whole arrays (times absolute), and the number of events."""
        starts = self.starts.array()
        starts += base_ns
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
    """Put the fields of events side by side; starts that are floats come as an array."""
    return side_by_side(map(astuple, events))


def side_by_side(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Put fields side by side that are there event by event, as `transposed` does."""
    fields: list[Any] = list(zip(*rows, strict=True))
    if fields and isinstance(fields[_TS][0], float):
        fields[_TS] = _floats(fields[_TS])
    return fields


def too_large(fields: list[Any]) -> bool:
    """Say whether a start is so large that its float may have lost nanoseconds."""
    return bool(fields) and nanoseconds.too_large_for_floats(_floats(fields[_TS]))


def _chosen(args: Sequence[msgspec.Raw], rows: NDArray[np.bool_]) -> Sequence[msgspec.Raw]:
    return args if rows.all() else list(compress(args, rows.tobytes()))


def _links(values: Mapping[str, Sequence[int]]) -> list[_Given]:
    """Give the columns that tie events together, in the order of `LINK_COLUMNS`, of arguments by field name."""
    external, external_2021 = _given(values["external"]), _given(values["external_2021"])
    if external_2021 is not None:  # traces of 2021 write the key in lower case
        external = external_2021 if external is None else np.maximum(external, external_2021)
    return [*(_given(values[name]) for name in ("device", "stream", "correlation")), external]


def _given(values: Sequence[int]) -> NDArray[np.int64] | None:
    """Give numbers as an array; `None` where all are absent, which most columns of most pieces are."""
    if values[0] == -1 and values.count(-1) == len(values):
        return None
    return np.fromiter(values, np.int64, len(values))


def _floats(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    return values if isinstance(values, np.ndarray) else np.fromiter(values, np.float64, len(values))


def _whole(value: object) -> int:
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.lstrip("-").isdigit() and len(value) < 19 else -1
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**63 else -1
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else -1
