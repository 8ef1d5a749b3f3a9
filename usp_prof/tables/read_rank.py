"""How does one file become the tables of a rank? Read, built, and stored where they are kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from usp_prof.contract import TRACE_METADATA_KEY
from usp_prof.readers.collection import no_collection
from usp_prof.readers.kineto import read
from usp_prof.readers.manifest import manifest_from
from usp_prof.readers.mapped import from_the_system
from usp_prof.tables.rank import build_rank

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from usp_prof.contract import Manifest
    from usp_prof.readers.cache import Cache, StoredTables
    from usp_prof.readers.parted import Parted


@dataclass(frozen=True, slots=True)
class Job:
    """One file to read, as which rank, and the key under which its tables are stored."""

    path: Path
    rank: int
    key: str


def build(path: Path, rank: int, manifest: Manifest | None) -> tuple[dict[str, pa.Table | Parted], dict[str, Any]]:
    """Read one file into tables, with the note that is stored beside them."""
    with no_collection():
        raw = read(path)
        if manifest is None and TRACE_METADATA_KEY in raw.metadata:
            manifest, _ = manifest_from(raw.metadata[TRACE_METADATA_KEY], path.name)
        health = tuple(replace(row, rank=rank, file=path.name) for row in raw.health)
        raw = replace(raw, health=health, file=path.name)
        tables = build_rank(raw, rank, manifest)
    note = {
        "metadata": dict(raw.metadata),
        "health": [asdict(row) for row in health],
        "json_bytes": raw.json_bytes,
    }
    return tables, note


def store(job: Job, manifest: Manifest | None, cache: Cache) -> StoredTables:
    """Read one file and store its tables."""
    with from_the_system():
        tables, note = build(job.path, job.rank, manifest)
        return cache.store(job.key, tables, note)
