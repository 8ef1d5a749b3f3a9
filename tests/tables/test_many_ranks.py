"""Many ranks: memory stays within its limit, and every figure is the same."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from golden_reports import ROOT

from usp_prof.report.build import analyze, build
from usp_prof.report.writers import json_text
from usp_prof.run import open_run
from usp_prof.store.cache import StoredTables, write_parquet
from usp_prof.tables import table_set
from usp_prof.tables.table_set import MemorySource, TableSet

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

RANKS, ROWS = 40, 10_000
BYTES = ROWS * 8
"""Of the table of one rank."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(RANKS):
        (folder / str(rank)).mkdir()
        number = np.arange(ROWS, dtype=np.int64) * 1_000_003 % 999_983 + rank
        write_parquet(pa.table({"number": number}), folder / str(rank) / "numbers.parquet")
    return folder


def tables_of(folder: Path) -> TableSet:
    return TableSet({rank: StoredTables(folder / str(rank), {"tables": ["numbers"]}) for rank in range(RANKS)})


def held_after_two_rounds(folder: Path) -> int:
    """Read a column of every rank twice; return the bytes of columns in memory at the end."""
    gc.collect()  # memory of other tests is not freed in between
    before = pa.total_allocated_bytes()
    tables = tables_of(folder)
    for _ in range(2):
        for rank in tables.ranks:
            number = tables.columns("numbers", rank)["number"]
            assert int(number[0]) == rank
            assert len(tables.memo_of_rank(rank, "half", lambda number=number: number[::2])) == ROWS // 2
    return pa.total_allocated_bytes() - before


def test_few_ranks_stay_in_memory(stored: Path) -> None:
    assert held_after_two_rounds(stored) >= RANKS * BYTES


@pytest.mark.parametrize("bound", [12, 20])
def test_many_ranks_stay_in_memory_up_to_the_limit(stored: Path, monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    monkeypatch.setattr(table_set, "FEW_RANKS", RANKS - 1)
    monkeypatch.setattr(table_set, "HELD_BYTES", bound * BYTES)
    held = held_after_two_rounds(stored)
    assert (bound - 1) * BYTES < held < (bound + 1) * BYTES


def test_the_first_ranks_of_a_pass_are_reused_in_the_next(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_set, "FEW_RANKS", RANKS - 1)
    monkeypatch.setattr(table_set, "HELD_BYTES", 20 * BYTES)
    tables = tables_of(stored)
    built = []
    for number in range(2):
        for rank in tables.ranks:
            tables.columns("numbers", rank)
            tables.memo_of_rank(rank, "seen", lambda at=(number, rank): built.append(at))
    again = [rank for number, rank in built if number]
    assert 0 not in again
    assert 20 <= len(again) < RANKS


def test_combining_a_column_of_all_ranks_keeps_no_rank_in_memory(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_set, "FEW_RANKS", RANKS - 1)
    before = pa.total_allocated_bytes()
    tables = tables_of(stored)
    together = tables.together("numbers", ["number"])
    assert pa.total_allocated_bytes() - before < 2 * BYTES
    assert together["number"][::ROWS].tolist() == list(range(RANKS))


def test_tables_without_a_file_are_never_released(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_set, "FEW_RANKS", 0)
    monkeypatch.setattr(table_set, "HELD_BYTES", 0)
    opened = tables_of(stored)
    tables = TableSet({rank: MemorySource({"numbers": opened.view("numbers", rank).to_table()}) for rank in range(12)})
    assert [int(tables.columns("numbers", rank)["number"][0]) for rank in (*range(12), *range(12))] == [*range(12)] * 2


@pytest.mark.parametrize("run", ["recorded-ep-imbalance", "recorded-slow-rank"])
def test_a_report_is_the_same_if_no_rank_stays_in_memory(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report() -> str:
        opened = open_run(ROOT / "traces" / run, cache_dir=tmp_path)
        opened.tables.kept = None  # findings are computed again
        return json_text.write(build(opened.tables, analyze(opened.tables), name=opened.name))

    held = report()
    monkeypatch.setattr(table_set, "FEW_RANKS", 0)
    monkeypatch.setattr(table_set, "HELD_BYTES", 0)
    monkeypatch.setattr(table_set, "_LATELY_USED", 1)
    assert report() == held
