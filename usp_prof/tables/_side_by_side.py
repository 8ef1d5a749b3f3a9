"""How are several ranks read at once? By processes of our own kind that put tables into the cache.

Plain subprocesses, not `multiprocessing`: they neither import the caller's main module nor fork a process that may
have threads, so `open_run` works in scripts, notebooks, dashboards and tests alike. A job is one line of JSON to the
process, the answer one line back; the tables themselves go by way of the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from usp_prof.readers.allocator import SMALL_PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from usp_prof.contract import Manifest
    from usp_prof.readers.cache import Cache
    from usp_prof.tables.read_rank import Job

_MODULE = "usp_prof.tables._rank_process"
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", **SMALL_PAGES}
"""Have NumPy start no threads, which nothing here uses, and ask for no huge pages."""


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
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", _MODULE, str(cache.folder), str(cache.limit_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**_ENVIRONMENT, **os.environ, "PYTHONPATH": path},
        )
        self._say(manifest)

    def read(self, job: Job) -> str | None:
        """Have one file read; gives what went wrong, or `None` when the process is gone."""
        if not self._say(msgspec.json.encode({"path": str(job.path), "rank": job.rank, "key": job.key})):
            return None
        out = self._process.stdout
        line = out.readline() if out is not None else b""
        try:
            return msgspec.json.decode(line, type=str | None)
        except msgspec.DecodeError:
            return None

    def close(self) -> None:
        """Let the process end."""
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass
        self._process.wait()

    def _say(self, line: bytes) -> bool:
        try:
            if self._process.stdin is None:
                return False
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return True


def _largest_first(job: Job) -> tuple[int, int]:
    return (-job.path.stat().st_size if job.path.exists() else 0, job.rank)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
