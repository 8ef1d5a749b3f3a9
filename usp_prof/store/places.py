"""Locations of the store: the given folder or URL, else `USP_PROF_CACHE`, else the user's cache folder.

On an object store an entry is a folder of objects, as in a local cache. Its `entry.json` is written last and names
every other object with its hash. Without it the entry does not exist, and two writers of one entry write the same
bytes. Small tables are fetched with the entry, larger ones on demand; both are kept in the local cache, within its
limit. A missing or changed table raises `BrokenSealError` when the entry is opened or the table is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from usp_prof.columns.arrow import Parted
from usp_prof.inputs.object_stores import AbsentError
from usp_prof.inputs.remote import RemotePath, location
from usp_prof.model.errors import InputError, UsageError
from usp_prof.store.cache import (
    DEFAULT_BYTES,
    FOLDER_VARIABLE,
    UNBOUNDED,
    Cache,
    CacheSize,
    CacheUnwritableError,
    StoredTables,
    fill,
)
from usp_prof.store.entry import NAME, BrokenSealError, Sealed, files_of, hash_of, read_seal

SIZE_VARIABLE = "USP_PROF_CACHE_SIZE"


def open_cache(folder: str | Path | None = None) -> Cache:
    """Open the cache in `folder`, else the one of `USP_PROF_CACHE`, else the one in the user's cache folder.

    A given folder has no size limit unless one is passed.
    """
    chosen = folder or os.environ.get(FOLDER_VARIABLE)
    is_own = not folder or isinstance(location(str(folder)), RemotePath)  # of a remote store: the local copies
    limit = os.environ.get(SIZE_VARIABLE, str(DEFAULT_BYTES if is_own else UNBOUNDED))
    if not limit.isdecimal():
        raise UsageError(f"{SIZE_VARIABLE}={limit!r} is not a number of bytes", hint=f"{SIZE_VARIABLE}={DEFAULT_BYTES}")
    return cache_at(str(chosen) if chosen else str(_user_folder()), int(limit))


def cache_at(place: str, limit_bytes: int) -> Cache:
    """Open the cache at a location. Fetched objects of an object store are kept in the user's cache folder."""
    where = location(place)
    if isinstance(where, RemotePath):
        return RemoteCache(where, Cache(_user_folder(), limit_bytes))
    return Cache(where, limit_bytes)


def _user_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "usp-prof"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "usp-prof" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "usp-prof"


_SMALL = 1 << 20
"""Bytes of a table that is fetched with its entry: a request costs more than these bytes."""
_AT_ONCE = 8
"""Objects of one entry that are sent concurrently."""


class RemoteCache(Cache):
    """Entries on an object store; fetched and derived files are in a local folder."""

    def __init__(self, remote: RemotePath, local: Cache) -> None:
        super().__init__(local.folder, local.limit_bytes)
        self.remote = remote

    @property
    def place(self) -> str:
        """The URL."""
        return self.remote.url

    def open(self, key: str) -> StoredTables | None:
        """Return an entry, or `None` if it does not exist; raises `InputError` if the store does not answer."""
        try:
            sealed = read_seal((self.remote / key / NAME).read_bytes(), key)
            return RemoteTables(self, self.remote / key, sealed)
        except AbsentError:
            return None
        except BrokenSealError as error:
            self.damaged[key] = str(error)
            return None

    def _write(self, key: str, tables: Mapping[str, pa.Table | Parted], note: Mapping[str, Any]) -> None:
        """Write an entry: its tables concurrently, then the `entry.json` that completes it."""
        with TemporaryDirectory(prefix="usp-prof-") as name:
            folder = Path(name)
            fill(folder, key, tables, note)
            try:
                with ThreadPoolExecutor(_AT_ONCE) as threads:
                    list(threads.map(lambda file: (self.remote / key / file.name).write_from(file), files_of(folder)))
                (self.remote / key / NAME).write_from(folder / NAME)
            except InputError as error:
                raise CacheUnwritableError(f"cannot write to the store: {error.message}", hint=error.hint) from None

    def fetched(self, entry: RemotePath, sealed: Sealed, *names: str) -> Path:
        """Return a local folder with these files of an entry, each verified by its hash."""

        def fetch(folder: Path) -> None:
            for name in names:
                try:
                    (folder / name).write_bytes((entry / name).read_bytes())
                except AbsentError:
                    raise BrokenSealError(f"{name} is missing") from None
                if hash_of(folder / name) != sealed.files[name][1]:
                    raise BrokenSealError(f"{name} has other contents")

        return self.derive(" ".join(["fetched", entry.url, *names]), fetch)

    def size(self) -> CacheSize:
        """Measure the entries on the object store, which has no size limit."""
        files = list(self.remote.files())
        return CacheSize(sum(file.name == NAME for file in files), 0, sum(file.size for file in files), 0)

    def clear(self) -> CacheSize:
        """Refuse: others may use the store, and buckets have their own retention rules."""
        hint = "give the bucket a lifecycle rule, or remove the folder with the store's own tools"
        raise UsageError(f"{self.remote} cannot be cleared by this command", hint=hint)


class RemoteTables(StoredTables):
    """The tables of one entry on an object store."""

    is_local = False

    def __init__(self, cache: RemoteCache, entry: RemotePath, sealed: Sealed) -> None:
        self._cache, self._entry, self._sealed = cache, entry, sealed
        self._small = sorted(name for name, (size, _) in sealed.files.items() if size <= _SMALL)
        folder = cache.fetched(entry, sealed, *self._small) if self._small else cache.folder
        super().__init__(folder, sealed.note)

    def path(self, name: str) -> Path:
        """Fetch a table that was not fetched with its entry, and return its path."""
        file = f"{name}.parquet"
        return (
            super().path(name) if file in self._small else self._cache.fetched(self._entry, self._sealed, file) / file
        )

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle the location: another process opens the entry there."""
        return _opened_again, (self._cache.place, self._cache.limit_bytes, self._entry.name)


def _opened_again(place: str, limit_bytes: int, key: str) -> StoredTables:
    stored = cache_at(place, limit_bytes).open(key)
    if stored is None:
        raise InputError(f"the stored tables {key} of {place} are gone or damaged", hint="open the run again")
    return stored
