"""Executors: processes, threads, a user's own, and one that loses its workers all give the same run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import tiny

from usp_prof.cli.opening import cluster_executor
from usp_prof.contract import Manifest
from usp_prof.extras.cluster import dask
from usp_prof.inputs.discovery import discover
from usp_prof.inputs.formats import read_rank
from usp_prof.model.errors import UsageError, UspProfError
from usp_prof.store import executors, load, rank_jobs, running
from usp_prof.store.cache import Cache, StoredTables
from usp_prof.store.executors import local_executor, workers_for
from usp_prof.store.rank_jobs import RankJob
from usp_prof.store.running import ATTEMPTS, NOT_DONE, run_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from usp_prof.inputs.peek import TraceFile
    from usp_prof.inputs.trace_record import TraceRecord


def run_of(folder: Path, ranks: int = 3) -> list[TraceFile]:
    traces = {rank: tiny.Trace(rank, ranks).op(f"aten::op{rank}", 10, 5).kernel("k", 20, 7) for rank in range(ranks)}
    return list(discover(tiny.write(traces, folder)).runs[0].files)


def _lost_with_its_worker() -> None:
    raise KeyError("the worker was killed")


def ops(loaded: dict[int, load.LoadedRank]) -> dict[int, list[str]]:
    return {rank: loaded_rank.source.table("ops")["name"].to_pylist() for rank, loaded_rank in loaded.items()}


class TestExecutors:
    """Any executor gives the same run."""

    def jobs(self, tmp_path: Path) -> list[RankJob]:
        return [RankJob(file.path, file.rank, f"key{file.rank}") for file in run_of(tmp_path / "run")]

    def test_workers_store_tables_and_report_damage(self, tmp_path: Path) -> None:
        jobs, cache = self.jobs(tmp_path), Cache(tmp_path / "cache")
        jobs[1].path.write_bytes(b"{}")
        with local_executor(2) as workers:
            done = {job.rank: result for job, result in run_jobs(jobs, Manifest(), cache, workers)}
        assert sorted(done) == [0, 1, 2]
        assert "no list of trace events" in done[1].error
        assert done[0].stored
        stored = cache.open("key2")
        assert stored is not None
        assert stored.table("ops")["name"].to_pylist() == ["aten::op2"]

    def test_a_worker_and_this_process_read_a_large_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read_here = []

        def counted(path: Path, rank: int, name: str) -> TraceRecord:
            read_here.append(path)
            return read_rank(path, rank, name)

        monkeypatch.setattr(load, "_LITTLE", 0)
        monkeypatch.setattr(executors, "processors", lambda: 2)
        monkeypatch.setattr(rank_jobs, "read_rank", counted)  # in this process, not in the worker
        files = run_of(tmp_path / "run", 24)
        files[2].path.write_bytes(b"[1]")
        loaded, lost = load.load(files, None, Cache(tmp_path / "cache"))
        assert ops(loaded) == {rank: [f"aten::op{rank}"] for rank in range(24) if rank != 2}
        assert [(row.code, row.rank) for row in lost] == [("rank_unreadable", 2)]
        assert 0 < len(read_here) < 24

    def test_stopping_ends_the_processes_without_a_word(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted(futures: list[Future[Any]]) -> Iterator[Future[Any]]:
            """Wait like the standard executor until Ctrl-C, while most jobs wait for a worker."""
            yield next(as_completed(futures))
            raise KeyboardInterrupt

        monkeypatch.setattr(load, "_LITTLE", 0)
        monkeypatch.setattr(running, "as_completed", interrupted)
        trace = tiny.Trace()
        for number in range(5_000):
            trace.op("aten::mm", number * 10, 5)
        files = run_of(tmp_path / "run", 24)
        for file in files:
            trace.write(file.path)
        with pytest.raises(KeyboardInterrupt):
            load.load(files, None, Cache(tmp_path / "cache"))
        assert capfd.readouterr().err == ""

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
            failed_jobs = 0

            def submit(self, run: Callable[..., Any], job: RankJob, *args: Any) -> Future[Any]:
                if job.rank != 1:
                    return super().submit(run, job, *args)
                self.failed_jobs += 1
                return super().submit(_lost_with_its_worker)

        with Losing(2) as workers:
            loaded, lost = load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"), executor=workers)
        assert sorted(loaded) == [0, 2]
        assert [(row.code, row.rank) for row in lost] == [("rank_unreadable", 1)]
        assert "KeyError" in lost[0].detail
        assert workers.failed_jobs == ATTEMPTS

    def test_an_executor_that_was_shut_down_is_refused_in_a_line(self, tmp_path: Path) -> None:
        workers = ThreadPoolExecutor(1)
        workers.shutdown()
        with pytest.raises(UsageError, match="accepts no jobs: RuntimeError: cannot schedule"):
            load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"), executor=workers)

    def test_futures_that_only_look_like_the_standard_ones_will_do(self, tmp_path: Path) -> None:
        class Job:
            """Like submitit's jobs: done after a few status requests, raise their error, and are not a `Future`."""

            def __init__(self, run: Callable[[], object]) -> None:
                self._run, self._asked = run, 0

            def done(self) -> bool:
                self._asked += 1
                return self._asked > 2

            def result(self) -> object:
                return self._run()

        class Jobs:
            def submit(self, run: Callable[..., object], *args: Any) -> Job:
                return Job(partial(run, *args))

        files = run_of(tmp_path / "run")
        files[1].path.write_bytes(b"[1]")
        loaded, lost = load.load(files, None, Cache(tmp_path / "cache"), executor=Jobs())  # type: ignore[arg-type]
        assert sorted(loaded) == [0, 2]
        assert [row.rank for row in lost] == [1]

    def test_an_executor_without_futures_is_refused(self, tmp_path: Path) -> None:
        class References:
            """Like Ray: the result of `submit` is not a future."""

            def submit(self, *_: object) -> object:
                return object()

        with pytest.raises(UsageError, match="returns object, which has no `done`"):
            load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"), executor=References())  # type: ignore[arg-type]

    def test_futures_with_invalid_results_are_refused_in_one_line(self, tmp_path: Path) -> None:
        class Forgetful(ThreadPoolExecutor):
            """Executor whose jobs return nothing, like a wrapper that drops the result."""

            def submit(self, *_: object, **__: object) -> Future[None]:
                return super().submit(lambda: None)

        with Forgetful(1) as workers, pytest.raises(UsageError, match="futures return NoneType instead of the job"):
            load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"), executor=workers)

    def test_workers_of_another_version_store_nothing(self, tmp_path: Path) -> None:
        class Other(ThreadPoolExecutor):
            def submit(self, run: Callable[..., Any], job: RankJob, *args: Any) -> Future[Any]:
                return super().submit(run, replace(job, made_by=("0.0.1", "other")), *args)

        with Other(1) as workers, pytest.raises(UspProfError, match=r"another usp-prof .* than this machine \(0.0.1\)"):
            load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"), executor=workers)
        assert not (tmp_path / "cache").exists()

    def test_a_file_that_changes_while_it_is_read_is_not_stored(self, tmp_path: Path) -> None:
        class Meanwhile(ThreadPoolExecutor):
            def submit(self, run: Callable[..., Any], job: RankJob, *args: Any) -> Future[Any]:
                if job.rank == 1:
                    shutil.copy(tmp_path / "run" / files[2].path.name, job.path)
                return super().submit(run, job, *args)

        files, cache = run_of(tmp_path / "run"), Cache(tmp_path / "cache")
        with Meanwhile(1) as workers:
            loaded, lost = load.load(files, None, cache, executor=workers)
        assert sorted(loaded) == [0, 2]
        assert "was changed while it was read" in lost[0].detail
        assert cache.size().entries == 2
        again, _ = load.load(files, None, cache)
        assert again[1].source.table("ops")["name"].to_pylist() == ["aten::op2"]

    def test_an_entry_that_is_seen_late_is_waited_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Lagging(Cache):
            """Like NFS: a file that was looked for too early stays invisible for a while."""

            def open(self, key: str) -> StoredTables | None:
                attempts[key] = attempts.get(key, 0) + 1
                return None if attempts[key] < 4 else super().open(key)

        attempts: dict[str, int] = {}
        monkeypatch.setattr(load, "_LOOKED_EVERY_S", 0.01)
        monkeypatch.delattr(load, "build_job")
        with ThreadPoolExecutor(2) as threads:
            loaded, lost = load.load(run_of(tmp_path / "run"), None, Lagging(tmp_path / "cache"), executor=threads)
        assert sorted(ops(loaded)) == [0, 1, 2]
        assert lost == []

    def test_a_job_is_small_however_many_ranks_there_are(self, tmp_path: Path) -> None:
        class Pickling(ThreadPoolExecutor):
            def submit(self, run: Callable[..., Any], *args: Any) -> Future[Any]:
                sizes.append(len(pickle.dumps(args)))
                return super().submit(run, *args)

        sizes: list[int] = []
        manifest = Manifest(
            coordinates={str(rank): {"dp": rank} for rank in range(5_000)},
            hosts={str(rank): f"node{rank}" for rank in range(5_000)},
        )
        with Pickling(1) as workers:
            loaded, _ = load.load(run_of(tmp_path / "run"), manifest, Cache(tmp_path / "cache"), executor=workers)
        assert max(sizes) < 3_000
        hosts = [loaded_rank.source.table("ranks")["host"].to_pylist() for loaded_rank in loaded.values()]
        assert hosts == [["node0"], ["node1"], ["node2"]]

    @pytest.mark.parametrize(
        ("hosts", "coordinates", "source"),
        [({}, {}, "name"), ({}, {"0": {}}, "manifest"), ({"0": "a"}, {}, "manifest"), ({"1": "a"}, {"0": {}}, "name")],
    )
    def test_the_source_of_a_rank_is_the_same_on_workers(
        self, hosts: dict[str, str], coordinates: dict[str, dict[str, int]], source: str, tmp_path: Path
    ) -> None:
        trace = tiny.Trace(0, 1).op("aten::mm", 10, 5).to_dict()
        del trace["distributedInfo"]
        (tmp_path / "rank0.json").write_text(json.dumps(trace))
        tables, _ = rank_jobs.build(tmp_path / "rank0.json", 0, Manifest(hosts=hosts, coordinates=coordinates))
        assert tables["ranks"]["rank_source"].to_pylist() == [source]

    def test_no_more_workers_than_memory_holds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        jobs = self.jobs(tmp_path)
        monkeypatch.setattr(executors, "processors", lambda: 8)
        monkeypatch.setattr(executors, "free_memory", lambda: 2 << 30)
        assert workers_for(jobs) == 3, "one a file"
        with jobs[0].path.open("ab") as stream:
            stream.truncate(40 << 20)  # compressed: it unpacks to about twelve times the size
        assert workers_for(jobs) == 2
        monkeypatch.setattr(executors, "free_memory", lambda: 0)
        assert workers_for(jobs) == 1

    def test_free_memory_is_known_on_linux(self) -> None:
        free = executors.free_memory()
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
        assert executors.processors() == (os.cpu_count() or 1)


class TestDaskScheduler:
    """`--executor dask:ADDRESS`: an address without a scheduler ends the command with a message."""

    def test_another_server_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("distributed")
        monkeypatch.setattr(dask, "_CONNECT_S", 1)
        monkeypatch.setattr(dask, "_GREETING_S", 1)
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            pytest.raises(UsageError, match="does not answer"),
            cluster_executor(f"dask:tcp://127.0.0.1:{silent.getsockname()[1]}"),
        ):
            raise AssertionError("no worker runs jobs there")

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_a_scheduler_without_workers_is_waited_for_with_a_message(self, tmp_path: Path) -> None:
        pytest.importorskip("distributed")
        from dask_cluster import dask_cluster  # noqa: PLC0415 - the extra `cluster`

        messages: list[str] = []
        with dask_cluster(0, tmp_path) as cluster, cluster_executor(f"dask:{cluster.address}", messages.append):
            pass
        assert messages == [f"the Dask scheduler at {cluster.address} has no workers yet: waiting for them"]
