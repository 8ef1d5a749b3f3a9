"""How does a file appear under its final name only when it is whole?"""

from __future__ import annotations

import gzip
import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LEVEL = 4
"""Compression: level 9 takes four times as long for a tenth less, while all ranks of the job wait."""


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a hidden neighbour of `path` to write to; it takes the name `path` when all of it is on the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def whole_gzip_file(path: Path) -> Iterator[IO[bytes]]:
    """As `whole_file`, compressed; the same content gives the same bytes."""
    with whole_file(path) as file, gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as packed:
        yield packed  # type: ignore[misc]  # GzipFile is a binary file in all but its declared type


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse to sync a folder; the file itself is safe
    finally:
        os.close(handle)
