"""Cache: the tables of each trace as Parquet, keyed by the file's content and the table schemas.

One entry is one folder. It is written to a temporary folder and then renamed, so it is complete or absent, even when
two processes read the same trace at once. When the cache exceeds its size limit, the least recently used entries are
deleted, but none that may be in use. Files derived from tables (such as a timeline prepared for drawing) are stored,
counted and cleared in the same way: see `Cache.derive`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from usp_prof.columns.arrow import AT_ONCE, Parted
from usp_prof.inputs.memory import release_pages
from usp_prof.model.errors import InputError
from usp_prof.store.entry import NAME as ENTRY
from usp_prof.store.entry import BrokenSealError, StoredTable, open_sealed, seal

FOLDER_VARIABLE = "USP_PROF_CACHE"
DEFAULT_BYTES = 20 << 30
UNBOUNDED = 0
"""Size limit of a cache folder that the user named: a run with thousands of ranks exceeds any default limit."""
IN_USE_SECONDS = 600
"""An entry used this recently may be open in another process. It is kept even above the size limit."""
LEFT_OVER_SECONDS = 86_400
"""A temporary folder this old is no longer being written: a report of thousands of ranks takes at most hours."""

_MEASURED_AFTER = 32
"""The folder is measured with the first entry, and again after this share of its limit was written. Measuring it with
every rank would take longer than reading the ranks.
"""

_ASIDE = "aside-"
_DERIVED = "derived-"


class CacheUnwritableError(InputError):
    """The cache folder is not writable."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Contents of the cache."""

    entries: int
    """Ranks with stored tables."""
    derived: int
    """Stored results derived from tables."""
    size_bytes: int
    limit_bytes: int


class StoredTables:
    """The tables of one entry, read from Parquet on demand."""

    is_local = True
    """Whether all tables are on this machine."""

    def __init__(self, folder: Path, note: Mapping[str, Any]) -> None:
        self.folder = folder
        self.note = note
        self._views: dict[str, StoredTable] = {}

    def table(self, name: str) -> pa.Table:
        """Return one table."""
        return self.view(name).to_table()

    def view(self, name: str) -> StoredTable:
        """Return one table whose columns are read on demand."""
        return self._views.setdefault(name, StoredTable(self.path(name)))

    def release(self) -> None:
        """Drop what was read; it is read again on demand."""
        self._views.clear()

    def path(self, name: str) -> Path:
        """Return the path of a table."""
        return self.folder / f"{name}.parquet"

    def names(self) -> tuple[str, ...]:
        """Return the names of the stored tables."""
        return tuple(self.note["tables"])

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle the location only, without table contents or the file's own data."""
        return type(self), (self.folder, {"tables": self.note["tables"]})


