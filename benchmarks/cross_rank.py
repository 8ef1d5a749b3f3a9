"""Cost of the cross-rank part alone (call matching, clock fit, waits), on synthetic tables with known ground truth.

`--analyses` adds the analyses that read all parts: collectives, stragglers, the critical path. Their step times consist
of communication only, because the tables have nothing else.

    python benchmarks/cross_rank.py                          256 and 1,024 ranks of 4,000 events
    python benchmarks/cross_rank.py --ranks 16384
    python benchmarks/cross_rank.py --ranks 16384 --alone    in one process; otherwise with workers

Only the tables that this part reads are stored: `collectives`, `activities`, `steps` and `ranks`, of a job of dp x tp x
pp on hosts of 8 ranks. Each rank has `events / 8` calls, mostly on tp. Clocks of hosts differ by up to 40 ms; rank 5 is
late for each call of its tp group. Exits with 1 if a clock is off by more than 20 us, a call lacks a member, or another
rank is reported as last.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import collectives as collective_analysis
from usp_prof.analyses import critical_path, stragglers
from usp_prof.store.cache import StoredTables, write_parquet
from usp_prof.store.workers import Workers
from usp_prof.tables import activities, calls, clock, collectives, steps
from usp_prof.tables import ranks as rank_table
from usp_prof.tables.build import empty, table
from usp_prof.tables.catalog import SCHEMAS
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    from usp_prof.columns.table import View

SCHEMA_OF = {schema.name: schema for schema in SCHEMAS}

TENSOR, PIPELINE, HOST = 8, 8, 8
STEPS, DATA_CALLS, STAGE_CALLS = 3, 8, 2
SLOW, SLOW_NS = 5, 400_000
OFFSET_NS = 20_000
BASE_NS = 1_700_000_000_000_000_000


def offset_of(rank: int) -> int:
    """Return how far a rank's clock is ahead, in ns."""
    return (rank // HOST) * 7_919_317 % 40_000_000


def arrivals(ranks: np.ndarray, calls_of_kind: int, kind: int) -> np.ndarray:
    """Return how late each rank (row) is for each of its calls (column): up to 50 us, determined by rank and call."""
    number = np.arange(calls_of_kind, dtype=np.uint64)
    mixed = (
        ranks[:, None].astype(np.uint64) * 2_654_435_761 + number * 40_503 + kind * 97
    ) * 11_400_714_819_323_198_485
    late = (mixed >> np.uint64(40)).astype(np.int64) % 50_000
    return late + np.where(ranks[:, None] == SLOW, SLOW_NS * (kind == 0), 0)


def parts_of(rank: int, world: int, talks: int) -> dict[str, np.ndarray | list[str]]:
    """Return the rows of a rank's `collectives`: calls on tp, on dp, then on pp (tied weights), in each step."""
    replica = TENSOR * PIPELINE
    tensor = np.arange(TENSOR) + rank // TENSOR * TENSOR
    data = np.arange(rank % replica, world, replica)
    stages = np.arange(PIPELINE) * TENSOR + rank // replica * replica + rank % TENSOR
    columns: dict[str, list[np.ndarray]] = {"start_ns": [], "dur_ns": [], "step": [], "sequence": []}
    groups: list[str] = []
    counts = (max(1, talks // STEPS - DATA_CALLS) * STEPS, DATA_CALLS * STEPS, STAGE_CALLS * STEPS)
    kinds = zip((tensor, data, stages), ("tp", "dp", "pp"), counts, strict=True)
    for kind, (members, name, count) in enumerate(kinds):
        number = np.arange(count)
        step = number // (count // STEPS)
        scheduled = BASE_NS + step * 1_000_000_000 + kind * 300_000_000 + number % (count // STEPS) * 1_000_000
        late = arrivals(members, count, kind)
        own = late[np.searchsorted(members, rank)]
        columns["start_ns"].append(scheduled + own + offset_of(rank))
        columns["dur_ns"].append(late.max(axis=0) + 200_000 - own)
        columns["step"].append(step)
        columns["sequence"].append(number)
        groups += [f"{name}@{','.join(map(str, members.tolist()))}"] * count
    values_of_column = {name: np.concatenate(values) for name, values in columns.items()}
    order = np.argsort(values_of_column["start_ns"], kind="stable")
    made: dict[str, np.ndarray | list[str]] = {name: values[order] for name, values in values_of_column.items()}
    group_names = np.array(groups, object)[order]
    made["group"] = group_names
    made["axis"] = np.array([name.partition("@")[0] for name in group_names.tolist()], object)
    made["group_size"] = np.where(made["axis"] == "dp", len(data), np.where(made["axis"] == "tp", TENSOR, PIPELINE))
    made["part"] = np.arange(len(order))
    return made


def write(folder: Path, world: int, talks: int) -> None:
    """Store the tables of all ranks."""
    for rank in range(world):
        place = folder / str(rank)
        place.mkdir()
        columns = {"rank": rank, "op": "all_reduce", "library": "nccl", **parts_of(rank, world, talks)}
        row = {"rank": rank, "world_size": world, "host": f"host{rank // HOST}", "base_ns": BASE_NS}
        begin = BASE_NS + np.arange(STEPS) * 1_000_000_000 + offset_of(rank)
        of_steps = {"rank": rank, "step": np.arange(STEPS), "start_ns": begin, "end_ns": begin + 1_000_000_000}
        work = {name: columns[name] for name in ("rank", "start_ns", "dur_ns", "step", "axis")}
        work |= {"kind": "communication", "collective": columns["part"], "event": columns["part"], "lane": "stream 7"}
        for schema, made, count in (
            (collectives.SCHEMA, columns, len(columns["part"])),
            (rank_table.SCHEMA, row, 1),
            (steps.SCHEMA, of_steps, STEPS),
            (activities.SCHEMA, work, len(columns["part"])),
        ):
            write_parquet(table(schema, made, count), place / f"{schema.name}.parquet")


class Stored(StoredTables):
    """Tables of one rank; tables that were not written are empty."""

    def view(self, name: str) -> View:
        """Return one table."""
        return super().view(name) if self.path(name).exists() else empty(SCHEMA_OF[name])


class Spending:
    """CPU time and wall time since the last reading, and the peak memory so far."""

    def __init__(self) -> None:
        self._cpu, self._clock = time.process_time(), time.monotonic()

    def cells(self) -> str:
        """Format the values as table cells, with the CPU time of this process only, without its workers."""
        cpu, clock = time.process_time(), time.monotonic()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        text = f"{cpu - self._cpu:.1f} s | {clock - self._clock:.1f} s | {peak:.0f} MB"
        self._cpu, self._clock = cpu, clock
        return text


def measure(folder: Path, world: int, *, analyses: bool, alone: bool) -> str:
    """Join the ranks, and return a row of the table."""
    tables = TableSet({rank: Stored(folder / str(rank), {"tables": []}) for rank in range(world)})
    tables.workers = None if alone else Workers()
    spending = Spending()
    matched_calls, clocks = calls.match_calls(tables), clock.fit_clocks(tables)
    spent = spending.cells()
    error = clocks.offset_ns + np.array([offset_of(rank) for rank in range(world)])
    error -= int(np.median(error))
    columns = matched_calls.columns()
    of_slow = matched_calls.touching([SLOW]) & columns.matches("axis", "tp")
    wrong = [
        text
        for text, is_wrong in (
            (f"a clock is {np.abs(error).max() / 1000:.0f} us off", np.abs(error).max() > OFFSET_NS),
            ("calls miss members", not columns["complete"].all()),
            ("another rank is the last", not (columns["late_rank"][of_slow] == SLOW).all()),
        )
        if is_wrong
    ]
    verdict = ", ".join(wrong) or "yes"
    if analyses:
        for analysis in (collective_analysis, stragglers, critical_path):
            analysis.compute(tables).values()
            print(f"{analysis.__name__.rpartition('.')[2]}: {spending.cells()}", file=sys.stderr)
    return f"| {world} | {len(matched_calls.parts)} | {spent} | {verdict} |"


def main() -> int:
    """Measure each number of ranks in a separate process, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="256,1024", metavar="LIST")
    parser.add_argument("--events", type=int, default=4_000)
    parser.add_argument("--analyses", action="store_true", help="ask the analyses too that go through all parts")
    parser.add_argument("--alone", action="store_true", help="without processes that measure ranks and blocks")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "RANKS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(measure(Path(args.measure[0]), int(args.measure[1]), analyses=args.analyses, alone=args.alone))
        return 0
    print(f"{args.events} events per rank, load {os.getloadavg()[0]:.0f}")
    print("| ranks | parts | CPU of the head | by the clock | its peak | right |")
    print("|---|---|---|---|---|---|")
    wrong = 0
    for world in map(int, args.ranks.split(",")):
        with tempfile.TemporaryDirectory(prefix="usp-prof-cross-rank-") as name:
            write(Path(name), world, args.events // 8)
            command = [sys.executable, __file__, "--measure", name, str(world)]
            command += ["--analyses"] * args.analyses + ["--alone"] * args.alone
            row = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        wrong += not row.endswith("| yes |")
        print(row, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
