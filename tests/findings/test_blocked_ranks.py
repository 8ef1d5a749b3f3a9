"""Waits and copies that only one rank has: the findings name the rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from made_training import STEPS, Job

from usp_prof.findings.rules.blocked_host import BlockingCopies, BlockingSync
from usp_prof.run import open_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from made_training import Rank

    from usp_prof.findings.draft import Draft
    from usp_prof.tables.table_set import TableSet

READS = 4


class ReadingJob(Job):
    """A job in which some ranks read a value several times in each step, before the optimizer."""

    def __init__(self, readers: set[int]) -> None:
        self.readers = readers
        super().__init__("replicas", 5)

    def _run_step(self, rank: Rank, program: Callable[[Rank], None]) -> None:
        def with_reads(rank: Rank) -> None:
            program(rank)
            for _ in range(READS if rank.number in self.readers else 0):
                self._read_scalar(rank)

        super()._run_step(rank, with_reads)


def tables_with(folder: Path, readers: set[int]) -> TableSet:
    job = ReadingJob(readers)
    job.simulate(None, 3)
    job.write(folder)
    return open_run(folder, cache_dir=folder / "cache").tables


def drafts_of(tables: TableSet) -> tuple[Draft, Draft]:
    (waits,), (copies,) = BlockingSync.look(tables), BlockingCopies.look(tables)
    return waits, copies


def test_waits_and_copies_of_one_rank_name_it(tmp_path: Path) -> None:
    waits, copies = drafts_of(tables_with(tmp_path / "one", {2}))
    assert (dict(waits.where), dict(copies.where)) == ({"rank": 2}, {"rank": 2})
    assert waits.title.startswith("The host of rank 2 waits for the device")
    assert copies.title.endswith(f" block the host in {STEPS} steps, most on rank 2")


def test_waits_and_copies_of_all_ranks_name_none(tmp_path: Path) -> None:
    waits, copies = drafts_of(tables_with(tmp_path / "all", {0, 1, 2, 3}))
    assert (dict(waits.where), dict(copies.where)) == ({}, {})
    assert waits.title.startswith("The host waits for the device")
    assert copies.title.endswith(f" block the host in {STEPS} steps")


def test_a_wait_outside_recorded_ops_names_its_call(tmp_path: Path) -> None:
    """A recording in light mode has no ops, so there is no op to move out of the step."""
    tables = open_run(Path(__file__).parents[2] / "traces" / "gpu-light", cache_dir=tmp_path).tables
    (waits,) = BlockingSync.look(tables)
    assert waits.title.endswith("longest in cudaStreamSynchronize")
    assert waits.advice == "Record CPU ops to see where cudaStreamSynchronize is called"
