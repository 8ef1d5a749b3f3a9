"""How are several ranks read at once? By processes of our own kind that put tables into the cache.

A job is one line of JSON to a process, the answer one line back; the tables themselves go by way of the cache.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from usp_prof.tables._processes import begin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from usp_prof.contract import Manifest
    from usp_prof.readers.cache import Cache
    from usp_prof.tables.read_rank import Job


def read_side_by_side(jobs: Sequence[Job], manifest: Manifest | None, cache: Cache) -> Iterator[tuple[Job, str | None]]:
    """Read files in several processes, of which the caller's is one.

    Gives each job as it ends, with what went wrong ("" when all is well). With `None` it is the caller's to read before
    the next is asked for: so are jobs whose process died.
    """
    waiting = deque(sorted(jobs, key=_largest_first))
    answers: SimpleQueue[tuple[Job, str | None]] = SimpleQueue()
    told = msgspec.json.encode(manifest.to_dict() if manifest else None)
    readers: list[_Reader] = []
    with suppress(OSError):
        readers.extend(_Reader(cache, told) for _ in range(min(len(jobs), _processors()) - 1))
    threads = [Thread(target=_serve, args=(reader, waiting, answers)) for reader in readers]
    try:
        for thread in threads:
            thread.start()
        for _ in jobs:
            yield _next(waiting, answers)
    finally:
        waiting.clear()
        for thread in threads:
            thread.join()
        for reader in readers:
            reader.close()
        for reader in readers:
            reader.wait()


def _next(waiting: deque[Job], answers: SimpleQueue[tuple[Job, str | None]]) -> tuple[Job, str | None]:
    """Give a job that has ended, else one that waits; there is an answer to every job that was taken."""
    if answers.empty():
        try:
            return waiting.popleft(), None
        except IndexError:
            pass
    return answers.get()


def _serve(reader: _Reader, waiting: deque[Job], answers: SimpleQueue[tuple[Job, str | None]]) -> None:
    """Have a process read jobs for as long as there are any and it lives."""
    answer: str | None = ""
    while answer is not None:
        try:
            job = waiting.popleft()
        except IndexError:
            return
        answer = None
        try:
            answer = reader.read(job)
        finally:
            answers.put((job, answer))


class _Reader:
    """One process that reads files."""

    def __init__(self, cache: Cache, manifest: bytes) -> None:
        self._process = begin(cache)
        self._say(manifest)

    def read(self, job: Job) -> str | None:
        """Have one file read; gives what went wrong, or `None` when the process is gone."""
        if not self._say(msgspec.json.encode({"path": str(job.path), "rank": job.rank, "key": job.key})):
            return None
        try:
            return msgspec.json.decode(self._process.says.readline(), type=str | None)
        except msgspec.DecodeError:
            return None

    def close(self) -> None:
        """Let the process end."""
        for pipe in (self._process.told, self._process.says):
            with suppress(OSError):
                pipe.close()

    def wait(self) -> None:
        """Wait until it has ended, once all have been closed."""
        with suppress(ChildProcessError):  # nobody can where the system is told to clean up by itself
            self._process.wait()

    def _say(self, line: bytes) -> bool:
        try:
            self._process.told.write(line + b"\n")
            self._process.told.flush()
        except OSError:
            return False
        return True


def _largest_first(job: Job) -> tuple[int, int]:
    return (-job.path.stat().st_size if job.path.exists() else 0, job.rank)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
