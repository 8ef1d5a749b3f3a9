"""Running of rank jobs on any `concurrent.futures.Executor`, by its workers alone or next to this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed

from usp_prof.contract import Manifest
from usp_prof.inputs.object_stores import ExpiredError
from usp_prof.model.errors import UsageError
from usp_prof.store.cache import Cache
from usp_prof.store.rank_jobs import JobResult, OtherVersionError, RankJob, manifest_of_rank, run_job

NOT_DONE = JobResult(stored=False)
"""The worker died or did not start: the caller reads the file itself."""

_ASKED_EVERY_S = 0.5
ATTEMPTS = 3
"""Attempts for a rank whose worker dies while the executor continues."""


def run_jobs(
    jobs: Sequence[RankJob],
    manifest: Manifest | None,
    cache: Cache,
    executor: Executor,
    read_here: Callable[[RankJob], None] | None = None,
) -> Iterator[tuple[RankJob, JobResult]]:
    """Run the jobs, the largest files first; yield each result as its job ends.

    With `read_here`, the caller reads as well: it takes the smallest files that no worker has begun, and there is no
    result for those. Such an executor ends with this call; another one drops the remaining jobs when the caller stops
    early. A job whose worker fails is repeated, up to `ATTEMPTS` attempts in all; then it is an error. Jobs left by a
    broken executor are not done.
    """
    left = sorted(jobs, key=lambda job: (-job.path.stat().st_size if job.path.exists() else 0, job.rank))
    for _ in range(ATTEMPTS):
        failed = []
        for job, result in _run_once(left, manifest, cache, executor, read_here):
            if isinstance(result, JobResult):
                yield job, result
            else:
                failed.append((job, result))
        left = [job for job, _ in failed]
    for job, error in failed:
        why = f"{ATTEMPTS} workers failed to read it, the last with {type(error).__name__}: {error}"
        yield job, JobResult(stored=False, error=why)


def _run_once(
    jobs: Sequence[RankJob],
    manifest: Manifest | None,
    cache: Cache,
    executor: Executor,
    read_here: Callable[[RankJob], None] | None,
) -> Iterator[tuple[RankJob, JobResult | Exception]]:
    """Run each job once; return the exceptions of jobs whose worker failed."""
    futures = _submitted(jobs, manifest, cache, executor)
    submitted = set(futures.values())
    not_submitted = [job for job in jobs if job not in submitted]
    try:
        if read_here is not None:
            _read_alongside(futures, read_here)
        for future in _as_completed(futures):
            try:
                yield futures[future], _own_result(future.result())
            except (ExpiredError, OtherVersionError, UsageError):
                raise
            except (BrokenExecutor, CancelledError, OSError):
                yield futures[future], NOT_DONE
            # Any exception: a damaged rank must not stop the run. Executors have different errors for a killed worker
            # (Dask's KilledWorker) without a common class, and a file may reveal a bug here. No error is hidden:
            # after `ATTEMPTS` the rank is an error in `health`, with the error's name.
            except Exception as error:  # noqa: BLE001
                yield futures[future], error
    finally:
        for future in futures:  # a caller that stops needs no further results
            if read_here is None and not future.done():
                future.cancel()
    yield from ((job, NOT_DONE) for job in not_submitted)


def _submitted(
    jobs: Iterable[RankJob], manifest: Manifest | None, cache: Cache, executor: Executor
) -> dict[Future[JobResult], RankJob]:
    """Submit the jobs, as many as the executor takes."""
    futures = {}
    try:
        for job in jobs:
            futures[executor.submit(run_job, job, manifest_of_rank(manifest, job.rank), cache.place)] = job
    except (OSError, BrokenExecutor):  # no process can be started, or the first ones died immediately
        pass
    except Exception as error:  # any error of a third-party executor, such as one that was shut down
        raise UsageError(
            f"the executor accepts no jobs: {type(error).__name__}: {error}",
            hint="pass an executor that still accepts jobs",
        ) from error
    _refuse_without_answers(futures)
    return futures


def _read_alongside(futures: dict[Future[JobResult], RankJob], read_here: Callable[[RankJob], None]) -> None:
    """Read the files that no worker has begun, the last first; their futures are dropped."""
    for future, job in reversed(list(futures.items())):
        if future.cancel():
            del futures[future]
            read_here(job)


def _refuse_without_answers(futures: Iterable[object]) -> None:
    """Refuse an executor that returns something other than futures, such as a reference to a remote result."""
    for future in futures:
        if not (hasattr(future, "done") and hasattr(future, "result")):
            raise UsageError(
                f"the executor's `submit` returns {type(future).__name__}, which has no `done` and `result`",
                hint="use an executor whose `submit` returns futures, like those of concurrent.futures",
            )


def _own_result(result: object) -> JobResult:
    """Refuse an executor whose futures return something other than the submitted function's result."""
    if isinstance(result, JobResult):
        return result
    raise UsageError(
        f"the executor's futures return {type(result).__name__} instead of the job's result",
        hint="use an executor whose futures return the result of the submitted function",
    )


def _as_completed(futures: Iterable[Future[JobResult]]) -> Iterator[Future[JobResult]]:
    """Yield futures as they end; futures that only resemble the standard ones are polled."""
    waiting = list(futures)
    if all(isinstance(future, Future) for future in waiting):
        yield from as_completed(waiting)
        return
    while waiting:
        ended = [future for future in waiting if future.done()]
        waiting = [future for future in waiting if future not in ended]
        yield from ended
        if waiting and not ended:
            time.sleep(_ASKED_EVERY_S)
