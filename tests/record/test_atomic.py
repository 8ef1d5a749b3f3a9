from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from usp_prof.record.atomic import whole_file, whole_gzip_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("before")

    def write_half() -> None:
        with whole_file(path) as file:
            file.write(b"half of")
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk"):
        write_half()
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_nothing_stands_under_the_final_name_until_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    with whole_gzip_file(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert gzip.decompress(path.read_bytes()) == b"whole"


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with whole_gzip_file(tmp_path / name) as file:
            file.write(b"same")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
