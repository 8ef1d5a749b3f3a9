"""Do ranks come from the cache, side by side or here, always the same? Does a bad one cost the others nothing?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import tiny

from usp_prof.contract import Manifest
from usp_prof.inputs.discovery import discover
from usp_prof.model.errors import InputError
from usp_prof.store import load, rank_jobs
from usp_prof.store.cache import Cache, StoredTables
from usp_prof.store.rank_jobs import (
    ATTEMPTS,
    NOT_DONE,
    RankJob,
    key_of_rank,
    local_executor,
    run_jobs,
    text_of_manifest,
    workers_for,
)
from usp_prof.tables.table_set import MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from usp_prof.inputs.runs import TraceFile


def run_of(folder: Path, ranks: int = 3) -> list[TraceFile]:
    traces = {rank: tiny.Trace(rank, ranks).op(f"aten::op{rank}", 10, 5).kernel("k", 20, 7) for rank in range(ranks)}
    return list(discover(tiny.write(traces, folder)).runs[0].files)


def _lost_with_its_worker() -> None:
    raise KeyError("the worker was killed")


def ops(loaded: dict[int, load.LoadedRank]) -> dict[int, list[str]]:
    return {rank: one.source.table("ops")["name"].to_pylist() for rank, one in loaded.items()}


def test_a_second_load_reads_no_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, cache, told = run_of(tmp_path / "run"), Cache(tmp_path / "cache"), []
    first, lost = load.load(files, None, cache, lambda *said: told.append(said))
    assert ops(first) == {0: ["aten::op0"], 1: ["aten::op1"], 2: ["aten::op2"]}
    assert lost == []
    assert told[-1][0] == told[-1][1] == sum(file.path.stat().st_size for file in files)
    monkeypatch.delattr(rank_jobs, "read")
    again, _ = load.load(files, None, cache)
    assert ops(again) == ops(first)
    assert all(isinstance(one.source, StoredTables) for one in again.values())
    assert [one.metadata["trace_id"] for one in again.values()] == ["tiny0", "tiny1", "tiny2"]


@pytest.mark.parametrize("room", [0, 1 << 20])
def test_what_was_just_made_is_not_read_back_and_says_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(load, "_AT_HAND", room)
    files, cache = run_of(tmp_path / "run"), Cache(tmp_path / "cache")
    made, _ = load.load(files, None, cache)
    stored, _ = load.load(files, None, cache)
    for rank, one in made.items():
        source, again = one.source, stored[rank].source
        assert isinstance(source, StoredTables)
        for name in source.names():
            here, there = source.view(name), again.view(name)
            assert here.schema == there.schema
            for column in here.schema.names:  # by their spelling: what is not known is no number, and equals nothing
                assert str(here.column(column).to_pylist()) == str(there.column(column).to_pylist())
    shutil.rmtree(cache.folder)
    if room:
        assert made[1].source.view("kernels").column("name").to_pylist() == ["k"]


def test_a_damaged_entry_is_read_anew_and_said(tmp_path: Path) -> None:
    files, cache = run_of(tmp_path / "run"), Cache(tmp_path / "cache")
    first, _ = load.load(files, None, cache)
    path = cache.folder / first[1].key / "ops.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    again, rows = load.load(files, None, Cache(tmp_path / "cache"))
    assert ops(again) == ops(first)
    assert [(row.code, row.rank) for row in rows] == [("cache_damaged", 1)]
    assert load.load(files, None, Cache(tmp_path / "cache"))[1] == []


def test_rows_know_their_rank(tmp_path: Path) -> None:
    loaded, _ = load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"))
    for rank, one in loaded.items():
        assert set(one.source.table("events")["rank"].to_pylist()) == {rank}


def test_the_key_tells_content_rank_and_manifest_apart(tmp_path: Path) -> None:
    one, other, _ = run_of(tmp_path / "run")
    unnamed, named = text_of_manifest(None), text_of_manifest(Manifest(name="x"))
    keys = {key_of_rank(one, unnamed), key_of_rank(other, unnamed), key_of_rank(one, named)}
    assert len(keys) == 3
    assert key_of_rank(one, unnamed) in keys


@pytest.mark.parametrize("again", [False, True], ids=["read here", "from the cache"])
def test_what_all_files_say_alike_is_kept_once(tmp_path: Path, again: bool) -> None:
    manifest = {"mesh": {"dp": 3}, "coordinates": {str(rank): {"dp": rank} for rank in range(3)}}
    traces = {rank: tiny.Trace(rank, 3).meta(usp_prof=manifest).op("aten::op", 10, 5) for rank in range(3)}
    files = list(discover(tiny.write(traces, tmp_path / "run")).runs[0].files)
    for _ in range(1 + again):
        loaded, _ = load.load(files, None, Cache(tmp_path / "cache"))
    first, *others = (loaded[rank].metadata for rank in range(3))
    assert first["usp_prof"] == manifest
    assert all(other["usp_prof"] is first["usp_prof"] for other in others)
    assert [loaded[rank].metadata["distributedInfo"]["rank"] for rank in range(3)] == [0, 1, 2]


def test_one_bad_rank_never_costs_the_others(tmp_path: Path) -> None:
    files = run_of(tmp_path / "run")
    files[1].path.write_bytes(b"")
    loaded, lost = load.load(files, None, Cache(tmp_path / "cache"))
    assert sorted(loaded) == [0, 2]
    assert [(row.code, row.severity, row.rank) for row in lost] == [("rank_unreadable", "data_loss", 1)]


def test_when_no_rank_can_be_read_it_raises(tmp_path: Path) -> None:
    files = run_of(tmp_path / "run", 1)
    files[0].path.write_bytes(b"{}")
    with pytest.raises(InputError, match="no list of trace events"):
        load.load(files, None, Cache(tmp_path / "cache"))


def test_a_cache_that_cannot_be_written_is_said_and_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    loaded, _ = load.load(run_of(tmp_path / "run", 1), None, Cache(tmp_path / "file"))
    assert isinstance(loaded[0].source, MemorySource)
    assert [row.code for row in loaded[0].health] == ["not_cached"]


class TestExecutors:
    """Whoever runs the jobs, the run is the same."""

    def jobs(self, tmp_path: Path) -> list[RankJob]:
        return [RankJob(file.path, file.rank, f"key{file.rank}") for file in run_of(tmp_path / "run")]

    def test_workers_store_tables_and_tell_of_damage(self, tmp_path: Path) -> None:
        jobs, cache = self.jobs(tmp_path), Cache(tmp_path / "cache")
        jobs[1].path.write_bytes(b"{}")
        with local_executor(jobs) as workers:
            done = {job.rank: result for job, result in run_jobs(jobs, Manifest(), cache, workers)}
        assert sorted(done) == [0, 1, 2]
        assert "no list of trace events" in done[1].error
        assert done[0].stored
        stored = cache.open("key2")
        assert stored is not None
        assert stored.table("ops")["name"].to_pylist() == ["aten::op2"]

    def test_large_runs_are_read_by_processes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(load, "_LITTLE", 0)
        monkeypatch.delattr(rank_jobs, "read")  # here, not in the workers
        files = run_of(tmp_path / "run")
        files[2].path.write_bytes(b"[1]")
        loaded, lost = load.load(files, None, Cache(tmp_path / "cache"))
        assert ops(loaded) == {0: ["aten::op0"], 1: ["aten::op1"]}
        assert [(row.code, row.rank) for row in lost] == [("rank_unreadable", 2)]

    def test_any_executor_will_do(self, tmp_path: Path) -> None:
        files = run_of(tmp_path / "run")
        with ThreadPoolExecutor(2) as threads:
            loaded, _ = load.load(files, None, Cache(tmp_path / "cache"), executor=threads)
        assert sorted(ops(loaded)) == [0, 1, 2]

    def test_a_worker_that_is_killed_leaves_its_file_to_us(self, tmp_path: Path) -> None:
        class Killed(ProcessPoolExecutor):
            def submit(self, *_: object, **__: object) -> Future[object]:
                return super().submit(os._exit, 9)

        files, cache = run_of(tmp_path / "run"), Cache(tmp_path / "cache")
        with Killed(1) as workers:
            loaded, lost = load.load(files, None, cache, executor=workers)
        assert sorted(ops(loaded)) == [0, 1, 2]
        assert lost == []

    def test_a_rank_that_fails_three_times_is_given_up_and_costs_the_others_nothing(self, tmp_path: Path) -> None:
        class Losing(ThreadPoolExecutor):
            asked = 0

            def submit(self, run: Callable[..., Any], job: RankJob, *args: Any) -> Future[Any]:
                if job.rank != 1:
                    return super().submit(run, job, *args)
                self.asked += 1
                return super().submit(_lost_with_its_worker)

        with Losing(2) as workers:
            loaded, lost = load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"), executor=workers)
        assert sorted(loaded) == [0, 2]
        assert [(row.code, row.rank) for row in lost] == [("rank_unreadable", 1)]
        assert "KeyError" in lost[0].detail
        assert workers.asked == ATTEMPTS

    def test_no_more_workers_than_memory_holds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        jobs = self.jobs(tmp_path)
        monkeypatch.setattr(rank_jobs, "processors", lambda: 8)
        monkeypatch.setattr(rank_jobs, "free_memory", lambda: 2 << 30)
        assert workers_for(jobs) == 3, "one a file"
        with jobs[0].path.open("ab") as stream:
            stream.truncate(40 << 20)  # packed: it unpacks to about twelve times as much
        assert workers_for(jobs) == 2
        assert workers_for(jobs, most=1) == 1
        monkeypatch.setattr(rank_jobs, "free_memory", lambda: 0)
        assert workers_for(jobs) == 1

    def test_free_memory_is_known_on_linux(self) -> None:
        free = rank_jobs.free_memory()
        assert free is None or 0 < free < 1 << 50

    def test_processes_that_cannot_start_leave_the_work_to_us(self, tmp_path: Path) -> None:
        class Refusing(ThreadPoolExecutor):
            def submit(self, *_: object, **__: object) -> Future[object]:
                raise OSError("no more processes")

        jobs = self.jobs(tmp_path)
        with Refusing(1) as workers:
            assert {result for _, result in run_jobs(jobs, None, Cache(tmp_path / "cache"), workers)} == {NOT_DONE}

    def test_workers_without_a_cache_leave_the_work_to_us(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        jobs = self.jobs(tmp_path)
        with ThreadPoolExecutor(1) as threads:
            done = [result for _, result in run_jobs(jobs, None, Cache(tmp_path / "file"), threads)]
        assert done == [NOT_DONE] * 3

    def test_the_largest_file_is_read_first(self, tmp_path: Path) -> None:
        jobs = self.jobs(tmp_path)
        jobs[1].path.write_bytes(b" " * 100_000)
        with ThreadPoolExecutor(1) as threads:
            first = next(run_jobs(jobs, None, Cache(tmp_path / "cache"), threads))
        assert first[0].rank == 1

    def test_a_script_needs_no_main_guard(self, tmp_path: Path) -> None:
        run_of(tmp_path / "run")
        script = tmp_path / "script.py"
        script.write_text(
            "print('begun')\nfrom usp_prof import open_run\nfrom usp_prof.store import load\nload._LITTLE = 0\n"
            f"run = open_run({str(tmp_path / 'run')!r}, cache_dir={str(tmp_path / 'cache')!r})\nprint(run.ranks)\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
        assert done.stderr == ""
        assert done.stdout.splitlines() == ["begun", "(0, 1, 2)"]

    def test_processors_are_counted_where_the_system_has_no_affinity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        assert rank_jobs.processors() == (os.cpu_count() or 1)
