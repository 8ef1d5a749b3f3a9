"""Rank jobs: the key of a rank's tables, and the job that reads and stores them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from usp_prof._version import __version__, fingerprint
from usp_prof.columns.arrow import Parted
from usp_prof.contract import TRACE_METADATA_KEY, Manifest
from usp_prof.inputs.formats import read_rank
from usp_prof.inputs.manifest import manifest_from
from usp_prof.inputs.memory import no_collection
from usp_prof.inputs.object_stores import ExpiredError
from usp_prof.inputs.peek import TraceFile
from usp_prof.inputs.remote import Location, RemotePath
from usp_prof.model.errors import InputError, UspProfError
from usp_prof.model.health import Severity
from usp_prof.model.printable import readable
from usp_prof.store.cache import UNBOUNDED, CacheUnwritableError
from usp_prof.store.places import cache_at
from usp_prof.tables.catalog import ROOMS, build_rank

# Keys. The trace's content, the rank, the manifest, this package's version, and the code that reads and builds
# determine a rank's tables: all of them are part of the key.

_BLOCK = 1 << 18
"""Bytes of a file that are read at once."""


def key_of_rank(file: TraceFile, manifest_digest: str) -> str:
    """Return the key of a rank's tables. For the manifest, which names every rank, one digest serves all ranks."""
    return content_key(file.path, file.path.name, file.rank, manifest_digest, *made_by())


def made_by() -> tuple[str, str]:
    """Return what determines the tables of a trace: this package's version and its code that reads and builds."""
    return __version__, fingerprint(*ROOMS)


def digest_of_manifest(manifest: Manifest | None) -> str:
    """Return a short text for keys that changes with the manifest."""
    text = msgspec.json.encode(manifest.to_dict() if manifest else None, order="sorted")
    return hashlib.blake2b(text, digest_size=20).hexdigest()


def content_key(path: Location, *parts: object) -> str:
    """Return the key of a file: a hash of its bytes and of all other inputs.

    XXH3 with 128 bits runs at reading speed. Accidental collisions do not occur in practice, and deliberate ones would
    gain nothing. For a file on an object store, URL, size and ETag replace the bytes, which would have to be fetched.
    """
    content = xxhash.xxh3_128()
    if isinstance(path, RemotePath):
        path = path.with_stat()
        if path.stamp:
            return _key(f"{path.url} {path.size} {path.stamp}".encode(), parts)
    block = memoryview(bytearray(_BLOCK))
    try:
        with path.open("rb", buffering=0) as stream:
            while size := stream.readinto(block):
                content.update(block[:size])
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint="check the path and its permissions") from None
    return _key(content.digest(), parts)


def _key(content: bytes, parts: tuple[object, ...]) -> str:
    text = b"\0".join((content, *(str(part).encode("utf-8", "surrogateescape") for part in parts)))
    return hashlib.blake2b(text, digest_size=20).hexdigest()


# Jobs: one file read, its tables built and stored.


@dataclass(frozen=True, slots=True)
class RankJob:
    """One file to read, its rank, and the key under which its tables are stored."""

    path: Location
    rank: int
    key: str
    format: str = ""
    """Name of the format of the file; empty: detected when it is read."""
    stamp: tuple[int, int] | None = None
    """Size and time of the file before its key was computed; None: unknown, or an object with its own check."""
    made_by: tuple[str, str] | None = None
    """The code version that the key is for, see `made_by`; None: that of the reader."""


class OtherVersionError(UspProfError):
    """The workers have another version of this package than the caller, so their results cannot be used."""


def refuse_other_version(of_caller: tuple[str, str], of_worker: tuple[str, str]) -> None:
    """Raise `OtherVersionError` if version and code of the caller and of this worker differ."""
    if of_caller != of_worker:
        raise OtherVersionError(
            f"the workers have another usp-prof ({of_worker[0]}) than this machine ({of_caller[0]})",
            hint="install the same version on all of them",
        )


def stamp_of(path: Location) -> tuple[int, int] | None:
    """Return size and modification time of a local file, to detect changes."""
    if isinstance(path, RemotePath):
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def build_job(job: RankJob, manifest: Manifest | None) -> tuple[dict[str, pa.Table | Parted], dict[str, Any]]:
    """Read a job's file as `build` does; refuse a file that changed since its key was computed."""
    tables, note = build(job.path, job.rank, manifest, job.format)
    if job.stamp is not None and stamp_of(job.path) != job.stamp:
        raise InputError(f"{readable(job.path.name)} was changed while it was read", hint="open the run again")
    return tables, note


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a job: its tables are stored, the file is unusable (`error`), or the store is not writable."""

    stored: bool
    error: str = ""


def build(
    path: Location, rank: int, manifest: Manifest | None, format_name: str = ""
) -> tuple[dict[str, pa.Table | Parted], dict[str, Any]]:
    """Read one file into tables; return them with the note that is stored with them."""
    with no_collection():
        record = read_rank(path, rank, format_name)
        metadata = dict(record.metadata)
        if manifest is not None:  # it names all ranks in each of their files, and the run's own manifest has priority
            metadata.pop(TRACE_METADATA_KEY, None)
        if manifest is None and TRACE_METADATA_KEY in record.metadata:
            manifest, _ = manifest_from(record.metadata[TRACE_METADATA_KEY], readable(path.name))
        health = tuple(replace(row, rank=rank, file=readable(path.name)) for row in record.health)
        record = replace(record, health=health, file=readable(path.name))
        tables = build_rank(record, rank, manifest_of_rank(manifest, rank))
    note = {
        "metadata": metadata,
        "health": [*map(asdict, health), *_worse_than_info(tables["health"], {row.code for row in health})],
        "json_bytes": record.json_bytes,
    }
    return tables, note


def manifest_of_rank(manifest: Manifest | None, rank: int) -> Manifest | None:
    """Return the part of the manifest that a rank's own tables need; its size does not grow with the number of ranks.

    If the manifest names hosts, the hosts give the known ranks; else the coordinates do.
    """
    if manifest is None:
        return None
    name = str(rank)
    hosts = {name: manifest.hosts[name]} if name in manifest.hosts else {}
    is_known_by_place = not manifest.hosts and name in manifest.coordinates
    coordinates = {name: manifest.coordinates[name]} if is_known_by_place else {}
    return replace(manifest, hosts=hosts, coordinates=coordinates, groups=[], stages={}, join_rate={}, notes=[])


def _worse_than_info(table: pa.Table, codes_of_file: Collection[str]) -> list[dict[str, Any]]:
    """Return the problems found while building tables; rows that only limit a figure stay in the table."""
    rows = table.to_pylist()
    return [row for row in rows if row["severity"] != Severity.INFO and row["code"] not in codes_of_file]


def run_job(job: RankJob, manifest: Manifest | None, cache_folder: str) -> JobResult:
    """Read one file and store its tables. Arguments and result can be pickled: workers run this function.

    The caller keeps the cache within its limit, because a worker does not know the run's other ranks. Raises
    `ExpiredError` or `OtherVersionError` if nothing more can be read; any other problem of the file is part of the
    result.
    """
    if job.made_by is not None:
        refuse_other_version(job.made_by, made_by())
    try:
        tables, note = build_job(job, manifest)
        cache_at(cache_folder, UNBOUNDED).store(job.key, tables, note)
    except CacheUnwritableError:
        return JobResult(stored=False)
    except ExpiredError:
        raise
    except UspProfError as error:
        return JobResult(stored=False, error=error.message)
    return JobResult(stored=True)
