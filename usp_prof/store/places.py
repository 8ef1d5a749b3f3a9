"""Places of the store: the folder or URL that was named, else `USP_PROF_CACHE`, else the user's cache folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from usp_prof.inputs.remote import RemotePath, location
from usp_prof.model.errors import UsageError
from usp_prof.store.cache import DEFAULT_BYTES, FOLDER_VARIABLE, Cache
from usp_prof.store.remote_cache import RemoteCache

SIZE_VARIABLE = "USP_PROF_CACHE_SIZE"


def open_cache(folder: str | Path | None = None) -> Cache:
    """Open the cache in `folder`, else where `USP_PROF_CACHE` says, else in the user's cache folder."""
    chosen = folder or os.environ.get(FOLDER_VARIABLE)
    limit = os.environ.get(SIZE_VARIABLE, str(DEFAULT_BYTES))
    if not limit.isdecimal():
        raise UsageError(f"{SIZE_VARIABLE}={limit!r} is no number of bytes", hint=f"{SIZE_VARIABLE}={DEFAULT_BYTES}")
    return cache_at(str(chosen) if chosen else str(_user_folder()), int(limit))


def cache_at(place: str, limit_bytes: int) -> Cache:
    """Open the cache at a place. What is fetched from an object store is kept in the user's cache folder."""
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
