"""Read a run: select its files (all ranks, some, or a share), and record which were left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from usp_prof.contract import Manifest
from usp_prof.inputs.discovery import Discovery, discover
from usp_prof.inputs.manifest import find_manifest, manifest_from, read_manifest
from usp_prof.inputs.peek import TraceFile
from usp_prof.inputs.remote import Location
from usp_prof.inputs.runs import FoundRun
from usp_prof.model.errors import UsageError
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import first_few, spans
from usp_prof.model.selection import numbers
from usp_prof.store.cache import Cache
from usp_prof.store.load import LoadedRank, load
from usp_prof.store.places import open_cache
from usp_prof.store.sampling import Sampling

Progress = Callable[[int, int, str], None]

_log = logging.getLogger("usp_prof")


@dataclass(frozen=True, slots=True)
class RunRead:
    """Tables of a run's ranks, and the problems found while reading."""

    chosen: FoundRun
    manifest: Manifest | None
    loaded: Mapping[int, LoadedRank]
    health: tuple[HealthRow, ...]


def read_run(
    discovery: Discovery,
    name: str | None,
    ranks: int | Iterable[int] | str | None,
    cache: Cache,
    progress: Progress | None,
    executor: Executor | None,
) -> RunRead:
    """Read the named run (else the newest): all ranks, the named ones, or those of a sampling choice."""
    run_files = discovery.run(name)
    manifest, health_of_manifest = _manifest(run_files)
    sampling = None
    if isinstance(ranks, str):
        sampling = Sampling.parse(ranks)
        chosen = _chosen_before_reading(sampling, run_files, manifest)
    else:
        chosen = None if ranks is None else numbers("ranks", ranks)
    files = _wanted(run_files, chosen)
    start_s = time.monotonic()
    _log.info("reading %d ranks of %s", len(files), run_files.name)
    loaded, lost = load(files, manifest, cache, progress, executor)
    for row in lost:
        _log.info("%s: rank %d: %s", row.code, row.rank, row.detail)
    _log.info(
        "read %d of %d ranks of %s in %.1f s", len(loaded), len(files), run_files.name, time.monotonic() - start_s
    )
    if manifest is None:
        manifest, more = _manifest_inside(loaded)
        health_of_manifest += more
    if sampling is not None and chosen is None:
        chosen = sampling.after_reading({rank: loaded_rank.source for rank, loaded_rank in loaded.items()}, manifest)
        loaded = {rank: loaded[rank] for rank in chosen}
        _log.info("chose %d ranks of %s: %s", len(loaded), run_files.name, sampling)
    health = [
        *discovery.health,
        *_other_runs(discovery, run_files),
        *_missing(run_files, loaded),
        *lost,
        *health_of_manifest,
    ]
    if chosen is not None:
        health += _left_out(run_files, chosen, str(sampling) if sampling else "")
    health += [row for loaded_rank in loaded.values() for row in loaded_rank.health]
    return RunRead(run_files, manifest, loaded, tuple(health))


@dataclass(frozen=True, slots=True)
class RanksRead:
    """A share of a run's ranks that was read into the store."""

    ranks: tuple[int, ...]
    wanted: int
    """Number of ranks in the share."""
    health: tuple[HealthRow, ...]
    store: str
    """The folder or URL."""


def read_ranks(
    path: str | Location,
    *,
    run: str | None = None,
    ranks: Iterable[int] | str | None = None,
    shard: tuple[int, int] = (0, 1),
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> RanksRead:
    """Read every `shard[1]`-th rank of a run into the store, starting with the `shard[0]`-th.

    If a sampling choice needs the tables of other ranks, these are read too. Shares are disjoint and cover the ranks
    that exist; if a run grows meanwhile, read them again. `open_run` finds their tables afterwards.
    """
    run_files = discover(path).run(run)
    manifest, _ = _manifest(run_files)
    chosen = _chosen_before_reading(Sampling.parse(ranks), run_files, manifest) if isinstance(ranks, str) else ranks
    index, count = shard
    files = sorted(_wanted(run_files, chosen), key=lambda file: file.rank)[index::count]
    cache = open_cache(cache_dir)
    if not files:
        return RanksRead((), 0, (), cache.place)
    loaded, lost = load(files, manifest, cache, progress, executor)
    rows = [row for row in lost if row.severity is Severity.DATA_LOSS]
    rows += [row for loaded_rank in loaded.values() for row in loaded_rank.health if row.code == "not_cached"]
    unstored = {row.rank for row in rows if row.code == "not_cached"}
    stored = tuple(sorted(set(loaded) - unstored))
    return RanksRead(stored, len(files), tuple(rows), cache.place)


def _chosen_before_reading(sampling: Sampling, run: FoundRun, manifest: Manifest | None) -> tuple[int, ...] | None:
    return sampling.before_reading(sorted(file.rank for file in run.files), manifest)


def _wanted(run: FoundRun, ranks: Iterable[int] | None) -> list[TraceFile]:
    if ranks is None:
        return list(run.files)
    wanted = set(ranks)
    missing = sorted(wanted - {file.rank for file in run.files})
    if missing or not wanted:
        ranks_with_traces = spans([file.rank for file in run.files])
        raise UsageError(
            f"run {run.name} has no rank {spans(missing) or '(none was named)'}",
            hint=f"recorded ranks: {ranks_with_traces}",
        )
    return [file for file in run.files if file.rank in wanted]


def _manifest(run: FoundRun) -> tuple[Manifest | None, tuple[HealthRow, ...]]:
    path = find_manifest(run.folders)
    return read_manifest(path) if path is not None else (None, ())


def _manifest_inside(loaded: Mapping[int, LoadedRank]) -> tuple[Manifest | None, tuple[HealthRow, ...]]:
    """Return the manifest that the recorder wrote into the traces, if `run.json` was not copied with them."""
    for loaded_rank in loaded.values():
        recorded = loaded_rank.metadata.get("usp_prof")
        if recorded:
            return manifest_from(recorded, "trace metadata")
    return None, ()


def _other_runs(discovery: Discovery, opened: FoundRun) -> list[HealthRow]:
    other_names = [run.name for run in discovery.runs if run is not opened]
    if not other_names:
        return []
    detail = f"the folder has several runs; opened {opened.name}, not {first_few(other_names, 8)}"
    return [HealthRow("other_runs", Severity.INFO, count=len(other_names), detail=detail)]


def _missing(run: FoundRun, loaded: Mapping[int, LoadedRank]) -> list[HealthRow]:
    world = max((file.world_size for file in run.files), default=-1)
    missing = sorted(set(range(world)) - {file.rank for file in run.files})
    if not missing or not loaded:
        return []
    absent = f"rank{'s' if len(missing) > 1 else ''} {spans(missing)}"
    detail = f"no trace of {absent} ({len(missing):,} of {world:,} ranks), so that work is unknown"
    return [HealthRow("missing_ranks", Severity.ERROR, count=len(missing), detail=detail)]


def _left_out(run: FoundRun, chosen: Collection[int], sampling: str) -> list[HealthRow]:
    """Return the ranks that have a trace and were excluded on purpose."""
    left = sorted({file.rank for file in run.files} - set(chosen))
    if not left:
        return []
    how = f"ranks {sampling}" if sampling else "ranks chosen by number"
    detail = (
        f"{len(left)} of {len(run.files)} ranks are left out ({how}); figures cover ranks {spans(chosen)} only, and "
        "waits for the other ranks are unknown"
    )
    return [HealthRow("ranks_left_out", Severity.ERROR, count=len(left), detail=detail)]
