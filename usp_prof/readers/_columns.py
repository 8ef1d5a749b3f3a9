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
from usp_prof.readers._numbers import Numbers
from usp_prof.readers._threads import ThreadNames
from usp_prof.readers.argument_texts import ArgumentTexts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FLOW_AND_METADATA = frozenset({"s", "t", "f", "M"})
_WITHOUT_LINKS = "python_function"
_PHASE, _TS = 0, 5
_CODED = {"phase": plain_text, "category": category_text, "process": plain_text, "thread": plain_text}
_CATEGORY = 1
LINK_COLUMNS = ("device", "stream", "correlation", "external_id")


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

    kinds: Kinds = field(default_factory=lambda: Kinds((_CATEGORY, _WITHOUT_LINKS)))
    names: Texts = field(default_factory=Texts)
    starts: Numbers[np.int64] = field(default_factory=lambda: Numbers(np.int64))
    durations: Numbers[np.int64] = field(default_factory=lambda: Numbers(np.int64))
    links: dict[str, Numbers[np.int64]] = field(
        default_factory=lambda: {name: Numbers(np.int64) for name in LINK_COLUMNS}
    )
    args: ArgumentTexts = field(default_factory=ArgumentTexts)
    thread_names: ThreadNames = field(default_factory=ThreadNames)
    counts: Counts = field(default_factory=Counts)

    def add(self, events: Sequence[_wire.Event | _wire.ExactEvent]) -> None:
        """Take over decoded events."""
        self.take(transposed(events), events)

    def take(self, fields: list[Any], events: Sequence[_wire.Event | _wire.ExactEvent]) -> None:
        """Take over decoded events whose fields have been put side by side (`transposed`)."""
        if not events:
            return
        wanted = self._wanted(fields[_PHASE], events)
        starts = self._nanoseconds(fields[_TS])
        useless = wanted & (starts == _nanoseconds.ABSENT)
        if useless.any():
            self.counts.unplaced += int(np.count_nonzero(useless))
            wanted &= ~useless
        if not wanted.all():
            chosen = wanted.tolist()
            fields = [() if place == _TS else list(compress(field, chosen)) for place, field in enumerate(fields)]
            starts = starts[wanted]
        phases, categories, names, processes, threads, _, durations, args = fields
        if not phases:
            return
        self.starts.add(starts)
        self.durations.add(self._nanoseconds(durations))
        self.names.add(names)
        self._add_args(args, ~self.kinds.add(phases, categories, processes, threads))

    def _wanted(self, phases: Sequence[str], events: Sequence[_wire.Event | _wire.ExactEvent]) -> NDArray[np.bool_]:
        """Mark what becomes a row; names of threads are taken here, flows are counted."""
        passed = set(phases) & _FLOW_AND_METADATA
        if not passed:
            return np.ones(len(phases), bool)
        if "M" in passed:
            self.thread_names.add([event for event in events if event.ph == "M"])
        passed_over = np.fromiter(map(passed.__contains__, phases), bool, len(phases))
        self.counts.flows += int(np.count_nonzero(passed_over)) - phases.count("M")
        return ~passed_over

    def _nanoseconds(self, values: Sequence[Any]) -> NDArray[np.int64]:
        if isinstance(values[0], float):
            out, finer = _nanoseconds.from_floats(_floats(values))
        else:
            out, finer = _nanoseconds.from_texts([bytes(value) for value in values])
        self.counts.finer_than_ns += finer
        return out

    def _add_args(self, args: Sequence[msgspec.Raw], linked: NDArray[np.bool_]) -> None:
        linked &= self.args.add(args) > 0
        columns = self._decode_links(list(compress(args, linked.tolist())))
        for name, values in zip(LINK_COLUMNS, columns, strict=True):
            column = np.full(len(args), -1, np.int64)
            column[linked] = values
            self.links[name].add(column)

    def _decode_links(self, args: list[msgspec.Raw]) -> list[NDArray[np.int64]]:
        joined = b"[" + b",".join(args) + b"]"
        try:
            links = _wire.LINKS.decode(joined)
            flat = chain.from_iterable(map(astuple, links))
            device, stream, correlation, external, older = (
                np.fromiter(flat, np.int64, 5 * len(links)).reshape(len(links), 5).T
            )
            return [device, stream, correlation, np.maximum(external, older)]
        except (*_wire.DECODE_ERRORS, OverflowError):
            return self._links_one_by_one(args)

    def _links_one_by_one(self, args: list[msgspec.Raw]) -> list[NDArray[np.int64]]:
        out = np.full((4, len(args)), -1, np.int64)
        for row, text in enumerate(args):
            try:
                found = msgspec.json.decode(text)
            except _wire.DECODE_ERRORS:
                found = None
            if isinstance(found, dict):
                keys = ("device", "stream", "correlation", "External id", "external id")
                whole = [_whole(found.get(key)) for key in keys]
                out[:, row] = [*whole[:3], max(whole[3], whole[4])]
        self.counts.odd_links += 1
        return list(out)

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


def _floats(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    return values if isinstance(values, np.ndarray) else np.fromiter(values, np.float64, len(values))


def _whole(value: object) -> int:
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.lstrip("-").isdigit() and len(value) < 19 else -1
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**63 else -1
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else -1
