"""Remote paths: files on an object store, with the part of `pathlib.Path`'s interface that reading a run needs.

A listed remote path knows its size and its stamp (the ETag, which changes with the contents), so it is requested only
once. Bytes are fetched in ranges. The first one is small, because many readers need no more; later ones double in size,
and two of them are fetched ahead of the reader.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from usp_prof.inputs.interruptible import interruptible_result
from usp_prof.inputs.object_stores import HTTP, NoRangesError, ask, scheme_of
from usp_prof.model.errors import InputError, UsageError
from usp_prof.model.files import check_name

_FIRST_RANGE = 1 << 18
_LARGEST_RANGE = 8 << 20
_AHEAD = 2
"""Number of ranges that are fetched ahead of the reader."""


class RemoteStat(NamedTuple):
    """The result of `stat` for a remote file."""

    st_size: int


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """A file or folder on an object store."""

    url: str
    size: int = field(default=-1, compare=False)
    """Size in bytes; -1 if not requested yet."""
    stamp: str = field(default="", compare=False)
    """The ETag, or the time of the last change; "" if not requested yet, or if the server sends neither."""

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        """The scheme, such as s3."""
        return scheme_of(self.url)

    @property
    def _inner(self) -> PurePosixPath:
        return PurePosixPath(self.url.partition("://")[2])

    @property
    def parts(self) -> tuple[str, ...]:
        """The bucket and the names below it."""
        return self._inner.parts

    @property
    def name(self) -> str:
        """The last name."""
        return self._inner.name

    @property
    def suffix(self) -> str:
        """The suffix of the name."""
        return self._inner.suffix

    @property
    def parent(self) -> RemotePath:
        """The parent folder; a bucket is its own parent."""
        return self._at(self._inner.parent) if len(self.parts) > 1 else replace(self, size=-1, stamp="")

    @property
    def parents(self) -> tuple[RemotePath, ...]:
        """All parent folders, nearest first."""
        return tuple(map(self._at, list(self._inner.parents)[:-1]))

    def _at(self, inner: PurePosixPath) -> RemotePath:
        return RemotePath(f"{self.scheme}://{inner}")

    def __truediv__(self, name: str | PurePosixPath) -> RemotePath:
        return self._at(self._inner / name)

    def resolve(self) -> RemotePath:
        """Return the path itself: there are no links."""
        return self

    def with_stat(self) -> RemotePath:
        """Return the file with its size and stamp; raise InputError if it is missing or access is denied."""
        if self.size >= 0:
            return self
        info = ask(self.url, lambda filesystem: filesystem.info(self.url))
        if info["type"] == "directory":
            raise InputError(f"{self.url} is a folder", hint="give a file")
        return replace(self, size=int(info["size"]), stamp=_stamp(info))

    def stat(self) -> RemoteStat:
        """Return the size."""
        return RemoteStat(self.with_stat().size)

    def is_file(self) -> bool:
        """Return whether this is a readable file; False if access is denied."""
        try:
            return self.with_stat().size >= 0
        except InputError:
            return False

    def exists(self) -> bool:
        """Return whether a file or a folder exists here."""
        return self.is_file() or self.is_dir()

    def is_dir(self) -> bool:
        """Return whether there are files below."""
        if self.size >= 0 or self.scheme in HTTP:
            return False
        try:
            return next(self.files(), None) is not None
        except InputError:
            return False

    def files(self) -> Iterator[RemotePath]:
        """Yield all files below, with sizes and stamps."""
        yield from self._of_listing(ask(self.url, lambda filesystem: filesystem.find(self.url, detail=True)))

    def matches(self) -> Iterator[RemotePath]:
        """Yield the files that match this path as a pattern (`s3://bucket/run/*.json`)."""
        inner = str(self._inner)
        yield from self._of_listing(ask(self.url, lambda filesystem: filesystem.glob(inner, detail=True)))

    def _of_listing(self, listing: dict[str, dict[str, Any]]) -> Iterator[RemotePath]:
        for name, info in sorted(listing.items()):
            if info.get("type") == "file":  # for a file, fsspec lists only the name
                inner = name.partition("://")[2] if "://" in name else name.lstrip("/")
                yield RemotePath(f"{self.scheme}://{inner}", int(info["size"]), _stamp(info))

    def open(self, mode: str = "rb", buffering: int = 0) -> RemoteStream:  # noqa: ARG002 - signature of `Path.open`
        """Open for reading."""
        return RemoteStream(self.with_stat())

    def read_bytes(self) -> bytes:
        """Read the complete file."""
        content: bytes = ask(self.url, lambda filesystem: filesystem.cat_file(self.url))
        return content

    def write_from(self, file: Path) -> None:
        """Upload a complete file from this machine."""
        ask(self.url, lambda filesystem: filesystem.put_file(str(file), self.url))


Location = Path | RemotePath
"""The location of a file: local or remote."""

_ALIASES = {"gcs": "gs"}
"""Schemes that users write but the client does not know, with the name that it knows."""


def location(path: str | Path | RemotePath) -> Location:
    """Return the path for a text: a URL's, or a local one (`~` is the home folder)."""
    if isinstance(path, RemotePath):
        return path
    check_name(path, "name another file or folder")
    scheme = scheme_of(path)
    if not scheme:
        return Path(path).expanduser()
    inner = str(path).partition(":")[2].lstrip("/")
    if scheme == "file":
        return Path(unquote(f"/{inner}"))
    if scheme in HTTP and urlsplit(str(path)).query:
        hint = "give its s3://, gs:// or az:// URL with credentials, or download it first"
        raise UsageError(f"a URL with a query (?...) cannot be read: {str(path).partition('?')[0]}", hint=hint)
    scheme = _ALIASES.get(scheme, scheme)
    if not inner:
        raise UsageError(f"{path} names no bucket", hint=f"write {scheme}://BUCKET/PATH")
    return RemotePath(f"{scheme}://{inner.rstrip('/')}")


