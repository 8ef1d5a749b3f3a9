"""Prepared timelines: one folder per rank, read through memory maps, queried for what is in view.

A rank's folder has all its levels one after the other, with starts (the only column that a search reads) separate from
the rest, and sums of blocks of slices if there are many. Data of the whole run is next to the ranks' folders. A store
combines the slices and the overlay rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from usp_prof.tables.clock import fit_clocks as clock_of
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.rows import Row, Slices, rank_slices
from usp_prof.timeline.tiles import REST, SUMS, Level, block_sums, build

FORM = "timeline-6"
"""Name and version of the stored format."""
_RUN = "run.json"
_SUMS = "sums.npy"


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """Prepared timeline of one rank; its levels are relative to its own first slice, `shift_ns` after the run's."""

    rows: tuple[Row, ...]
    levels: tuple[Level, ...]
    names: tuple[str, ...]
    shift_ns: int = 0
    sums: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, SUMS))
    """Sums of blocks of its slices (see tiles.py); empty if no row has a whole block."""

    def level_for(self, pixel_ns: float) -> Level:
        """Return the coarsest level with buckets of about a pixel."""
        fine = [level for level in self.levels if level.bucket_ns <= 1.5 * pixel_ns]
        return fine[-1] if fine else self.levels[0]


@dataclass(frozen=True, slots=True)
class JobStep:
    """A step of the job on the timeline: first start to last end over ranks."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class View:
    """Entries of some rows in a range of time."""

    counts: NDArray[np.int64]
    start: NDArray[np.int64]
    rest: NDArray[np.void]
    names: NDArray[np.int64]
    bucket_ns: int


class TimelineStore:
    """Prepared timelines of a run's ranks, queried for tiles. Times are relative to `origin_ns`.

    A rank's rows are those of its slices, followed by overlays.
    """

    def __init__(
        self,
        ranks: Mapping[int, RankTimeline],
        *,
        origin_ns: int,
        end_ns: int,
        over: Mapping[int, RankTimeline] | None = None,
        steps: Sequence[JobStep] = (),
    ) -> None:
        self.ranks = dict(ranks)
        self.over = dict(over or {})
        self.steps = tuple(steps)
        self.labels: dict[int, str] = {}
        self.origin_ns = origin_ns
        self.span_ns = end_ns - origin_ns
        numbered: dict[str, int] = {}
        self._name_ids = {
            id(line): np.array([numbered.setdefault(name, len(numbered)) for name in line.names] or [0], np.int64)
            for lines in (self.ranks, self.over)
            for line in lines.values()
        }
        self.names: tuple[str, ...] = tuple(numbered)

    def rows(self, rank: int) -> tuple[Row, ...]:
        """Return a rank's rows."""
        over = self.over.get(rank)
        return self.ranks[rank].rows + (over.rows if over is not None else ())

    def line_of(self, rank: int, index: int) -> tuple[RankTimeline, NDArray[np.int64], int]:
        """Return the timeline of a rank's row, the run-wide numbers of its names, and the row's index."""
        line = self.ranks[rank]
        if index >= len(line.rows):
            line, index = self.over[rank], index - len(line.rows)
        return line, self._name_ids[id(line)], index

    def view(self, rows: Sequence[tuple[int, int]], start_ns: int, end_ns: int, pixel_ns: float) -> View:
        """Return the entries of rows (rank, index) that touch a range, no finer than the pixels."""
        counts, starts, rests, names, bucket = [], [], [], [], 0
        for rank, place in rows:
            line, name_ids, index = self.line_of(rank, place)
            level = line.level_for(pixel_ns)
            bucket = max(bucket, level.bucket_ns)
            first, last = level.touching(index, start_ns - line.shift_ns, end_ns - line.shift_ns)
            rest = level.rest[first:last]
            counts.append(last - first)
            starts.append(level.start[first:last] + line.shift_ns)
            rests.append(rest)
            names.append(name_ids[rest["name"]])
        return View(
            np.array(counts, np.int64),
            np.concatenate(starts) if starts else np.zeros(0, np.int64),
            np.concatenate(rests) if rests else np.zeros(0, REST),
            np.concatenate(names) if names else np.zeros(0, np.int64),
            bucket,
        )

    def run_names(self, rank: int, names: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the run-wide numbers of a rank's own name numbers."""
        return self._name_ids[id(self.ranks[rank])][names]

    def entries_named(self, rank: int, wanted: set[int]) -> NDArray[np.int64]:
        """Return the ground-level entries of a rank whose run-wide name number is wanted."""
        line = self.ranks[rank]
        ids = self._name_ids[id(line)]
        hit = np.isin(ids, np.fromiter(wanted, np.int64, len(wanted)))
        return np.flatnonzero(hit[line.levels[0].rest["name"]])


def prepare(tables: TableSet, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Build and write a run's timelines, on the common clock of its ranks."""
    for done, rank in enumerate(tables.ranks):
        slices = rank_slices(tables, rank)
        write(replace(slices, start_ns=clock_of(tables).align(rank, slices.start_ns)), folder / f"rank{rank}")
        if progress is not None:
            progress(done + 1, len(tables.ranks))
    steps = [(step.number, step.start_ns, step.end_ns) for step in job_steps(tables)]
    (folder / _RUN).write_text(json.dumps({"steps": steps}), encoding="utf-8")


def job_steps(tables: TableSet) -> list[JobStep]:
    """Return the job's steps, in common time."""
    bounds: dict[int, list[int]] = {}
    for rank in tables.ranks:
        steps = tables.columns("steps", rank)
        start, end = (clock_of(tables).align(rank, steps[name]) for name in ("start_ns", "end_ns"))
        for number, first, last in zip(steps["step"].tolist(), start.tolist(), end.tolist(), strict=True):
            span = bounds.setdefault(number, [first, last])
            bounds[number] = [min(span[0], first), max(span[1], last)]
    return [JobStep(number, first, last) for number, (first, last) in sorted(bounds.items())]


def load(folder: Path, ranks: Sequence[int], over: Path | None = None) -> TimelineStore:
    """Open prepared timelines, and their overlay rows."""
    lines, bounds = _load(folder, ranks)
    origin = min((start for start, _ in bounds), default=0)
    end = max((end for _, end in bounds), default=1)
    above = _load(over, ranks)[0] if over is not None else {}
    run_head = json.loads((folder / _RUN).read_text(encoding="utf-8"))
    return TimelineStore(
        {rank: replace(line, shift_ns=line.shift_ns - origin) for rank, line in lines.items()},
        over={rank: replace(line, shift_ns=line.shift_ns - origin) for rank, line in above.items()},
        origin_ns=origin,
        end_ns=end,
        steps=[JobStep(number, first - origin, last - origin) for number, first, last in run_head["steps"]],
    )


def _load(folder: Path, ranks: Sequence[int]) -> tuple[dict[int, RankTimeline], list[tuple[int, int]]]:
    """Open each rank's folder; `shift_ns` is initially the rank's own first time."""
    lines: dict[int, RankTimeline] = {}
    bounds: list[tuple[int, int]] = []
    for rank in ranks:
        path = folder / f"rank{rank}"
        head = json.loads((path / "head.json").read_text(encoding="utf-8"))
        offsets = np.load(path / "offsets.npy")
        start, rest = (np.asarray(np.load(path / f"{name}.npy", mmap_mode="r")) for name in ("start", "rest"))
        ends = np.cumsum(offsets[:, -1])
        levels = tuple(
            Level(
                bucket, offsets[i], start[ends[i] - offsets[i, -1] : ends[i]], rest[ends[i] - offsets[i, -1] : ends[i]]
            )
            for i, bucket in enumerate(head["buckets"])
        )
        rows = tuple(Row(rank, *row) for row in head["rows"])
        lines[rank] = RankTimeline(rows, levels, tuple(head["names"]), head["start_ns"], _sums(path / _SUMS))
        bounds.append((head["start_ns"], head["end_ns"]))
    return lines, bounds


def _sums(path: Path) -> NDArray[np.void]:
    return np.asarray(np.load(path, mmap_mode="r")) if path.exists() else np.zeros(0, SUMS)


def write(slices: Slices, target: Path) -> None:
    """Build and write one rank's timeline."""
    has = len(slices.start_ns) > 0
    origin = int(slices.start_ns.min()) if has else 0
    end = int((slices.start_ns + slices.dur_ns).max()) if has else 1
    levels = build(slices, origin)
    target.mkdir(parents=True)
    head = {
        "rows": [(row.track, row.kind, row.depth, row.lane) for row in slices.rows],
        "names": slices.names,
        "buckets": [level.bucket_ns for level in levels],
        "start_ns": origin,
        "end_ns": end,
    }
    (target / "head.json").write_text(json.dumps(head), encoding="utf-8")
    np.save(target / "offsets.npy", np.stack([level.offsets for level in levels]))
    np.save(target / "start.npy", np.concatenate([level.start for level in levels]))
    np.save(target / "rest.npy", np.concatenate([level.rest for level in levels]))
    sums = block_sums(levels[0])
    if len(sums):
        np.save(target / _SUMS, sums)
