"""Executors: who runs the jobs that read ranks. Any `concurrent.futures.Executor` will do.

Without one, loky starts worker processes on this machine. Unlike the standard pool it never imports the caller's main
module, so a script or a notebook needs no main guard.
"""

from __future__ import annotations

import os
from concurrent.futures import CancelledError, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING

from usp_prof.store.rank_job import JobResult, run_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    from usp_prof.contract import Manifest
    from usp_prof.store.cache import Cache
    from usp_prof.store.rank_job import RankJob

NOT_DONE = JobResult(stored=False)
"""The worker died or could not start: whoever asked reads the file itself."""


@contextmanager
def local_executor(jobs: int) -> Iterator[Executor]:
    """Give a pool of worker processes, one a processor, and end them afterwards."""
    from loky import ProcessPoolExecutor  # noqa: PLC0415 - a run that is cached starts no process

    pool = ProcessPoolExecutor(max_workers=max(1, min(jobs, processors())))
    try:
        yield pool
    finally:
        # Without a failure nothing is running any more; after Ctrl-C nobody waits for what is.
        pool.shutdown(wait=True, kill_workers=True)


def run_jobs(
    jobs: Sequence[RankJob], manifest: Manifest | None, cache: Cache, executor: Executor
) -> Iterator[tuple[RankJob, JobResult]]:
    """Run the jobs, the largest files first; gives each as it ends."""
    folder, limit = str(cache.folder), cache.limit_bytes
    futures = {}
    left = sorted(jobs, key=_largest_first)
    try:
        while left:
            futures[executor.submit(run_job, left[0], manifest, folder, limit)] = left[0]
            left.pop(0)
    except (OSError, BrokenProcessPool):  # no process can be started, or the first ones died at once
        pass
    for future in as_completed(futures):
        try:
            yield futures[future], future.result()
        except (BrokenProcessPool, CancelledError, OSError):
            yield futures[future], NOT_DONE
    for job in left:
        yield job, NOT_DONE


def processors() -> int:
    """Count the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _largest_first(job: RankJob) -> tuple[int, int]:
    return (-job.path.stat().st_size if job.path.exists() else 0, job.rank)
