"""Blocks of groups: any number of blocks gives the figures of a single one."""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import made
import numpy as np
import pytest
from made import Row, part

from usp_prof.analyses import breakdown, collectives, critical_path, moe, overlap, pipeline, step_time, stragglers
from usp_prof.model.errors import InputError
from usp_prof.replay import representatives
from usp_prof.run import open_run
from usp_prof.synth.declaration import Declaration
from usp_prof.synth.write import write
from usp_prof.tables import calls, clock
from usp_prof.tables.matching import blocks
from usp_prof.tables.matching.shelves import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from usp_prof.columns.table import Columns
    from usp_prof.tables.table_set import TableSet

ANALYSES = (breakdown, collectives, critical_path, moe, overlap, pipeline, step_time, stragglers)
RECORDED = Path(__file__).parents[2] / "traces" / "recorded-interleaved"


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make up a run of two hosts, with a straggler and clocks apart."""
    folder = tmp_path_factory.mktemp("skewed")
    declared = {
        "mesh": {"dp": 2, "tp": 2, "pp": 2},
        "work": {"steps": 2, "micro_batches": 2},
        "clocks": {"ranks_per_host": 4, "offset_ns": [0, 7_919_317]},
        "faults": [{"kind": "slow_rank", "rank": 5, "factor": 1.5}],
    }
    write(Declaration.from_dict(declared), folder)
    return folder


def figures(tables: TableSet) -> list[list[str]]:
    """Return each row of the tables of calls, parts and clocks as a text, so that NaN equals NaN."""
    result = calls.match_calls(tables)
    rows = [table.to_pylist() for table in (result.calls, calls.build_parts(tables), clock.build(tables))]
    delivered = [
        ns for rank in tables.ranks for ns in sorted(result.parts.of_rank(rank, "delivered_ns")["delivered_ns"])
    ]
    return [[str(row) for row in table] for table in (*rows, delivered)]


def in_blocks(path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, most_parts: int) -> tuple[int, list[list[str]]]:
    monkeypatch.setattr(blocks, "MOST_PARTS", most_parts)
    tables = open_run(path, cache_dir=store).tables
    return len(blocks.plan_of(tables).blocks), figures(tables)


@pytest.mark.parametrize("most_parts", [1, 40])
def test_the_figures_do_not_depend_on_the_blocks(
    skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_parts: int
) -> None:
    spilled, in_memory = in_blocks(skewed, tmp_path, monkeypatch, 1 << 20)
    monkeypatch.setattr(blocks, "PUT_AT_ONCE", 100)  # a few ranks of this run, of which one is cut
    several, apart = in_blocks(skewed, tmp_path, monkeypatch, most_parts)
    assert not spilled  # all in memory
    assert several > 2
    assert apart == in_memory


def test_each_rank_is_read_to_count_and_to_deal_its_parts_however_many_blocks_have_them(
    skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MOST_PARTS", 1)
    tables, read = open_run(skewed, cache_dir=tmp_path).tables, Counter[int]()
    one_by_one = tables.one_by_one

    def counted(name: str, ranks: Iterable[int] | None = None) -> Iterator[tuple[int, Columns]]:
        for rank, columns in one_by_one(name, ranks):
            read[rank] += name == "collectives"
            yield rank, columns

    monkeypatch.setattr(tables, "one_by_one", counted)
    calls.match_calls(tables)
    assert read == dict.fromkeys(tables.ranks, 2)


def test_recorded_transfers_of_gloo_stay_in_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The median over all transfers decides how long they carried data."""
    _, spilled = in_blocks(RECORDED, tmp_path, monkeypatch, 1 << 20)
    several, apart = in_blocks(RECORDED, tmp_path, monkeypatch, 1)
    assert several > 1
    assert set(spilled[-1]) != {"0"}
    assert apart == spilled


def answers(path: Path, store: Path) -> list[str]:
    """Return all values and notes of all analyses as text, so that NaN equals NaN, and the representatives."""
    tables = open_run(path, cache_dir=store).tables
    results = [analysis.compute(tables) for analysis in ANALYSES]
    texts = [str(row) for result in results for row in (*result.values(), *result.notes)]
    return [*texts, *map(str, calls_of(tables).to_pylist()), str(representatives.representatives(tables).tables.ranks)]


def calls_of(tables: TableSet) -> pa.Table:
    """Return the calls of half of the ranks."""
    return calls.match_calls(tables).among(tables.ranks[::2]).calls


@pytest.mark.slow
@pytest.mark.parametrize(
    "traces", ["skewed", "recorded-interleaved", "recorded-ep-imbalance", "recorded-zero3-prefetch"]
)
def test_no_analysis_depends_on_the_blocks_and_on_where_they_are(
    traces: str, skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = skewed if traces == "skewed" else RECORDED.parent / traces
    monkeypatch.setattr(representatives, "MOST_NODES", 1000)  # few enough for replicas to represent each other
    expected = answers(path, tmp_path)
    monkeypatch.setattr(blocks, "MOST_PARTS", 10)
    assert answers(path, tmp_path) == expected
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(calls, "MOST_HELD", 0)
    assert answers(path, tmp_path) == expected
    gc.collect()
    assert not list(tmp_path.glob("usp-prof-*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_folder_without_room_is_reported(tmp_path: Path) -> None:
    (tmp_path / "start_ns").symlink_to("/dev/full")
    with pytest.raises(InputError, match="No space left on device") as refused:
        Shelf(tmp_path).put({"start_ns": np.arange(1 << 17)})
    assert "TMPDIR" in refused.value.hint


def rows(*parts: Row) -> dict[str, list[Row]]:
    return {"collectives": [p | {"part": i} for i, p in enumerate(parts)], "ranks": [{"host": "", "base_ns": 1}]}


def test_calls_that_arrive_at_once_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks name groups and operations in different orders, and only sends and receives connect the two pairs."""
    by_rank = {
        rank: rows(
            *(part(op, 100, 190, group=f"tp@{rank // 2 * 2},{rank // 2 * 2 + 1}", sequence=1)
              for op in (("all_gather", "all_reduce") if rank % 2 else ("all_reduce", "all_gather"))),
            part("send" if rank < 2 else "recv", 200, 290, group=f"pp@{rank % 2},{rank % 2 + 2}", peer=(rank + 2) % 4),
        )
        for rank in range(4)
    }  # fmt: skip
    expected = figures(made.run(by_rank))
    monkeypatch.setattr(blocks, "MOST_PARTS", 3)
    tables = made.run(by_rank)
    assert figures(tables) == expected
    assert [block.count for block in blocks.plan_of(tables).blocks] == [4, 2, 2, 4]


def test_a_run_without_calls_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MOST_PARTS", 0)
    tables = made.run({rank: rows(part("all_reduce", 0, 9, group="")) for rank in range(2)})
    assert not len(calls.match_calls(tables).calls)
