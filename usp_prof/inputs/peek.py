"""Trace files: what a file states about itself, and the rank that its path states."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from usp_prof import limits
from usp_prof.inputs.remote import Location


class FileKind(StrEnum):
    """The kinds of files that may be next to or among traces."""

    TRACE = "trace"
    EXECUTION_TRACE = "execution trace"
    FLIGHT_RECORDER = "flight-recorder dump"
    DYNAMO_LOG = "Dynamo log"
    MANIFEST = "manifest"
    EMPTY = "empty file"
    JSON = "JSON, but not a trace"
    OTHER = "not JSON"
    PACKED = "packed in a way that is not read, or twice (.gz and .zst are read): unpack it"
    FOREIGN = "another kind of file"
    HOST_PROCESS = "a process without device and rank, beside ranks with device work"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A file and the facts that it states about itself; -1 and "" for missing values. A run's files have a rank."""

    path: Location
    kind: FileKind
    format: str = ""
    """Name of the trace's format, by which it is read."""
    rank: int = -1
    rank_source: str = ""
    world_size: int = -1
    host: str = ""
    start_ns: int = -1
    step: int = -1
    device: str = ""
    """Name of the first device that the file lists."""
    ranks: tuple[int, ...] = ()
    """The ranks that the file's processes state, if it states any."""


# Ranks in paths: stated in words, or as numbers that count the files.


_WORDS = (
    re.compile(r"(?<![a-z])rank[-_. ]?0*([0-9]+)(?![0-9])", re.IGNORECASE),
    re.compile(r"(?<![a-z])(?:worker|device|gpu)[-_. ]?0*([0-9]+)(?![0-9])", re.IGNORECASE),
)
_NUMBER = re.compile(r"(\d+)(?=\D*\Z)")
_SUFFIXES = (".gz", ".zst", ".json", ".trace", ".pt")


def stem(path: Location) -> str:
    """Return the file name without suffixes of compression and format."""
    name = path.name
    while any(name.endswith(suffix) for suffix in _SUFFIXES):
        name = name.rpartition(".")[0]
    return name


def rank_from_words(path: Location) -> int | None:
    """Return the rank that the file name, or else its parent folder, states in words (`rank3`, `worker_3`), or None."""
    for name in (stem(path), path.parent.name):
        for word in _WORDS:
            ranks = word.findall(name)
            if ranks:
                return limits.parse_integer(ranks[-1], limits.RANK)
    return None


def ranks_from_numbers(paths: Sequence[Location]) -> dict[Location, int] | None:
    """Interpret bare numbers as ranks, only if they count 0, 1, 2, ... over all files (or over their folders)."""
    for names in ([stem(path) for path in paths], [path.parent.name for path in paths]):
        matches = [_NUMBER.search(name) for name in names]
        numbers = [limits.parse_integer(match[1], limits.RANK) for match in matches if match is not None]
        if len(numbers) == len(paths) > 1 and set(numbers) == set(range(len(paths))):
            return {path: number for path, number in zip(paths, numbers, strict=True) if number is not None}
    return None
