"""Traces in odd wrappings: all of their events are read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tiny import Trace

from usp_prof.inputs.discovery import discover
from usp_prof.inputs.kineto.reader import read
from usp_prof.model.health import Severity
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path


def trace(rank: int = 0, world: int = 1) -> Trace:
    return Trace(rank, world).step(0, 0, 9000).kernel("gemm", 2000, 600, launch_at=300).op("größe 平均", 100, 500)


def names(path: Path) -> list[str]:
    return sorted(read(path).events.column("name").to_pylist())


def test_a_second_list_as_long_as_the_first_is_read(tmp_path: Path) -> None:
    event = b'{"ph":"X","cat":"cpu_op","name":"mm","pid":1,"tid":1,"dur":1,"ts":'
    lists = [b",".join(event + b"%d}" % at for at in range(first, first + 20_000)) for first in (0, 20_000)]
    text = b'{"schemaVersion":1,"traceEvents":[' + b'],"traceEvents":['.join(lists) + b'],"traceName":"x"}'
    (tmp_path / "rank0.json").write_bytes(text)
    raw = read(tmp_path / "rank0.json")
    assert raw.events.num_rows == 40_000
    assert [row.code for row in raw.health if row.severity is Severity.DATA_LOSS] == []


def test_a_second_list_of_events_is_read(tmp_path: Path) -> None:
    path = trace().write(tmp_path / "rank0.json")
    plain = names(path)
    more = b',"traceEvents":[{"ph":"X","cat":"cpu_op","name":"late","pid":1,"tid":1,"ts":5.5,"dur":1}]}'
    path.write_bytes(path.read_bytes().removesuffix(b"}") + more)
    assert names(path) == sorted([*plain, "late"])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read(tmp_path: Path, encoding: str) -> None:
    path = trace().write(tmp_path / "rank0.json")
    plain = names(path)
    text = json.dumps(json.loads(path.read_bytes()), ensure_ascii=False)
    path.write_bytes(("\ufeff" + text).encode(encoding))
    assert names(path) == plain
    assert open_run(path, cache_dir=tmp_path / "cache").ranks == (0,)


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
def test_linked_rank_folders_are_followed_and_loops_end(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(rank, 2).write(tmp_path / f"store{rank}" / "trace.json")
    run = tmp_path / "run"
    run.mkdir()
    for rank in (0, 1):
        (run / f"rank{rank}").symlink_to(tmp_path / f"store{rank}")
    (run / "again").symlink_to(run)
    (run / "rank0" / "loop").symlink_to(run)
    assert [file.rank for file in discover(run).runs[0].files] == [0, 1]


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n"])
@pytest.mark.parametrize("many", [2, 5000])
def test_events_that_stand_one_a_line_are_read(tmp_path: Path, end: str, many: int) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 1}
    lines = [json.dumps(event | {"ts": number, "name": f"op{number}"}) for number in range(many)]
    path = tmp_path / "rank0.json"
    path.write_text("\n".join(lines) + end)
    raw = read(path)
    assert raw.events.num_rows == many
    assert {row.code for row in raw.health} == {"no_base_time"}
    assert [file.rank for file in discover(path).runs[0].files] == [0]


@pytest.mark.timeout(60)
def test_a_trace_on_one_line_is_told_from_event_lines_at_once(tmp_path: Path) -> None:
    """A pattern that tried every brace of a long line against every other took minutes for 2 MB."""
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":2,"ts":1,"dur":2,"args":{}},'
    compact = b'{"schemaVersion":1,"traceEvents":[' + event * 50_000
    path = tmp_path / "rank0.json"
    path.write_bytes(compact + b'{"ph":"M"}]}')
    assert set(read(path).events.column("name").to_pylist()) == {"aten::add"}
