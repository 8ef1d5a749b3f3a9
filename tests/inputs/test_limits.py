"""Limits: inputs that would exhaust the machine are refused in one line with the field (docs/reference/limits.md)."""

from __future__ import annotations

import io
import os
import pickle
import time
from pathlib import Path

import pytest
import zstandard

from usp_prof import limits
from usp_prof.cli.app import main
from usp_prof.inputs.discovery import discover
from usp_prof.inputs.memory_snapshot import read_memory_snapshot
from usp_prof.inputs.op_table import read_op_table
from usp_prof.inputs.source import Source
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import InputError, UspProfError
from usp_prof.model.files import read_bytes, read_json
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedule_orders import order

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"


def test_a_small_file_that_unpacks_to_hundreds_of_megabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b'{"traceEvents":[' + b" " * (600 << 20)))
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match="unpacks to more than 1000 times its size"):
        for _ in Source(path).blocks():
            pass


def test_a_trace_that_packs_well_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.zst"
    text = b'{"traceEvents":[' + b'{"ph":"X","name":"aten::mm"},' * 300_000
    path.write_bytes(zstandard.ZstdCompressor().compress(text))
    assert b"".join(Source(path).blocks()) == text


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(InputError, match="the path is empty"):
        discover("")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes as POSIX has them")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "rank0.json"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="neither a file nor a folder"):
        discover(pipe)
    with pytest.raises(InputError, match="no trace in"):
        discover(tmp_path)
    with pytest.raises(InputError, match="it is not a regular file"):
        read_bytes(pipe, "policy", "")
    with pytest.raises(InputError, match="not a regular file"):
        read_memory_snapshot(pipe)
    with pytest.raises(InputError, match="is not a file"):
        read_op_table(pipe)
    cells = ["sweep", str(tmp_path / "cells"), "--list"]
    for words in (["plan", "--table"], cells, ["sweep", "--published", "playbook"]):
        assert main([*words, str(pipe)]) == 2
    os.mkfifo(tmp_path / "sweep.json")
    assert main(["sweep", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (b"\xff,1,2", "not UTF-8"),
        (b"x" * 200_000 + b",1,2", "is not CSV: field larger"),
        (b"Llama-3-8B,512,H100,8", "more cells than columns in row 2"),
    ],
)
def test_a_table_that_is_not_csv_is_refused(
    tmp_path: Path, rows: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_bytes(b"model,sequence,device\n" + rows)
    assert main(["plan", "--table", str(tmp_path / "rows.csv")]) == 2
    assert sentence in capsys.readouterr().err


def test_a_missing_cell_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("model,sequence,device\nLlama-3-8B\n")
    assert main(["plan", "--table", str(tmp_path / "rows.csv")]) == 2
    assert "refused 1 of 1 row:" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 200 + "]" * 200, '{"a":' * 150 + "1" + "}" * 150, "", "{", "\0"])
def test_deeply_nested_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(InputError, match="is not a model"):
        read_json(tmp_path / "model.json", "model", "")


def test_an_oversized_description_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "model.json").open("wb") as file:
        file.truncate(limits.MAX_DESCRIPTION_BYTES + 1)  # a sparse file: it uses no disk space
    with pytest.raises(InputError, match=r"model .* is larger than 256 MB"):
        read_json(tmp_path / "model.json", "model", "")


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        ("schedule=interleaved,v=99999999", "v"),
        ("schedule=interleaved,v=0", "v"),
        ("schedule=1f1b,m=1e9", "m"),
        ("micro_batches=1e9", ""),
        ("micro_batches=nan", ""),
        ("comm_faster=1e300", ""),
        ("rank_as_peers=-7", ""),
    ],
)
def test_a_number_of_an_edit_beyond_its_range_is_refused_by_name(edit: str, key: str) -> None:
    with pytest.raises(UspProfError, match="is outside of"):
        parse_edit(edit).number(key)


def test_a_schedule_of_too_many_actions_is_refused() -> None:
    with pytest.raises(UspProfError, match="1024 ranks x 1 stages x 10000 micro-batches"):
        order(Schedule.ONE_F_ONE_B, Shape(1024, 10_000, 1))


