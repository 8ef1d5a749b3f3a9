"""Long text in memory or mapped files: returned unchanged, and releasing it costs only time."""

from __future__ import annotations

import errno
import io
import tempfile
from typing import IO, TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.inputs import memory
from usp_prof.inputs.memory import LongText, release_pages

if TYPE_CHECKING:
    from pathlib import Path


def _grown(pieces: list[bytes]) -> LongText:
    text = LongText()
    for piece in pieces:
        text.add(piece)
    assert len(text) == sum(map(len, pieces))
    return text


@pytest.mark.parametrize("held", [1, 5, 1 << 20])
@given(pieces=st.lists(st.binary(max_size=8)))
def test_text_is_read_back_from_memory_and_from_its_file(held: int, pieces: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "MOST_IN_MEMORY", held)
        buffer = _grown(pieces).buffer()
    assert buffer.to_pybytes() == b"".join(pieces)
    release_pages()
    assert buffer.to_pybytes() == b"".join(pieces)


def test_text_stays_in_memory_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> IO[bytes]:
        raise OSError(errno.EROFS, "no")

    monkeypatch.setattr(memory, "MOST_IN_MEMORY", 2)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert _grown([b"abc", b"def", b"g"]).buffer().to_pybytes() == b"abcdefg"


class Scarce(io.FileIO):
    """A file on a disk that is full after `room` bytes."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path, "w+")
        self.room = room

    def write(self, text: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "full")
        written = super().write(text[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 3, 4, 8])
def test_text_returns_to_memory_if_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(memory, "MOST_IN_MEMORY", 2)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Scarce(tmp_path / "text", room))
    assert _grown([b"a", b"bcd", b"efgh", b"i"]).buffer().to_pybytes() == b"abcdefghi"


def test_text_returns_to_memory_if_it_cannot_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise OSError(errno.ENODEV, "no")

    monkeypatch.setattr(memory, "MOST_IN_MEMORY", 1)
    monkeypatch.setattr(memory.mmap, "mmap", refuse)
    monkeypatch.setattr(memory, "_mapped", set())
    assert _grown([b"abc"]).buffer().to_pybytes() == b"abc"
