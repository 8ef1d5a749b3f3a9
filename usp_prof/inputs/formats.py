"""Trace formats: which one a file has, and reading a rank from it.

A format is a class in a folder next to this file. It turns its files into trace records (`trace_record`), and nothing
above `usp_prof.inputs` knows where a record came from. One file may contain several ranks. What a format does not
record is declared (`cannot_tell`): its ranks have a health row that says so, and figures that need it are not shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from usp_prof.inputs.kineto import format as kineto
from usp_prof.inputs.peek import TraceFile
from usp_prof.inputs.remote import Location
from usp_prof.inputs.trace_record import TraceRecord
from usp_prof.model.health import HealthRow, Severity


class Format(Protocol):
    """A kind of trace files: how they are recognized and read."""

    @property
    def name(self) -> str:
        """The name that tables and messages use."""

    @property
    def endings(self) -> tuple[str, ...]:
        """Ends of the names of such files, in lower case; other files are not opened in a folder."""

    @property
    def cannot_tell(self) -> tuple[str, ...]:
        """What no file of this format tells, in words."""

    def peek(self, path: Location, *, to_end: bool) -> TraceFile | None:
        """Return what a file states about itself, or None if it has another format.

        Only a small part of the file is read; with `to_end`, all of it, for times and steps that are only there.
        """

    def ranks(self, path: Location) -> tuple[int, ...]:
        """Return the ranks that the processes of a file state; reads the file to its end."""

    def last_ns(self, path: Location) -> int:
        """Return the latest start among a file's last events, about its end; -1 if unknown."""

    def has_device_work(self, path: Location) -> bool:
        """Return whether a file has device work, or calls that launch it."""

    def read(self, path: Location, rank: int) -> TraceRecord:
        """Read one rank of a file; raise InputError only if nothing can be read."""


FORMATS: tuple[Format, ...] = kineto.FORMATS
"""All formats, in the order in which they are tried; a format for files with the same endings comes before Kineto."""


def peek(path: Location, *, to_end: bool = False) -> TraceFile:
    """Return what a file states about itself, by the first format that recognizes it."""
    return next(seen for format_ in FORMATS if (seen := format_.peek(path, to_end=to_end)) is not None)


def all_endings() -> tuple[str, ...]:
    """Return the ends of the names of trace files."""
    return tuple(dict.fromkeys(ending for format_ in FORMATS for ending in format_.endings))


def by_name(name: str) -> Format:
    """Return a format by the name that `peek` returned."""
    return next(format_ for format_ in FORMATS if format_.name == name)


def read_rank(path: Location, rank: int, name: str = "") -> TraceRecord:
    """Read one rank of a file in the named format, or in the one that the file has."""
    format_ = by_name(name or peek(path).format)
    record = format_.read(path, rank)
    if not format_.cannot_tell:
        return record
    detail = f"{format_.name} traces do not record: {', '.join(sorted(format_.cannot_tell))}"
    row = HealthRow("not_in_format", Severity.INFO, count=len(format_.cannot_tell), detail=detail)
    return replace(record, health=(*record.health, row))