class Cache:
    """A folder of entries. Entries opened or stored through this object count as in use as long as it exists."""

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._in_use: set[str] = set()
        self.damaged: dict[str, str] = {}
        """Entries that were found and not believed, and what was wrong with each."""
        self._unmeasured = limit_bytes

    @property
    def place(self) -> str:
        """Location of the entries: a folder or a URL."""
        return str(self.folder)

    def open(self, key: str) -> StoredTables | None:
        """Return an entry, or `None` if it is absent or not as it was stored (see `damaged`)."""
        note = self._opened(key)
        return None if note is None else StoredTables(self.folder / key, note)

    def _opened(self, name: str) -> dict[str, Any] | None:
        """Check every file of an entry; return its note."""
        try:
            note = open_sealed(self.folder / name)
            with suppress(OSError):  # a read-only store
                os.utime(self.folder / name / ENTRY)
        except BrokenSealError as error:
            self.damaged[name] = str(error)
            return None
        except OSError:
            return None
        self._in_use.add(name)
        return note

    def store(self, key: str, tables: Mapping[str, pa.Table | Parted], note: Mapping[str, Any]) -> StoredTables:
        """Write an entry. Of two writers of one key the first wins, and both get a complete entry."""
        self._write(key, tables, note)
        stored = self.open(key)
        if stored is None:
            raise CacheUnwritableError(f"the cache {self.place} lost an entry as it was written", hint="try again")
        return stored

    def _write(self, key: str, tables: Mapping[str, pa.Table | Parted], note: Mapping[str, Any]) -> None:
        self._make(key, lambda aside: fill(aside, key, tables, note), lambda: self.open(key) is not None)

    def derive(self, key: str, write: Callable[[Path], None]) -> Path:
        """Return a folder of results derived from tables; `write(folder)` creates it if absent.

        `key` must identify the tables and the format (see `Run.derived`). The folder is complete or absent.
        """
        name = f"{_DERIVED}{hashlib.blake2b(key.encode(), digest_size=20).hexdigest()}"
        if self._opened(name) is None:

            def fill_derived(aside: Path) -> None:
                write(aside)
                seal(aside, name, {})

            self._make(name, fill_derived, lambda: self._opened(name) is not None)
        return self.folder / name

    def size(self) -> CacheSize:
        """Measure the cache."""
        entries = self._entries()
        derived = sum(folder.name.startswith(_DERIVED) for _, _, folder in entries)
        total = sum(size for _, size, _ in entries)
        return CacheSize(len(entries) - derived, derived, total, self.limit_bytes)

    def clear(self) -> CacheSize:
        """Remove every entry; return what was removed."""
        before = self.size()
        for folder in self._folders():
            self._remove(folder)
        return before

    def tidy(self) -> None:
        """Remove leftovers of killed processes and, above the size limit, the least recently used entries."""
        self._unmeasured = 0
        self._remove_left_over()
        entries = sorted(self._entries()) if self.limit_bytes != UNBOUNDED else []
        total = sum(size for _, size, _ in entries)
        in_use = time.time() - IN_USE_SECONDS
        for used, size, folder in entries:
            if total <= self.limit_bytes or used > in_use:
                return
            if folder.name not in self._in_use:
                self._remove(folder)
                total -= size

    def _make(self, name: str, fill: Callable[[Path], None], is_whole: Callable[[], bool]) -> None:
        """Fill a temporary folder and move it into place."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=self.folder))
            try:
                fill(aside)
                self._unmeasured += _size_of(aside)
                self._in_use.add(name)
                self._place(aside, self.folder / name, is_whole)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            if self.limit_bytes != UNBOUNDED and self._unmeasured * _MEASURED_AFTER >= self.limit_bytes:
                self.tidy()
        except OSError as error:
            raise CacheUnwritableError(
                f"cannot write to the cache {self.folder}: {error.strerror}",
                hint=f"choose another folder with --cache-dir or {FOLDER_VARIABLE}",
            ) from None

    def _place(self, aside: Path, final: Path, is_whole: Callable[[], bool]) -> None:
        try:
            aside.rename(final)
        except OSError:
            if is_whole():
                return
            if not os.access(final, os.R_OK | os.W_OK | os.X_OK):  # readable only by its owner, who continues to use it
                raise PermissionError(errno.EACCES, "another user's entry exists") from None
            self._remove(final)
            aside.rename(final)

    def _remove_left_over(self) -> None:
        """Remove the temporary folder of a process that was killed while writing an entry."""
        long_ago = time.time() - LEFT_OVER_SECONDS
        for folder in self._folders():
            try:
                is_left_over = folder.name.startswith(_ASIDE) and folder.stat().st_mtime < long_ago
            except OSError:
                continue
            if is_left_over:
                shutil.rmtree(folder, ignore_errors=True)

    def _remove(self, folder: Path) -> None:
        """Rename an entry, then delete it; a reader that has it open can continue."""
        doomed = self.folder / f"{_ASIDE}{folder.name}-{os.getpid()}"
        try:
            folder.rename(doomed)
        except OSError:
            doomed = folder
        shutil.rmtree(doomed, ignore_errors=True)

    def _folders(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.is_dir()] if self.folder.is_dir() else []

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Return entries as (last use, bytes, folder)."""
        out = []
        for folder in self._folders():
            try:
                out.append(((folder / ENTRY).stat().st_mtime, _size_of(folder), folder))
            except OSError:
                continue
        return out


def fill(folder: Path, key: str, tables: Mapping[str, pa.Table | Parted], note: Mapping[str, Any]) -> None:
    """Write an entry's tables into a folder and seal it for its key."""
    for name, table in sorted(tables.items()):
        write_parquet(table, folder / f"{name}.parquet")
    seal(folder, key, {**note, "tables": sorted(tables)})


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write_parquet(table: pa.Table | Parted, path: Path) -> None:
    """Write a table as a small file that reads quickly; at most one row group is in memory.

    Integers are delta-encoded: a quarter less time to write, half to read. Only integers have page statistics, because
    no query filters by text. Mostly unique texts are compressed strongly; the other columns gain little from it.
    """
    integers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(
        path,
        table.schema,
        compression={name: "zstd" if name in texts else "lz4" for name in table.schema.names},
        compression_level=dict.fromkeys(texts, 1) or None,
        use_dictionary=[field.name for field in table.schema if pa.types.is_dictionary(field.type)],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        write_statistics=integers,
    ) as writer:
        for part in table.parts(AT_ONCE) if isinstance(table, Parted) else _slices(table):
            writer.write_table(part, row_group_size=AT_ONCE)
            if isinstance(table, Parted):
                release_pages()


def _slices(table: pa.Table) -> Iterator[pa.Table]:
    return (table.slice(at, AT_ONCE) for at in range(0, max(table.num_rows, 1), AT_ONCE))
