"""Traces in unusual containers: all of their events are read."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import tarfile
from random import Random
from typing import TYPE_CHECKING

import pytest
from tiny import Trace
from zstandard import ZstdCompressor

from usp_prof.inputs.discovery import discover
from usp_prof.inputs.kineto.reader import read
from usp_prof.inputs.source import Source
from usp_prof.model.errors import InputError
from usp_prof.model.health import Severity
from usp_prof.run import open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from usp_prof.inputs.source import PackingFault


def trace(rank: int = 0, world: int = 1) -> Trace:
    return Trace(rank, world).step(0, 0, 9000).kernel("gemm", 2000, 600, launch_at=300).op("größe 平均", 100, 500)


def names(path: Path) -> list[str]:
    return sorted(read(path).events.column("name").to_pylist())


def test_a_second_event_list_as_long_as_the_first_is_read(tmp_path: Path) -> None:
    event = b'{"ph":"X","cat":"cpu_op","name":"mm","pid":1,"tid":1,"dur":1,"ts":'
    lists = [b",".join(event + b"%d}" % at for at in range(first, first + 20_000)) for first in (0, 20_000)]
    text = b'{"schemaVersion":1,"traceEvents":[' + b'],"traceEvents":['.join(lists) + b'],"traceName":"x"}'
    (tmp_path / "rank0.json").write_bytes(text)
    raw = read(tmp_path / "rank0.json")
    assert raw.events.num_rows == 40_000
    assert [row.code for row in raw.health if row.severity is Severity.DATA_LOSS] == []


@pytest.mark.parametrize("count", [3, 20_000])
def test_a_second_event_list_after_other_fields_is_read(tmp_path: Path, count: int) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"mm","pid":1,"tid":1,"dur":1,"args":{"Ev Idx":%d},"ts":%d}'
    lists = [",".join(event % (at, at) for at in range(first, first + count)) for first in (0, count)]
    fields = '"distributedInfo":{"rank":1,"world_size":2},"stackFrames":[{"name":"a"}]'
    text = f'{{"traceEvents":[{lists[0]}], {fields}, "traceEvents":[{lists[1]}],"traceName":"x"}}'
    (tmp_path / "rank1.json").write_text(text)
    raw = read(tmp_path / "rank1.json")
    assert raw.events.num_rows == 2 * count
    assert raw.metadata["distributedInfo"] == {"rank": 1, "world_size": 2}
    assert raw.metadata["traceName"] == "x"
    assert [row.code for row in raw.health if row.severity is Severity.DATA_LOSS] == []


def test_a_second_event_list_is_read(tmp_path: Path) -> None:
    path = trace().write(tmp_path / "rank0.json")
    plain = names(path)
    more = b',"traceEvents":[{"ph":"X","cat":"cpu_op","name":"late","pid":1,"tid":1,"ts":5.5,"dur":1}]}'
    path.write_bytes(path.read_bytes().removesuffix(b"}") + more)
    assert names(path) == sorted([*plain, "late"])


@pytest.mark.parametrize("mark", ["\ufeff", ""])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read(tmp_path: Path, encoding: str, mark: str) -> None:
    path = trace().write(tmp_path / "rank0.json")
    plain = names(path)
    text = json.dumps(json.loads(path.read_bytes()), ensure_ascii=False)
    path.write_bytes((mark + text).encode(encoding))
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
def test_events_on_separate_lines_are_read(tmp_path: Path, end: str, many: int) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 1}
    lines = [json.dumps(event | {"ts": number, "name": f"op{number}"}) for number in range(many)]
    path = tmp_path / "rank0.json"
    path.write_text("\n".join(lines) + end)
    raw = read(path)
    assert raw.events.num_rows == many
    assert {row.code for row in raw.health} == {"no_base_time"}
    assert [file.rank for file in discover(path).runs[0].files] == [0]


@pytest.mark.timeout(60)
def test_a_trace_on_one_line_is_recognized_quickly(tmp_path: Path) -> None:
    """A pattern that compared every brace of a long line with every other took minutes for 2 MB."""
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":2,"ts":1,"dur":2,"args":{}},'
    compact = b'{"schemaVersion":1,"traceEvents":[' + event * 50_000
    path = tmp_path / "rank0.json"
    path.write_bytes(compact + b'{"ph":"M"}]}')
    assert set(read(path).events.column("name").to_pylist()) == {"aten::add"}


def unpacked(path: Path) -> tuple[bytes, PackingFault | None]:
    source = Source(path)
    return b"".join(source.blocks()), source.fault


def frames_that_end_at(end: int, pack: Callable[[bytes], bytes]) -> bytes:
    """Make a frame of this size with incompressible content, followed by another frame."""
    rng = Random(5)  # noqa: S311 - no secret
    first = next(packed for size in range(end - 64, end) if len(packed := pack(rng.randbytes(size))) == end)
    return first + pack(b"behind")


@pytest.mark.parametrize("beside", range(-5, 3))
@pytest.mark.parametrize(("pack", "block"), [(ZstdCompressor().compress, 1 << 12), (gzip.compress, 1 << 16)])
def test_a_frame_may_end_at_a_read_boundary(
    tmp_path: Path, pack: Callable[[bytes], bytes], block: int, beside: int
) -> None:
    path = tmp_path / "rank0.json.packed"
    path.write_bytes(frames_that_end_at(block + beside, pack))
    text, fault = unpacked(path)
    assert text.endswith(b"behind")
    assert fault is None


def test_empty_zstandard_frames_are_skipped(tmp_path: Path) -> None:
    pack, empty = ZstdCompressor().compress, b"\x50\x2a\x4d\x18" + (8).to_bytes(4, "little") + b"whatever"
    path = trace().write(tmp_path / "rank0.json")
    plain, text = names(path), path.read_bytes()
    path.write_bytes(empty + pack(text[:500]) + empty + pack(text[500:]))
    assert names(path) == plain
    assert [file.rank for file in discover(tmp_path).runs[0].files] == [0]


@pytest.mark.parametrize("behind", [b"\0" * 5, b"xyz", b"\x1f", b"\x28\xb5\x2f"])
def test_bytes_after_the_last_frame_are_reported_but_not_padding(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b"all of it") + behind)
    text, fault = unpacked(path)
    assert text == b"all of it"
    assert (fault and (fault.detail, fault.packed_bytes_lost)) == (
        ("bytes after the end", len(behind)) if behind.strip(b"\0") else None
    )


@pytest.mark.parametrize("name", ["rank0.json.zip", "rank0.json", "rank0.json.gz", "run.tar.gz", "rank0.json.bz2"])
def test_unsupported_compression_is_named(tmp_path: Path, name: str) -> None:
    path = trace().write(tmp_path / "plain.json")
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        tar.add(path, "rank0.json")
    packed = {
        "rank0.json.zip": b"PK\3\4", "rank0.json": b"PK\3\4", "rank0.json.bz2": bz2.compress(path.read_bytes()),
        "rank0.json.gz": gzip.compress(gzip.compress(path.read_bytes())),
        "run.tar.gz": gzip.compress((tmp_path / "all.tar").read_bytes()),
    }  # fmt: skip
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_bytes(packed[name])
    with pytest.raises(InputError, match="packed in a way that is not read"):
        discover(run)
