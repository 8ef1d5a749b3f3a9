"""Round trip of a rank: a rewritten rank reads the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, write

from usp_prof.export.merged_trace import write_rank
from usp_prof.model.errors import InputError
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

TABLES = ("events", "kernels", "launches", "ops", "annotations", "collectives", "activities", "steps", "threads")


def trace() -> Trace:
    made = Trace(rank=0, world=2).group("1", [0, 1], "mesh_tp").step(5, 0, 10_000)
    made.kernel('gemm<a, "b">', 1_000, 4_001, launch_at=100)
    made.collective("all_reduce", 6_000, 2_003, launch_at=200, group="1", nelems=1 << 20)
    return made.memory(3_000, 64, 64)


def test_a_written_rank_reads_back_unchanged(tmp_path: Path) -> None:
    run = open_run(write({0: trace()}, tmp_path / "one"), cache_dir=tmp_path / "cache")
    (tmp_path / "two").mkdir()
    count = write_rank(run.tables, 0, tmp_path / "two" / "rank0.json.gz", run.metadata[0])
    again = open_run(tmp_path / "two", cache_dir=tmp_path / "cache")
    assert count == run.tables.arrow("events").num_rows
    for name in TABLES:
        assert repr(again.tables.arrow(name).to_pylist()) == repr(run.tables.arrow(name).to_pylist()), name


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    run = open_run(write({0: trace()}, tmp_path / "one"), cache_dir=tmp_path / "cache")
    with pytest.raises(InputError, match="cannot write"):
        write_rank(run.tables, 0, tmp_path / "none" / "rank0.json.gz", {})
