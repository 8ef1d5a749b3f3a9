"""Tables in parts: equal to the whole table, in memory and in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from usp_prof.columns import arrow
from usp_prof.inputs.trace_record import to_table, widened
from usp_prof.model.schema import Schema, integer, text
from usp_prof.store import cache

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.columns.arrow import Parted

SCHEMA = Schema("t", "A table.", (integer("rank", "Rank."), integer("number", "Number."), text("args", "Text.")))


def made(rows: int) -> Parted:
    columns = {"number": np.arange(rows, dtype=np.int32), "args": pa.chunked_array([pa.array(map(str, range(rows)))])}
    if not rows:
        columns["args"] = pa.chunked_array([], pa.string())
    return widened(SCHEMA, to_table(SCHEMA, columns, rows), 3)


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 9])
def test_parts_add_up_to_the_whole_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    for module in (cache, arrow):
        monkeypatch.setattr(module, "AT_ONCE", 4)
    table = made(rows)
    in_memory = table.to_table()
    assert in_memory.to_pylist() == [{"rank": 3, "number": row, "args": str(row)} for row in range(rows)]
    kinds = {"rank": pa.int64(), "number": pa.int64(), "args": pa.string()}
    assert in_memory.schema == table.schema
    assert table.schema == pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])
    assert [part.num_rows for part in table.parts(4)] == [4] * (rows // 4) + [rows % 4] * (rows % 4 > 0 or not rows)
    assert pa.concat_tables(table.parts(4)) == in_memory
    assert table.column("number") == in_memory.column("number")
    assert table.if_long() == (in_memory if rows <= 4 else table)
    cache.write_parquet(table, tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet") == in_memory
