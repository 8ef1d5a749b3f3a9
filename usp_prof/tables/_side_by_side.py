"""How are several ranks read at once? By processes of our own kind that put tables into the cache.

Plain subprocesses, not `multiprocessing`: they neither import the caller's main module nor fork a process that may
have threads, so `open_run` works in scripts, notebooks, dashboards and tests alike. A job is one line of JSON to the
process, the answer one line back; the tables themselves go by way of the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from usp_prof.contract import Manifest
    from usp_prof.readers.cache import Cache

_MODULE = "usp_prof.tables._rank_process"


@dataclass(frozen=True, slots=True)
class Job:
    """One file to read, as which rank, and the key under which its tables are stored."""

    path: Path
    rank: int
    key: str


def read_side_by_side(jobs: Sequence[Job], manifest: Manifest | None, cache: Cache) -> Iterator[tuple[Job, str]]:
    """Read files in several processes; gives each job as it ends, with what went wrong ("" when all is well).

    A job whose process died is not given: the caller reads it by itself.
    """
    workers = min(len(jobs), _processors())
    told = msgspec.json.encode(manifest.to_dict() if manifest else None)
    waiting: SimpleQueue[_Reader | None] = SimpleQueue()
    readers = []
    for _ in range(workers):
        try:
            readers.append(_Reader(cache, told))
        except OSError:
            break
    for reader in readers:
        waiting.put(reader)
    if not readers:
        return
    try:
        with ThreadPoolExecutor(len(readers)) as threads:
            running = {threads.submit(_one, waiting, job): job for job in sorted(jobs, key=_largest_first)}
            for future in as_completed(running):
                answer = future.result()
                if answer is not None:
                    yield running[future], answer
    finally:
        for reader in readers:
            reader.close()


def _one(waiting: SimpleQueue[_Reader | None], job: Job) -> str | None:
    reader = waiting.get()
    answer = None
    try:
        answer = reader.read(job) if reader is not None else None
    finally:
        waiting.put(reader if answer is not None else None)
    return answer


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
            env={**os.environ, "PYTHONPATH": path},
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
