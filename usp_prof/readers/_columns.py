"""How do decoded events become columns? Piece by piece, with one dictionary of texts for the whole file."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import astuple

from usp_prof.readers import _nanoseconds, _wire
from usp_prof.readers._argument_texts import ArgumentTexts
from usp_prof.readers._names import Texts, category_text, plain_text
from usp_prof.readers._numbers import Numbers
from usp_prof.readers._threads import ThreadNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FLOW_AND_METADATA = frozenset({"s", "t", "f", "M"})
_WITHOUT_LINKS = "python_function"
_PHASE, _TS = 0, 5
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

    phases: Texts = field(default_factory=Texts)
    categories: Texts = field(default_factory=Texts)
    names: Texts = field(default_factory=Texts)
    processes: Texts = field(default_factory=Texts)
    threads: Texts = field(default_factory=Texts)
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
        if not events:
            return
        fields: list[Sequence[Any]] = list(zip(*map(astuple, events), strict=True))
        wanted = self._wanted(fields[_PHASE], events)
        starts = self._nanoseconds(fields[_TS])
        useless = wanted & (starts == _nanoseconds.ABSENT)
        if useless.any():
            self.counts.unplaced += int(np.count_nonzero(useless))
            wanted &= ~useless
        if not wanted.all():
            chosen = wanted.tolist()
            fields = [list(compress(field, chosen)) for field in fields]
            starts = starts[wanted]
        phases, categories, names, processes, threads, _, durations, args = fields
        if not phases:
            return
        self.starts.add(starts)
        self.durations.add(self._nanoseconds(durations))
        self.phases.add(phases)
        category = self.categories.add(categories)
        self.names.add(names)
        self.processes.add(processes)
        self.threads.add(threads)
        self._add_args(args, category != self.categories.code(_WITHOUT_LINKS))

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
            out, finer = _nanoseconds.from_floats(np.fromiter(values, np.float64, len(values)))
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
            external = [link.external for link in links]
            if b'"external id"' in joined:
                external = [max(link.external, link.external_2021) for link in links]
            return [
                np.fromiter([link.device for link in links], np.int64, len(links)),
                np.fromiter([link.stream for link in links], np.int64, len(links)),
                np.fromiter([link.correlation for link in links], np.int64, len(links)),
                np.fromiter(external, np.int64, len(links)),
            ]
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
            "phase": self.phases.array(plain_text),
            "category": self.categories.array(category_text),
            "name": self.names.array(plain_text),
            "process": self.processes.array(plain_text),
            "thread": self.threads.array(plain_text),
            "start_ns": starts,
            "dur_ns": self.durations.array(),
            **{name: column.array() for name, column in self.links.items()},
            "args": self.args.array(),
        }, rows


def _whole(value: object) -> int:
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.lstrip("-").isdigit() and len(value) < 19 else -1
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**63 else -1
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else -1
