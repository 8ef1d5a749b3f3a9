"""Do ranks come from the cache, side by side or here, always the same? Does a bad one cost the others nothing?"""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING

import pytest
import tiny

from usp_prof.contract import Manifest
from usp_prof.model.errors import InputError, UspProfError
from usp_prof.readers.cache import Cache, StoredTables
from usp_prof.readers.discovery import discover
from usp_prof.tables import _processes, _rank_process, load, read_rank
from usp_prof.tables._side_by_side import read_side_by_side
from usp_prof.tables.read_rank import Job
from usp_prof.tables.table_set import MemorySource

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.readers.found import TraceFile


def run_of(folder: Path, ranks: int = 3) -> list[TraceFile]:
    traces = {rank: tiny.Trace(rank, ranks).op(f"aten::op{rank}", 10, 5).kernel("k", 20, 7) for rank in range(ranks)}
    return list(discover(tiny.write(traces, folder)).runs[0].files)


def ops(loaded: dict[int, load.LoadedRank]) -> dict[int, list[str]]:
    return {rank: one.source.table("ops")["name"].to_pylist() for rank, one in loaded.items()}


def test_a_second_load_reads_no_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, cache, told = run_of(tmp_path / "run"), Cache(tmp_path / "cache"), []
    first, lost = load.load(files, None, cache, lambda *said: told.append(said))
    assert ops(first) == {0: ["aten::op0"], 1: ["aten::op1"], 2: ["aten::op2"]}
    assert lost == []
    assert told[-1][0] == told[-1][1] == sum(file.path.stat().st_size for file in files)
    monkeypatch.delattr(read_rank, "read")
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


def test_rows_know_their_rank(tmp_path: Path) -> None:
    loaded, _ = load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"))
    for rank, one in loaded.items():
        assert set(one.source.table("events")["rank"].to_pylist()) == {rank}


def test_the_key_tells_content_rank_and_manifest_apart(tmp_path: Path) -> None:
    one, other, _ = run_of(tmp_path / "run")
    keys = {load.rank_key(one, None), load.rank_key(other, None), load.rank_key(one, Manifest(name="x"))}
    assert len(keys) == 3
    assert load.rank_key(one, None) in keys


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


class TestSideBySide:
    """Several processes give what one gives."""

    def jobs(self, tmp_path: Path) -> list[Job]:
        return [Job(file.path, file.rank, f"key{file.rank}") for file in run_of(tmp_path / "run")]

    def ours(self, job: Job, cache: Cache) -> str:
        try:
            read_rank.store(job, Manifest(), cache)
        except UspProfError as error:
            return error.message
        return ""

    def test_all_jobs_are_done_and_damage_is_told(self, tmp_path: Path) -> None:
        jobs, cache = self.jobs(tmp_path), Cache(tmp_path / "cache")
        jobs[1].path.write_bytes(b"{}")
        done = {}
        for job, error in read_side_by_side(jobs, Manifest(), cache):
            done[job.rank] = self.ours(job, cache) if error is None else error
        assert sorted(done) == [0, 1, 2]
        assert "no list of trace events" in done[1]
        assert not done[0]
        stored = cache.open("key2")
        assert stored is not None
        assert stored.table("ops")["name"].to_pylist() == ["aten::op2"]

    def test_load_uses_it_for_large_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(load, "_LITTLE", 0)
        files = run_of(tmp_path / "run")
        files[2].path.write_bytes(b"[1]")
        loaded, lost = load.load(files, None, Cache(tmp_path / "cache"))
        assert ops(loaded) == {0: ["aten::op0"], 1: ["aten::op1"]}
        assert [(row.code, row.rank) for row in lost] == [("rank_unreadable", 2)]

    @pytest.mark.parametrize("program", ["/nonexistent/python", "/bin/false"])
    def test_processes_that_do_not_run_leave_the_work_to_us(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
    ) -> None:
        monkeypatch.setattr(load, "_LITTLE", 0)
        monkeypatch.setattr(_processes.sys, "executable", program)
        loaded, lost = load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"))
        assert sorted(loaded) == [0, 1, 2]
        assert lost == []

    def test_a_process_answers_line_by_line(self, tmp_path: Path) -> None:
        good, bad, _ = self.jobs(tmp_path)
        bad.path.write_bytes(b"")
        lines = [json.dumps({"path": str(job.path), "rank": job.rank, "key": job.key}).encode() for job in (good, bad)]
        out = io.BytesIO()
        told = json.dumps(Manifest(name="m").to_dict()).encode()
        jobs = io.BytesIO(b"\n".join([told, *lines]) + b"\n")
        assert _rank_process.main([str(tmp_path / "cache"), "1000000"], jobs, out) == 0
        first, second = [json.loads(line) for line in out.getvalue().splitlines()]
        assert first == ""
        assert "is empty" in second

    def test_a_process_without_a_cache_says_that_it_can_do_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        job = self.jobs(tmp_path)[0]
        line = json.dumps({"path": str(job.path), "rank": 0, "key": "k"}).encode()
        out = io.BytesIO()
        _rank_process.main([str(tmp_path / "file"), "1"], io.BytesIO(b"null\n" + line + b"\n"), out)
        assert out.getvalue() == b"null\n"
