"""Workers: processes that compute on shares of a run after its ranks are stored.

They are those of the executor that read the ranks, else local ones. A result that a worker does not deliver (it died,
cannot see the store, or was shut down) is computed in this process.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import finalize

from usp_prof._version import __version__, fingerprint
from usp_prof.store.executors import at_once
from usp_prof.store.rank_jobs import OtherVersionError, refuse_other_version
from usp_prof.store.running import ATTEMPTS

if TYPE_CHECKING:
    from loky import ProcessPoolExecutor

_log = logging.getLogger("usp_prof")

Item = TypeVar("Item")
Made = TypeVar("Made")

_WORKER_BYTES = 600 << 20
"""Memory of a worker that analyzes ranks one after the other."""
_MEMORY_SHARE = 0.5
_IDLE_S = 30
_AHEAD = 64
"""Maximum number of submitted shares of ranks: their results wait in this process."""


@dataclass(frozen=True, slots=True)
class _Answer(Generic[Made]):
    """Result of a function. Any other type came from an executor that does not run it."""

    made: Made


@dataclass(frozen=True, slots=True)
class _Job(Generic[Item, Made]):
    """An item and its future."""

    item: Item
    executor: Executor | None = None
    future: Future[_Answer[Made]] | None = None
    """None: no worker accepted it."""


class Workers:
    """Processes of this machine, one per processor, or the workers of an executor."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._given = executor
        self._own: ProcessPoolExecutor | None = None
        self._broken = 0
        """How often local processes died; after `ATTEMPTS` no more are started."""

    def map(self, function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """Yield `function(item)` for each item, in order. The function, items and results can be pickled."""
        ahead = _AHEAD if self._given is not None else min(_AHEAD, 2 * at_once(_WORKER_BYTES, _MEMORY_SHARE))
        jobs: deque[_Job[Item, Made]] = deque()
        is_done = False
        try:
            for item in items:
                jobs.append(self._submitted(function, item))
                if len(jobs) >= ahead:
                    yield self._made(function, jobs.popleft())
            while jobs:
                yield self._made(function, jobs.popleft())
            is_done = True
        finally:
            if not is_done:  # a caller that stops needs no further results, as after Ctrl-C
                self._stop(jobs)

    def _submitted(self, function: Callable[[Item], Made], item: Item) -> _Job[Item, Made]:
        """Submit an item to a worker, if one accepts it."""
        executor = self._given if self._given is not None else self._local()
        if executor is None:
            return _Job(item)
        try:
            return _Job(item, executor, executor.submit(_computed, _code(), function, item))
        except Exception as error:  # noqa: BLE001 - whatever an executor of somebody else's raises, such as when shut down
            self._failed(executor, error)
            return _Job(item)

    def _made(self, function: Callable[[Item], Made], job: _Job[Item, Made]) -> Made:
        """Return a worker's result for an item; compute it here if there is none."""
        if job.future is None:
            return function(job.item)
        try:
            answer = job.future.result()
        except OtherVersionError:
            raise
        except Exception as error:  # noqa: BLE001 - the same fault, if it is one of ours, comes up here
            self._failed(job.executor, error)
            return function(job.item)
        return answer.made if isinstance(answer, _Answer) else function(job.item)

    def _failed(self, executor: Executor | None, error: Exception) -> None:
        """Record that a worker delivered nothing; processes that died are not used again."""
        _log.info("a worker gave nothing, its share is computed here: %s: %s", type(error).__name__, error)
        if isinstance(error, BrokenExecutor) and executor is self._own:
            self._own, self._broken = None, self._broken + 1

    def _stop(self, jobs: Iterable[_Job[Item, Made]]) -> None:
        """Stop pending work: local processes immediately, other workers after their current item."""
        for job in jobs:
            if job.future is not None:
                job.future.cancel()
        if self._own is not None:
            self._own.shutdown(wait=True, kill_workers=True)
            self._own = None

    def _local(self) -> Executor | None:
        """Return local processes; None if one process is enough."""
        if self._own is None and self._broken < ATTEMPTS and (count := at_once(_WORKER_BYTES, _MEMORY_SHARE)) > 1:
            from loky import ProcessPoolExecutor  # noqa: PLC0415 - few runs have so many ranks

            self._own = ProcessPoolExecutor(max_workers=count, timeout=_IDLE_S)
            finalize(self, self._own.shutdown)
        return self._own


def _code() -> tuple[str, str]:
    """Return what computes: this package's version and code."""
    return __version__, fingerprint()


def _computed(code: tuple[str, str], function: Callable[[Item], Made], item: Item) -> _Answer[Made]:
    """Compute in a worker, only with the same code as the caller's."""
    refuse_other_version(code, _code())
    return _Answer(function(item))
