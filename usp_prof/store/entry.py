"""Entries of the store: a sealed folder of Parquet files whose columns are read on demand.

`entry.json` names its entry and every file of the folder with its size and hash, and contains a hash of itself. A
folder is not opened if its files differ by one bit or if it has another entry's name. XXH3 with 128 bits protects
against damage (a flipped bit, a full disk, an interrupted write, a copy to the wrong place), not against deliberate
manipulation.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from usp_prof.model.errors import InputError

NAME = "entry.json"
VERSION = 2
_BLOCK = 1 << 20
_PRIVATE = 0o600
_OF_GROUP = 0o070


class BrokenSealError(Exception):
    """The folder exists but differs from what was sealed; the message names the difference."""


class Sealed(msgspec.Struct):
    """Contents of `entry.json`."""

    version: int
    entry: str
    """The name that the folder was sealed for. It identifies the trace of the tables."""
    files: dict[str, tuple[int, str]]
    """Size and hash of each file by its path relative to the folder."""
    note: dict[str, Any]


class _Versioned(msgspec.Struct):
    version: int


class _Entry(msgspec.Struct):
    seal: str
    content: msgspec.Raw


def seal(folder: Path, name: str, note: Mapping[str, Any]) -> None:
    """Write the `entry.json` of a folder that will be called `name`; only the owner may read its files.

    If the group may write to the store that contains the folder, it may also read and replace its entries.
    """
    files = {path.relative_to(folder).as_posix(): path for path in files_of(folder)}
    stamps = {below: (path.stat().st_size, hash_of(path)) for below, path in files.items()}
    content = msgspec.json.encode(Sealed(VERSION, name, stamps, dict(note)))
    text = msgspec.json.encode(_Entry(xxhash.xxh3_128_hexdigest(content), msgspec.Raw(content)))
    (folder / NAME).write_bytes(text)
    group = folder.parent.stat().st_mode & _OF_GROUP
    is_shared = bool(group & stat.S_IWGRP)
    for path in (*files.values(), folder / NAME):
        path.chmod(_PRIVATE | (group & _PRIVATE >> 3 if is_shared else 0))
    if is_shared:
        for path in (folder, *(place for place in folder.rglob("*") if place.is_dir())):
            path.chmod(path.stat().st_mode | group)


def open_sealed(folder: Path) -> dict[str, Any]:
    """Return the note of a folder that is as it was sealed.

    Raises `FileNotFoundError` if the folder does not exist, `PermissionError` if it is not readable, and
    `BrokenSealError` if it is damaged.
    """
    content = _content(folder)
    for name, (size, digest) in content.files.items():
        path = folder / name
        try:
            if path.stat().st_size != size:
                raise BrokenSealError(f"{name} has {path.stat().st_size} bytes, not {size}")
            if hash_of(path) != digest:
                raise BrokenSealError(f"{name} has other contents")
        except PermissionError:  # another user's entry, not damaged
            raise
        except OSError as error:
            raise BrokenSealError(f"{name}: {error.strerror}") from None
    return content.note


def read_seal(text: bytes, name: str) -> Sealed:
    """Read the `entry.json` of an entry. Raises `BrokenSealError` if it is damaged or belongs to another entry."""
    try:
        entry = msgspec.json.decode(text, type=_Entry)
        if xxhash.xxh3_128_hexdigest(bytes(entry.content)) != entry.seal:
            raise BrokenSealError(f"{NAME} has other contents")
        version = msgspec.json.decode(entry.content, type=_Versioned).version
        if version != VERSION:
            raise BrokenSealError(f"{NAME} has version {version}, not {VERSION}")
        content = msgspec.json.decode(entry.content, type=Sealed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenSealError(f"{NAME}: {error}") from None
    if content.entry != name:
        raise BrokenSealError(f"{NAME} is that of {content.entry}")
    return content


def _content(folder: Path) -> Sealed:
    try:
        text = (folder / NAME).read_bytes()
    except FileNotFoundError:
        if folder.is_dir():
            raise BrokenSealError(f"{NAME} is missing") from None
        raise
    except PermissionError:
        raise
    except OSError as error:
        raise BrokenSealError(f"{NAME}: {error.strerror}") from None
    return read_seal(text, folder.name)


def files_of(folder: Path) -> list[Path]:
    """Return the files in a folder, without its `entry.json`."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / NAME)


def hash_of(path: Path) -> str:
    """Return the XXH3 of a file's contents."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


# Tables of an entry.

_SMALL = 1 << 16
"""Encoded bytes of a table that is read completely at first access: opening a file costs as much as four columns."""
_SCHEMAS: dict[str, pa.Schema] = {}
"""Last schema read, by file name: all ranks share one object."""


class StoredTable:
    """A table in a Parquet file. The file is open only during reads, because a run with many ranks has thousands.

    Only the size and schema of the file are kept. The metadata that Parquet keeps for an open file takes as much memory
    as the columns of a small table.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, pa.ChunkedArray] = {}
        self._rows = -1
        """-1: the file was not opened yet."""
        self._schema: pa.Schema | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        if self._rows < 0:
            self._look()
        return self._rows

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        if self._schema is None:
            self._look()
        return self._schema

    def column(self, name: str) -> pa.ChunkedArray:
        """Read one column."""
        place = self.schema.get_field_index(name)  # tables are flat, so a field is a column of the file
        if name not in self._read:
            with self._opened() as file:
                # `file.read` uses another thread even for one column, and waits for it
                self._read[name] = file.reader.read_column(place)
        return self._read[name]

    def hold(self, table: pa.Table) -> None:
        """Keep a table that is already in memory, so that no part of it is read again."""
        self._rows, self._schema = table.num_rows, self._shared(table.schema)
        self._read.update(zip(table.column_names, table.columns, strict=True))

    def to_table(self) -> pa.Table:
        """Read all columns."""
        with self._opened() as file:
            return file.read(use_threads=False)

    def only(self, names: Sequence[str]) -> pa.Table:
        """Read some columns without keeping them, for example from many ranks one after another."""
        with self._opened() as file:
            return file.read(columns=list(names), use_threads=False)

    def _look(self) -> None:
        """Open the file for the first time; a small table is read completely."""
        with self._opened() as file:
            about = file.metadata
            if sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups)) <= _SMALL:
                self.hold(file.read(use_threads=False))
            else:
                self._rows, self._schema = int(about.num_rows), self._shared(file.schema_arrow)

    def _shared(self, schema: pa.Schema) -> pa.Schema:
        shared = _SCHEMAS.setdefault(self._path.name, schema)
        return shared if shared.equals(schema, check_metadata=True) else schema

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Open the file. Refuse it if it is gone or was damaged after the entry was checked."""
        try:
            with pq.ParquetFile(self._path) as file:
                yield file
        except FileNotFoundError:
            raise InputError(
                f"the stored table {self._path} is gone: the cache was cleared while the run was open",
                hint="open the run again; another folder for the cache is chosen with --cache-dir",
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"the stored table {self._path} is damaged: {error}", hint="open the run again") from None