@pytest.mark.parametrize(
    "words", ["--mesh dp=99999999", "--micro-batches 1000000000", "--steps 1000000000", "--events 100000000000000000"]
)
def test_a_synthetic_run_beyond_the_limits_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    try:
        code: object = main(["synth", *words.split(), str(tmp_path / "run")])
    except SystemExit as refused:  # by the parser
        code = refused.code
    assert code == 2
    error = capsys.readouterr().err
    assert any(reason in error for reason in ("at most", "is not a mesh", "is not a whole number from"))


def test_a_watchdog_with_a_tiny_interval_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declaration = tmp_path / "declared.json"
    declaration.write_text('{"mesh": {"dp": 2}, "speed": {"watchdog_ns": 1}}')
    assert main(["synth", str(tmp_path / "run"), "--declaration", str(declaration), "--steps", "1"]) == 2
    assert "watchdog_ns = 1 makes" in capsys.readouterr().err


def test_a_snapshot_with_a_huge_memo_index_is_refused(tmp_path: Path) -> None:
    bomb = b"\x80\x02]r\xff\xff\xff\x7f."  # LONG_BINPUT 2**31 - 1: the unpickler would allocate memory for all of them
    (tmp_path / "bomb.pickle").write_bytes(bomb)
    with pytest.raises(InputError, match="notes something under number 2147483647"):
        read_memory_snapshot(tmp_path / "bomb.pickle")


BLOCK = {"size": 1, "state": "active_allocated", "address": 1, "frames": [{"filename": "a"}] * 3000}
EVENT = {"action": "alloc", "size": 1, "time_us": 1}
SHARED_LISTS = {
    # One list with thousands of items, repeated thousands of times: a few kilobytes that would take hours.
    "blocks": {"segments": [{"device": 0, "total_size": 1, "allocated_size": 1, "blocks": [BLOCK] * 9000}] * 9000},
    "events": {"segments": [], "device_traces": [[EVENT] * 9000] * 900},
    "devices": {"segments": [], "device_traces": [[EVENT]] * 9000},
}


@pytest.mark.parametrize("lists", SHARED_LISTS)
def test_a_snapshot_that_repeats_its_lists_is_refused(tmp_path: Path, lists: str) -> None:
    (tmp_path / "bomb.pickle").write_bytes(pickle.dumps(SHARED_LISTS[lists]))
    with pytest.raises(InputError, match=r"bytes name [0-9]+ blocks and events"):
        read_memory_snapshot(tmp_path / "bomb.pickle")


def test_a_stack_shared_by_blocks_is_read_once(tmp_path: Path) -> None:
    segment = {"device": 0, "total_size": 1, "allocated_size": 1, "blocks": [BLOCK] * 9000}
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    begun = time.process_time()
    (snapshot,) = read_memory_snapshot(tmp_path / "s.pickle")
    assert (snapshot.sites[0].blocks, snapshot.sites[0].bytes) == (9000, 9000)
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("device", [-1, 1024, 2**40])
def test_a_snapshot_with_an_invalid_device_is_refused(tmp_path: Path, device: int) -> None:
    segment = {"device": device, "total_size": 1, "allocated_size": 1}
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    with pytest.raises(InputError, match=f"device={device} is not a whole number within 0 to 1023"):
        read_memory_snapshot(tmp_path / "s.pickle")


@pytest.mark.parametrize("size", [float("inf"), float("nan"), 2**70, True, "many", None])
def test_a_snapshot_with_an_invalid_size_is_refused_with_the_field(tmp_path: Path, size: object) -> None:
    segment = {"device": 0, "total_size": size, "allocated_size": 0, "blocks": []}
    (tmp_path / "odd.pickle").write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    with pytest.raises(InputError, match="total_size"):
        read_memory_snapshot(tmp_path / "odd.pickle")


def test_every_limit_is_in_the_documentation() -> None:
    limit_names = [name for name, value in vars(limits).items() if name.isupper() and not name.startswith("_")]
    text = DOCS.read_text()
    assert [name for name in limit_names if f"`{name}`" not in text] == []


def test_a_snapshot_is_read_without_running_code(tmp_path: Path) -> None:
    path = tmp_path / "evil.pickle"
    buffer = io.BytesIO()
    pickle.Pickler(buffer).dump(print)
    path.write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match="it names builtins"):
        read_memory_snapshot(path)
