"""Cached report of many ranks: stored next to their tables, and read without a new analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from usp_prof import open_run
from usp_prof.cli.app import main
from usp_prof.cli.commands import analyze
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "run"
    declared = {
        "mesh": {"dp": 2, "pp": 2},
        "work": {"steps": 2, "micro_batches": 2},
        "faults": [{"kind": "slow_rank", "rank": 1, "factor": 1.5}],
    }
    write(Declaration.from_dict(declared), path)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def report(folder: Path, store: Path, *more: str) -> str:
    target = store / "report.json"
    assert main(["analyze", str(folder), "--store", str(store), "--format", "json", "-o", str(target), *more]) == 0
    return target.read_text()


def reports_in(store: Path) -> int:
    return len(list(store.glob("derived-*/document.msgpack")))


def test_reports_of_few_ranks_are_not_cached(folder: Path, store: Path) -> None:
    before = reports_in(store)
    report(folder, store)
    assert reports_in(store) == before


def test_reports_of_many_ranks_are_cached_unchanged(folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = report(folder, store)
    monkeypatch.setattr(analyze, "FEW_RANKS", 3)
    assert report(folder, store) == results
    made = reports_in(store)
    monkeypatch.setattr(analyze, "analyze", lambda *_: pytest.fail("a kept report is read"))
    assert report(folder, store) == results
    assert reports_in(store) == made


def test_other_options_give_another_report(folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyze, "FEW_RANKS", 3)
    full = report(folder, store)
    assert report(folder, store, "--only", "breakdown") != full
    assert report(folder, store) == full


def test_a_damaged_report_is_rebuilt(folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyze, "FEW_RANKS", 3)
    full = report(folder, store)
    for stored in store.glob("derived-*/document.msgpack"):
        stored.write_bytes(b"no report")
    assert report(folder, store) == full


def test_tables_of_all_ranks_are_combined_only_when_requested(folder: Path, store: Path) -> None:
    run = open_run(folder, cache_dir=store)
    assert run.ranks == (0, 1, 2, 3)
    assert "tables" not in vars(run)
    assert run.tables.ranks == run.ranks
    assert set(run.health_of_files) <= set(run.health)
