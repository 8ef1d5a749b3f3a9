"""Trace formats: all are listed, a file is read in the format that it has, and missing facts are declared."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import TYPE_CHECKING

import pytest
import tiny

import usp_prof
import usp_prof.inputs
from usp_prof.inputs.formats import FORMATS, by_name, peek, read_rank
from usp_prof.inputs.peek import FileKind
from usp_prof.inputs.trace_record import EVENTS, THREADS

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = [name for _, name, is_folder in pkgutil.iter_modules(usp_prof.inputs.__path__) if is_folder]
NAMES = [format_.name for format_ in FORMATS]


def merged_file(folder: Path) -> Path:
    events = [
        event
        for rank in range(2)
        for event in (
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}: python"}},
            {"ph": "X", "cat": "cpu_op", "name": f"aten::op{rank}", "pid": rank, "tid": 1, "ts": 5, "dur": 2},
        )
    ]
    file = folder / "all.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


@pytest.mark.parametrize("folder", FOLDERS)
def test_all_formats_of_a_folder_are_listed(folder: str) -> None:
    module = importlib.import_module(f"usp_prof.inputs.{folder}.format")
    assert set(module.FORMATS) <= set(FORMATS)


def test_each_format_has_a_unique_name() -> None:
    assert len(set(NAMES)) == len(FORMATS)
    assert [by_name(name).name for name in NAMES] == NAMES


def test_files_with_one_rank_are_kineto_and_with_several_merged(tmp_path: Path) -> None:
    alone = peek(tiny.Trace(3, 8).op("aten::mm", 10, 5).write(tmp_path / "rank3.json"))
    together = peek(merged_file(tmp_path))
    assert (alone.format, alone.rank, alone.ranks) == ("Kineto", 3, ())
    assert (together.format, together.ranks) == ("merged Chrome", (0, 1))


def test_other_files_are_identified_and_explained_by_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    assert peek(file).kind is FileKind.JSON
    with pytest.raises(usp_prof.UspProfError, match="no list of trace events"):
        read_rank(file, 0)


@pytest.mark.parametrize("name", ["", *NAMES])
def test_every_format_yields_the_same_columns_and_one_rank(name: str, tmp_path: Path) -> None:
    record = read_rank(merged_file(tmp_path), 1, name)
    assert (tuple(record.events.column_names), tuple(record.threads.column_names)) == (EVENTS.names, THREADS.names)
    assert record.events["name"].to_pylist() == ["aten::op1"]


def test_missing_columns_of_a_format_are_a_health_row(tmp_path: Path) -> None:
    merged = {row.code: row.detail for row in read_rank(merged_file(tmp_path), 1).health}
    assert "host, devices and process groups of each rank" in merged["not_in_format"]
    alone = tiny.Trace(0, 1).op("aten::mm", 10, 5).write(tmp_path / "rank0.json")
    assert "not_in_format" not in {row.code for row in read_rank(alone, 0).health}
