"""Where do the levels of detail lie, and what is in view? One folder for each rank, read through memory maps."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dashboard.timeline.pyramid import REST, Level, build
from dashboard.timeline.rows import Row, rank_slices
from usp_prof.tables import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from dashboard.timeline.rows import Slices
    from usp_prof.tables.table_set import TableSet

VERSION = 2


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """The prepared timeline of one rank; its names are numbered by `name_ids` over the whole run."""

    rows: tuple[Row, ...]
    levels: tuple[Level, ...]
    names: tuple[str, ...]

    def level_for(self, pixel_ns: float) -> Level:
        """Choose the coarsest level whose buckets are about a pixel wide."""
        fine = [level for level in self.levels if level.bucket_ns <= 1.5 * pixel_ns]
        return fine[-1] if fine else self.levels[0]


@dataclass(frozen=True, slots=True)
class View:
    """The entries of some rows in a range of time."""

    counts: NDArray[np.int64]
    start: NDArray[np.int64]
    rest: NDArray[np.void]
    names: NDArray[np.int64]
    bucket_ns: int


class TimelineStore:
    """The prepared timelines of a run's ranks, ready to be asked for tiles. Times are relative to `origin_ns`."""

    def __init__(self, ranks: Mapping[int, RankTimeline], *, origin_ns: int, end_ns: int) -> None:
        self.ranks = dict(ranks)
        self.origin_ns = origin_ns
        self.span_ns = end_ns - origin_ns
        numbered: dict[str, int] = {}
        self._name_ids = {
            rank: np.array([numbered.setdefault(name, len(numbered)) for name in line.names] or [0], np.int64)
            for rank, line in self.ranks.items()
        }
        self.names: tuple[str, ...] = tuple(numbered)

    def view(self, rows: Sequence[tuple[int, int]], start_ns: int, end_ns: int, pixel_ns: float) -> View:
        """Give the entries of rows (rank, index) that touch a range, no finer than the pixels."""
        counts, starts, rests, names, bucket = [], [], [], [], 0
        for rank, index in rows:
            line = self.ranks[rank]
            level = line.level_for(pixel_ns)
            bucket = max(bucket, level.bucket_ns)
            first, last = _touching(level, index, start_ns, end_ns)
            rest = level.rest[first:last]
            counts.append(last - first)
            starts.append(level.start[first:last])
            rests.append(rest)
            names.append(self._name_ids[rank][rest["name"]])
        return View(
            np.array(counts, np.int64),
            np.concatenate(starts) if starts else np.zeros(0, np.int64),
            np.concatenate(rests) if rests else np.zeros(0, REST),
            np.concatenate(names) if names else np.zeros(0, np.int64),
            bucket,
        )

    def named(self, rank: int, wanted: set[int]) -> NDArray[np.int64]:
        """Find the ground-level entries of a rank whose run-wide name number is wanted."""
        ids = self._name_ids[rank]
        hit = np.isin(ids, np.fromiter(wanted, np.int64, len(wanted)))
        return np.flatnonzero(hit[self.ranks[rank].levels[0].rest["name"]])


def prepare(tables: TableSet, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Build and write what is missing of a run's timelines, on the common clock of its ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    for done, rank in enumerate(tables.ranks):
        target = folder / f"rank{rank}-{VERSION}"
        if not target.exists():
            slices = rank_slices(tables, rank)
            write(replace(slices, start_ns=clock.of(tables).align(rank, slices.start_ns)), target)
        if progress is not None:
            progress(done + 1, len(tables.ranks))


def load(folder: Path, ranks: Sequence[int]) -> TimelineStore:
    """Open prepared timelines."""
    lines: dict[int, RankTimeline] = {}
    bounds: list[tuple[int, int]] = []
    for rank in ranks:
        path = folder / f"rank{rank}-{VERSION}"
        head = json.loads((path / "head.json").read_text(encoding="utf-8"))
        offsets = np.load(path / "offsets.npy")
        levels = tuple(
            Level(
                bucket,
                offsets[i],
                np.load(path / f"start{i}.npy", mmap_mode="r"),
                np.load(path / f"rest{i}.npy", mmap_mode="r"),
            )
            for i, bucket in enumerate(head["buckets"])
        )
        rows = tuple(Row(rank, track, kind, depth) for track, kind, depth in head["rows"])
        lines[rank] = RankTimeline(rows, levels, tuple(head["names"]))
        bounds.append((head["start_ns"], head["end_ns"]))
    origin = min((start for start, _ in bounds), default=0)
    end = max((end for _, end in bounds), default=1)
    shifted = {rank: _shift(line, bounds[i][0] - origin) for i, (rank, line) in enumerate(lines.items())}
    return TimelineStore(shifted, origin_ns=origin, end_ns=end)


def _shift(line: RankTimeline, by: int) -> RankTimeline:
    """Move a rank's own origin to the run's; the starts are read into memory (8 bytes an entry)."""
    levels = tuple(Level(x.bucket_ns, x.offsets, np.asarray(x.start) + by, x.rest) for x in line.levels)
    return RankTimeline(line.rows, levels, line.names)


def write(slices: Slices, target: Path) -> None:
    """Build and write one rank's timeline; the folder appears whole or not at all."""
    has = len(slices.start_ns) > 0
    origin = int(slices.start_ns.min()) if has else 0
    end = int((slices.start_ns + slices.dur_ns).max()) if has else 1
    levels = build(slices, origin)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    head = {
        "rows": [(row.track, row.kind, row.depth) for row in slices.rows],
        "names": slices.names,
        "buckets": [level.bucket_ns for level in levels],
        "start_ns": origin,
        "end_ns": end,
    }
    (temporary / "head.json").write_text(json.dumps(head), encoding="utf-8")
    np.save(temporary / "offsets.npy", np.stack([level.offsets for level in levels]))
    for i, level in enumerate(levels):
        np.save(temporary / f"start{i}.npy", level.start)
        np.save(temporary / f"rest{i}.npy", level.rest)
    try:
        os.replace(temporary, target)  # noqa: PTH105 - Path.replace is the same; the name says that it is atomic
    except OSError:  # another process was first: its result is the same
        shutil.rmtree(temporary, ignore_errors=True)


def _touching(level: Level, row: int, start_ns: int, end_ns: int) -> tuple[int, int]:
    low, high = int(level.offsets[row]), int(level.offsets[row + 1])
    starts = level.start[low:high]
    first = low + int(np.searchsorted(starts, start_ns, side="right"))
    if first > low and level.start[first - 1] + level.rest["dur"][first - 1] > start_ns:
        first -= 1
    last = low + int(np.searchsorted(starts, end_ns, side="left"))
    return first, max(first, last)
