"""How do decoded events become columns? Piece by piece, with one dictionary of texts for the whole file."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import astuple

from usp_prof.readers import _nanoseconds, _wire
from usp_prof.readers._names import Kinds, Texts, category_text, plain_text
from usp_prof.readers._numbers import NarrowNumbers, Numbers, spread
from usp_prof.readers._threads import ThreadNames
from usp_prof.readers.argument_texts import ArgumentTexts
from usp_prof.readers.inputs import KEYS, GrowingInputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    _Given = NDArray[np.int64] | None
    """By row; `None` where it is absent in all of them."""
    _Arguments = tuple[list[_Given], _Given, Iterable[Sequence[msgspec.Raw | bytes]]]
    """The links, the sequence number, and the texts behind each of `KEYS`."""

_PASSED_OVER = frozenset({"s", "t", "f", "M"})
_WITHOUT_LINKS = "python_function"
_TS = 5
_CODED = {"phase": plain_text, "category": category_text, "process": plain_text, "thread": plain_text}
LINK_COLUMNS = ("device", "stream", "correlation", "external_id")


def _kinds() -> Kinds:
    """Code the columns of few values, and ask of them: flow or metadata? metadata? without links?"""
    return Kinds(lambda key: key[0] in _PASSED_OVER, lambda key: key[0] == "M", lambda key: key[1] == _WITHOUT_LINKS)


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
    thread_names: ThreadNames = field(default_factory=ThreadNames)
    counts: Counts = field(default_factory=Counts)

    def add(self, events: Sequence[_wire.Event | _wire.ExactEvent]) -> None:
        """Take over decoded events."""
        self.take(transposed(events), events)

    def take(self, fields: list[Any], events: Sequence[_wire.Event | _wire.ExactEvent]) -> None:
        """Take over decoded events whose fields have been put side by side (`transposed`)."""
        if not events:
            return
        phases, categories, names, processes, threads, times, durations, args = fields
        codes = self.kinds.look_up(phases, categories, processes, threads)
        wanted = self._wanted(codes, events)
        starts, spans = self._nanoseconds(times, durations)
        useless = wanted & (starts == _nanoseconds.ABSENT)
        if useless.any():
            self.counts.unplaced += int(np.count_nonzero(useless))
            wanted &= ~useless
        if not wanted.all():
            chosen = wanted.tolist()
            names, args = list(compress(names, chosen)), list(compress(args, chosen))
            codes, starts, spans = codes[wanted], starts[wanted], spans[wanted]
        if not len(codes):
            return
        self.kinds.add(codes)
        self.starts.add(starts)
        self.durations.add(spans)
        self.names.add(names)
        self._add_args(args, ~self.kinds.marked(2, codes))

    def _wanted(self, codes: NDArray[np.int32], events: Sequence[_wire.Event | _wire.ExactEvent]) -> NDArray[np.bool_]:
        """Mark what becomes a row; names of threads are taken here, flows are counted."""
        passed = self.kinds.marked(0, codes)
        metadata = np.flatnonzero(self.kinds.marked(1, codes)).tolist() if passed.any() else []
        self.thread_names.add([events[place] for place in metadata])
        self.counts.flows += int(np.count_nonzero(passed)) - len(metadata)
        return ~passed

    def _nanoseconds(self, times: Sequence[Any], durations: Sequence[Any]) -> tuple[NDArray[np.int64], ...]:
        if isinstance(durations[0], float):
            both = np.stack([_floats(times), _floats(durations)])
            out, finer = _nanoseconds.from_floats(both)
        else:
            out, finer = _nanoseconds.from_texts([bytes(value) for value in chain(times, durations)])
            out = out.reshape(2, -1)
        self.counts.finer_than_ns += finer
        return out[0], out[1]

    def _add_args(self, args: Sequence[msgspec.Raw], linked: NDArray[np.bool_]) -> None:
        sizes = np.fromiter(map(len, args), np.int32, len(args))
        joined = b"".join(args)
        self.args.add(joined, sizes)
        said = sizes > 0
        if not linked[said].all():
            args = list(compress(args, (linked & said).tolist()))
            joined = b"".join(args)
        linked &= said
        links, sequence, inputs = self._decode_arguments(joined, args, int(np.count_nonzero(linked)))
        self.inputs.add(linked, inputs, sequence)
        for name, values in zip(LINK_COLUMNS, links, strict=True):
            if values is None:
                self.links[name].add_absent(len(linked))
            else:
                self.links[name].add(spread(values, linked))

    def _decode_arguments(self, joined: bytes, args: Sequence[msgspec.Raw], count: int) -> _Arguments:
        """Read what arguments say that follow each other in a text, `count` of them."""
        try:
            read = _wire.ARGUMENTS.decode_lines(joined)
            if len(read) == count > 0:
                said, order, concrete, types, dims, *links = zip(*map(astuple, read), strict=True)
                device, stream, correlation, external, sequence, older = map(
                    _given, (*links[:3], said, order, links[3])
                )
                if older is not None:
                    external = older if external is None else np.maximum(external, older)
                return [device, stream, correlation, external], sequence, zip(dims, types, concrete, strict=True)
        except (*_wire.DECODE_ERRORS, OverflowError):
            pass
        return self._arguments_one_by_one([text for text in args if len(text)])

    def _arguments_one_by_one(self, args: list[msgspec.Raw]) -> _Arguments:
        links, sequence = np.full((4, len(args)), -1, np.int64), np.full(len(args), -1, np.int64)
        inputs: list[Sequence[bytes]] = [(b"",) * len(KEYS)] * len(args)
        for row, text in enumerate(args):
            try:
                found = msgspec.json.decode(text)
            except _wire.DECODE_ERRORS:
                found = None
            if isinstance(found, dict):
                keys = ("device", "stream", "correlation", "External id", "external id", "Sequence number")
                whole = [_whole(found.get(key)) for key in keys]
                links[:, row], sequence[row] = [*whole[:3], max(whole[3], whole[4])], whole[5]
                inputs[row] = [msgspec.json.encode(found[key]) if key in found else b"" for key in KEYS]
        self.counts.odd_links += bool(args)
        return list(links), sequence, inputs

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


def transposed(events: Sequence[_wire.Event | _wire.ExactEvent]) -> list[Any]:
    """Put the fields of events side by side; starts that are floats come as an array."""
    fields: list[Any] = list(zip(*map(astuple, events), strict=True))
    if fields and isinstance(fields[_TS][0], float):
        fields[_TS] = _floats(fields[_TS])
    return fields


def too_large(fields: list[Any]) -> bool:
    """Say whether a start is so large that its float may have lost nanoseconds."""
    return bool(fields) and _nanoseconds.too_large_for_floats(_floats(fields[_TS]))


def _given(values: Sequence[int]) -> NDArray[np.int64] | None:
    """Give numbers as an array; `None` where all are absent, which most columns of most pieces are."""
    return None if values.count(-1) == len(values) else np.fromiter(values, np.int64, len(values))


def _floats(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    return values if isinstance(values, np.ndarray) else np.fromiter(values, np.float64, len(values))


def _whole(value: object) -> int:
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.lstrip("-").isdigit() and len(value) < 19 else -1
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**63 else -1
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else -1
