"""Loading of ranks from the cache, in parallel or in this process: always equal; a bad one does not affect others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import tiny

from usp_prof.contract import Manifest
from usp_prof.inputs.discovery import discover
from usp_prof.model.errors import InputError
from usp_prof.store import load, rank_jobs
from usp_prof.store.cache import Cache, StoredTables
from usp_prof.store.rank_jobs import (
    digest_of_manifest,
    key_of_rank,
)
from usp_prof.tables.table_set import MemorySource

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.inputs.peek import TraceFile


def run_of(folder: Path, ranks: int = 3) -> list[TraceFile]:
    traces = {rank: tiny.Trace(rank, ranks).op(f"aten::op{rank}", 10, 5).kernel("k", 20, 7) for rank in range(ranks)}
    return list(discover(tiny.write(traces, folder)).runs[0].files)


def ops(loaded: dict[int, load.LoadedRank]) -> dict[int, list[str]]:
    return {rank: loaded_rank.source.table("ops")["name"].to_pylist() for rank, loaded_rank in loaded.items()}


def test_a_second_load_reads_no_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, cache, progress = run_of(tmp_path / "run"), Cache(tmp_path / "cache"), []
    first, lost = load.load(files, None, cache, lambda *step: progress.append(step))
    assert ops(first) == {0: ["aten::op0"], 1: ["aten::op1"], 2: ["aten::op2"]}
    assert lost == []
    assert progress[-1][0] == progress[-1][1] == sum(file.path.stat().st_size for file in files)
    monkeypatch.delattr(rank_jobs, "read_rank")
    again, _ = load.load(files, None, cache)
    assert ops(again) == ops(first)
    assert all(isinstance(loaded_rank.source, StoredTables) for loaded_rank in again.values())
    assert [loaded_rank.metadata["trace_id"] for loaded_rank in again.values()] == ["tiny0", "tiny1", "tiny2"]


@pytest.mark.parametrize("given", [None, Manifest(name="beside")])
def test_an_embedded_manifest_is_kept_if_the_run_has_no_other(tmp_path: Path, given: Manifest | None) -> None:
    """The metadata names all ranks, so storing it with each rank would grow with the square of their number."""
    inside = Manifest(name="inside", hosts={str(rank): "host" for rank in range(2000)}).to_dict()
    traces = {rank: tiny.Trace(rank, 2).op("aten::op", 10, 5).meta(usp_prof=inside) for rank in range(2)}
    files, cache = list(discover(tiny.write(traces, tmp_path / "run")).runs[0].files), Cache(tmp_path / "cache")
    for _ in range(2):
        loaded, _ = load.load(files, given, cache)
        assert {rank: "usp_prof" in loaded_rank.metadata for rank, loaded_rank in loaded.items()} == dict.fromkeys(
            range(2), given is None
        )


@pytest.mark.parametrize("room", [0, 1 << 20])
def test_new_tables_are_not_read_back_and_equal_the_stored_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(load, "_AT_HAND", room)
    files, cache = run_of(tmp_path / "run"), Cache(tmp_path / "cache")
    made, _ = load.load(files, None, cache)
    stored, _ = load.load(files, None, cache)
    for rank, loaded_rank in made.items():
        source, again = loaded_rank.source, stored[rank].source
        assert isinstance(source, StoredTables)
        for name in source.names():
            made_view, stored_view = source.view(name), again.view(name)
            assert made_view.schema == stored_view.schema
            for column in made_view.schema.names:  # compared as text, because NaN does not equal itself
                assert str(made_view.column(column).to_pylist()) == str(stored_view.column(column).to_pylist())
    shutil.rmtree(cache.folder)
    if room:
        assert made[1].source.view("kernels").column("name").to_pylist() == ["k"]


def test_a_damaged_entry_is_read_again_and_reported(tmp_path: Path) -> None:
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


def test_rows_have_their_rank(tmp_path: Path) -> None:
    loaded, _ = load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "cache"))
    for rank, loaded_rank in loaded.items():
        assert set(loaded_rank.source.table("events")["rank"].to_pylist()) == {rank}


def test_the_key_covers_content_rank_and_manifest(tmp_path: Path) -> None:
    first, second, _ = run_of(tmp_path / "run")
    of_none, of_manifest = digest_of_manifest(None), digest_of_manifest(Manifest(name="x"))
    keys = {key_of_rank(first, of_none), key_of_rank(second, of_none), key_of_rank(first, of_manifest)}
    assert len(keys) == 3
    assert key_of_rank(first, of_none) in keys


@pytest.mark.parametrize("again", [False, True], ids=["read here", "from the cache"])
def test_metadata_common_to_all_files_is_stored_once(tmp_path: Path, again: bool) -> None:
    manifest = {"mesh": {"dp": 3}, "coordinates": {str(rank): {"dp": rank} for rank in range(3)}}
    traces = {rank: tiny.Trace(rank, 3).meta(usp_prof=manifest).op("aten::op", 10, 5) for rank in range(3)}
    files = list(discover(tiny.write(traces, tmp_path / "run")).runs[0].files)
    for _ in range(1 + again):
        loaded, _ = load.load(files, None, Cache(tmp_path / "cache"))
    first, *other_metadata = (loaded[rank].metadata for rank in range(3))
    assert first["usp_prof"] == manifest
    assert all(other["usp_prof"] is first["usp_prof"] for other in other_metadata)
    assert [loaded[rank].metadata["distributedInfo"]["rank"] for rank in range(3)] == [0, 1, 2]


def test_a_damaged_rank_does_not_affect_others(tmp_path: Path) -> None:
    files = run_of(tmp_path / "run")
    files[1].path.write_bytes(b"")
    loaded, lost = load.load(files, None, Cache(tmp_path / "cache"))
    assert sorted(loaded) == [0, 2]
    assert [(row.code, row.severity, row.rank) for row in lost] == [("rank_unreadable", "data_loss", 1)]


def test_an_error_is_raised_if_no_rank_can_be_read(tmp_path: Path) -> None:
    files = run_of(tmp_path / "run", 1)
    files[0].path.write_bytes(b"{}")
    with pytest.raises(InputError, match="no list of trace events"):
        load.load(files, None, Cache(tmp_path / "cache"))


def test_a_read_only_cache_is_reported_and_everything_works(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    loaded, _ = load.load(run_of(tmp_path / "run", 1), None, Cache(tmp_path / "file"))
    assert isinstance(loaded[0].source, MemorySource)
    assert [row.code for row in loaded[0].health] == ["not_cached"]


def test_ranks_that_fit_neither_in_the_store_nor_in_memory_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(load, "free_memory", lambda: 10)
    with pytest.raises(InputError, match="the ranks do not fit in memory"):
        load.load(run_of(tmp_path / "run"), None, Cache(tmp_path / "file"))
