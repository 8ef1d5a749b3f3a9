"""Atomic file writes: a file appears under its name only when it is completely on disk. Standard library only."""

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
except ImportError:  # Windows has no fcntl: files are complete there, but concurrent writers are not serialized
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEVEL = 4
"""Compression level: level 9 takes four times as long and saves only 10%, and all ranks of the job wait."""


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a hidden file next to `path` for writing; it is renamed to `path` when it is completely on disk.

    If `path` is a link, its target is replaced, not the link. Devices and pipes are written to directly.
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
def whole_gzip_file(path: Path, level: int = _LEVEL) -> Iterator[IO[bytes]]:
    """Open a file like `whole_file`, compressed; equal contents result in equal bytes."""
    with whole_file(path) as file, gzip.GzipFile("", "wb", compresslevel=level, fileobj=file, mtime=0) as packed:
        yield packed  # type: ignore[misc]  # GzipFile is a binary file in all but its declared type


@contextmanager
def one_writer(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock of this path, so that a read-modify-write loses no other changes.

    The lock file is hidden, next to `path`, and is not deleted. The system releases the lock when its process ends.
    """
    target = Path(os.path.realpath(path))
    with target.with_name(f".{target.name[:200]}.lock").open("ab") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def append_at_once(path: Path, data: bytes) -> None:
    """Append to a file in one write, after the writes of other processes; create the file if it does not exist.

    Readers never see a part of `data`. If the disk is full, a partial write is undone.
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
    except OSError:  # a folder that is writable but not readable
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse to sync a folder; the file itself is safe
    finally:
        os.close(handle)
