"""Blocking store: an fsspec file system on the synchronous calls of obstore.

The file system of obstore itself awaits each answer in an event loop. The client's thread that sets the answer is still
inside Python a moment later. If the interpreter exits at that moment, the thread aborts the process (exit code 134). A
synchronous call leaves no client thread inside Python.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from fsspec.spec import AbstractFileSystem
from obstore.store import from_url

from usp_prof.inputs.interruptible import interruptible_result

T = TypeVar("T")


class BlockingStore(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The buckets of one scheme; fsspec builds the other methods (`find`, `glob`) on `ls` and `info`."""

    cachable = False

    def __init__(self, scheme: str, **options: Any) -> None:  # noqa: ANN401 - options of `from_url`
        super().__init__()
        self._scheme = scheme
        # A client keeps its connections open, so there is one per bucket.
        self._client = cache(lambda bucket: from_url(f"{scheme}://{bucket}", **options))

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """Return size and stamp of a file, or an entry for a folder."""
        client, bucket, name = self._located(path)
        try:
            return _of_file(bucket, _answer(lambda: client.head(name)))
        except FileNotFoundError:
            self.ls(path)
            return _of_folder(bucket, name)

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:  # noqa: FBT001, FBT002 - signature of fsspec
        """List the files and folders in a folder; raise FileNotFoundError if it is empty or missing."""
        client, bucket, name = self._located(path)
        listing = _answer(lambda: client.list_with_delimiter(name))
        files = [_of_file(bucket, file) for file in listing["objects"]]
        entries = files + [_of_folder(bucket, folder) for folder in listing["common_prefixes"]]
        if not entries:
            raise FileNotFoundError(path)
        return entries if detail else sorted(entry["name"] for entry in entries)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        """Read a file, completely or from `start` to `end`."""
        client, _bucket, name = self._located(path)

        def content() -> bytes:
            if end is None:
                return bytes(client.get(name).bytes())[start:]
            return bytes(client.get_range(name, start=start or 0, end=end))

        return _answer(content)

    def put_file(self, lpath: str, rpath: str, **_: object) -> None:
        """Upload a complete file from this machine."""
        client, _bucket, name = self._located(rpath)
        _answer(lambda: client.put(name, Path(lpath)))

    def _located(self, path: str) -> tuple[Any, str, str]:
        """Return the client of a path, its bucket (the host, for a web server) and the name inside it."""
        bucket, _, name = path.removeprefix(f"{self._scheme}://").partition("/")
        return self._client(bucket), bucket, name


def _of_file(bucket: str, file: dict[str, Any]) -> dict[str, Any]:
    stamps = {"e_tag": file["e_tag"], "last_modified": file["last_modified"]}
    return {"name": f"{bucket}/{file['path']}", "size": file["size"], "type": "file", **stamps}


def _of_folder(bucket: str, name: str) -> dict[str, Any]:
    return {"name": f"{bucket}/{name}", "size": 0, "type": "directory"}


def _answer(call: Callable[[], T]) -> T:
    """Run a call in a thread and wait for it: Ctrl-C interrupts the wait, but not a call of the client."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return interruptible_result(answer)
