"""Whole files: each appears under its name only when all of it is on the disk. Standard library only."""

from __future__ import annotations

import errno
import gzip
import os
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import IO, TYPE_CHECKING

try:
    import fcntl
except ImportError:  # Windows has none; files there are whole, two writers at once are not kept apart
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEVEL = 4
"""Compression: level 9 takes four times as long for a tenth less, while all ranks of the job wait."""


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a hidden neighbour of `path` to write to; it takes the name `path` when all of it is on the disk.

    What a link points to is replaced, not the link. A device or a pipe is written to as it is.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    draft = target.with_name(f".{target.name[:200]}.{os.getpid()}-{get_ident()}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(target.parent)


@contextmanager
def whole_gzip_file(path: Path) -> Iterator[IO[bytes]]:
    """As `whole_file`, compressed; the same content gives the same bytes."""
    with whole_file(path) as file, gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as packed:
        yield packed  # type: ignore[misc]  # GzipFile is a binary file in all but its declared type


@contextmanager
def one_writer(path: Path) -> Iterator[None]:
    """Wait until no other process is in here for the same path: who reads, adds and writes loses nothing of others.

    The lock is a hidden neighbour that stays; the system lets go of it when its holder ends, however that happens.
    """
    target = Path(os.path.realpath(path))
    with target.with_name(f".{target.name[:200]}.lock").open("ab") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def append_at_once(path: Path, data: bytes) -> None:
    """Add to a file, made where it is missing, in one write behind all that others have added; no reader sees a part.

    Where the disk is full, what was written of it is taken back.
    """
    with path.open("ab", buffering=0) as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        before = file.seek(0, os.SEEK_END)
        try:
            written = file.write(data)
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise
        if written != len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that one may write to but not read
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse to sync a folder; the file itself is safe
    finally:
        os.close(handle)
