"""Executors that run rank jobs in worker processes of this machine, and how many of them it can hold.

loky starts as many processes as cores and memory allow. Unlike the standard pool it never imports the caller's main
module, so a script or notebook needs no main guard. Executors of clusters are in `usp_prof.extras.cluster`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from usp_prof.inputs.remote import Location
from usp_prof.store.rank_jobs import RankJob

if TYPE_CHECKING:
    from loky import ProcessPoolExecutor

Made = TypeVar("Made")

_WORKER_BYTES = 200 << 20
"""Memory of an idle worker: the interpreter and its libraries."""
_UNPACKED = 12
"""Typical ratio of unpacked to packed trace size; a reader needs about the unpacked size."""
_MEMORY_SHARE = 0.8


class _OneJobEach(ThreadPoolExecutor):
    """One thread per process, which passes it the next job when it is idle, so that all other jobs can be canceled.

    loky itself passes jobs on ahead of time: with one process, six of eight jobs.
    """

    def __init__(self, processes: ProcessPoolExecutor, workers: int) -> None:
        super().__init__(workers)
        self._processes = processes

    def submit(self, function: Callable[..., Made], /, *args: object, **_: object) -> Future[Made]:
        """Run a function in one of the processes."""
        return super().submit(lambda: self._processes.submit(function, *args).result())


@contextmanager
def local_executor(workers: int) -> Iterator[Executor]:
    """Yield a pool of worker processes, and stop them afterwards."""
    from loky import ProcessPoolExecutor  # noqa: PLC0415 - a run that is cached starts no process

    # A reader multiplies no matrices, and starting OpenBLAS's threads takes a tenth of a second.
    pool = ProcessPoolExecutor(max_workers=workers, env={"OPENBLAS_NUM_THREADS": "1"})
    threads = _OneJobEach(pool, workers)
    try:
        yield threads
    finally:
        # Without a failure nothing is running here; after Ctrl-C no result is needed.
        threads.shutdown(wait=False, cancel_futures=True)
        pool.shutdown(wait=True, kill_workers=True)


def workers_for(jobs: Sequence[RankJob]) -> int:
    """Return how many local processes can read at once: limited by jobs, processors and memory."""
    need = _WORKER_BYTES + max((unpacked_bytes(job.path) for job in jobs), default=0)
    return min(max(1, len(jobs)), at_once(need, _MEMORY_SHARE))


def at_once(worker_bytes: int, memory_share: float) -> int:
    """Return how many local processes can work at once: limited by processors and by a share of the free memory."""
    free = free_memory()
    bounds = [processors()] if free is None else [processors(), int(free * memory_share / worker_bytes)]
    return max(1, min(bounds))


def unpacked_bytes(path: Location) -> int:
    """Return the size of a trace as JSON, estimated if it is compressed."""
    size = path.stat().st_size if path.exists() else 0
    return size if path.suffix == ".json" else size * _UNPACKED


def free_memory() -> int | None:
    """Return the bytes of memory free for this process and its container; None: unknown."""
    bounds = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        bounds.append(int(lines["MemAvailable"].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit.isdecimal():
            bounds.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, KeyError, ValueError):
        pass
    return max(0, min(bounds)) if bounds else None


def processors() -> int:
    """Return the number of processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