def parts_below(path: Location, folder: Location) -> tuple[str, ...]:
    """Return the names from a folder down to a path below it."""
    return path.parts[len(folder.parts) :]


class RemoteStream(io.RawIOBase):
    """The bytes of a remote file, in ranges that grow and are fetched ahead."""

    def __init__(self, path: RemotePath) -> None:
        super().__init__()
        self._path = path
        self._threads = ThreadPoolExecutor(_AHEAD)
        self._asked: deque[Future[bytes]] = deque()
        self._next = 0
        """Start of the next range to request."""
        self._held = memoryview(b"")
        self._at = 0
        self._whole: bytes | None = None
        """The complete file, if its server does not support ranges; otherwise None."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position; drop the ranges fetched ahead unless the target is inside the current one."""
        target = offset + (0, self._at, self._path.size)[whence]
        inside = target - self._at
        if 0 <= inside <= len(self._held):
            self._held = self._held[inside:]
        elif target != self._at:
            self._held, self._next = memoryview(b""), target
            self._asked.clear()
        self._at = target
        return target

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        """Read the available bytes, at most as many as fit the buffer."""
        if not self._held:
            self._held = memoryview(self._range())
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        self._at += size
        return size

    def _range(self) -> bytes:
        """Return the next range, b"" at the end; from the second range on, fetch ahead."""
        is_first = self._next == 0
        wanted = 1 if is_first else 1 + _AHEAD
        while len(self._asked) < wanted and self._next < self._path.size:
            end = min(self._next + max(_FIRST_RANGE, min(_LARGEST_RANGE, self._next)), self._path.size)
            self._asked.append(self._threads.submit(self._fetch, self._next, end))
            self._next = end
        if self._asked:
            return interruptible_result(self._asked.popleft())
        if RemotePath(self._path.url).with_stat().stamp != self._path.stamp:
            raise self._changed()  # the ranges may be from two versions
        return b""

    def _fetch(self, begin: int, end: int) -> bytes:
        content = self._ranged(begin, end) if self._whole is None else self._whole[begin:end]
        if len(content) != end - begin:
            raise self._changed()
        return content

    def _ranged(self, begin: int, end: int) -> bytes:
        url = self._path.url
        try:
            content: bytes = ask(url, lambda filesystem: filesystem.cat_file(url, start=begin, end=end))
        except NoRangesError:  # such as `python -m http.server`
            self._whole = self._path.read_bytes()
            content = self._whole[begin:end]
        return content

    def _changed(self) -> InputError:
        return InputError(f"{self._path.url} was changed while it was read", hint="read it again")

    def close(self) -> None:
        """Cancel pending requests and wait for running ones: none continues after the file is closed."""
        self._threads.shutdown(cancel_futures=True)
        super().close()


def _stamp(info: dict[str, Any]) -> str:
    # Some servers quote the tag in a file's response but not in a listing.
    return str(info.get("e_tag") or info.get("ETag") or info.get("last_modified") or "").strip('"')
