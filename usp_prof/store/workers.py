"""Workers: who measures shares of a run once its ranks are stored. The executor that read them, else local processes.

What a worker does not give (it died, it does not see the store, its executor was shut down) is computed here instead.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import finalize

from usp_prof._version import __version__, fingerprint
from usp_prof.store.executors import free_memory, processors
from usp_prof.store.rank_jobs import ATTEMPTS, OtherVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor, Future

    from loky import ProcessPoolExecutor

_log = logging.getLogger("usp_prof")

Item = TypeVar("Item")
Made = TypeVar("Made")

_WORKER_BYTES = 600 << 20
"""Memory of a worker with a block of collectives; the tables of one rank take less."""
_MEMORY_SHARE = 0.5
_IDLE_S = 30
_AHEAD = 64
"""Shares of ranks that are given away at once, at most: what is made of them waits for its turn in this process."""
_BLOCKS_AHEAD = 8
"""The same of blocks, of which some 50 MB are made."""


@dataclass(frozen=True, slots=True)
class _Answer(Generic[Made]):
    """What a function gave: an executor that gives something else in its place is not believed."""

    made: Made


@dataclass(frozen=True, slots=True)
class _Job(Generic[Item, Made]):
    """An item, and whoever was given it."""

    item: Item
    executor: Executor | None = None
    future: Future[_Answer[Made]] | None = None
    """None where nobody took it."""


class Workers:
    """Processes of this machine, as many as there are processors, or the workers of an executor."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._given = executor
        self._own: ProcessPoolExecutor | None = None
        self._broken = 0
        """How often processes of this machine died; after `ATTEMPTS` none are started any more."""

    def each(self, function: Callable[[Item], Made], items: Iterable[Item], *, here: bool = False) -> Iterator[Made]:
        """Yield `function` of each item, in order; both, and what it gives, can be pickled.

        What needs temporary files of this machine is computed `here`, whatever executor was given.
        """
        ahead = _BLOCKS_AHEAD if here else _AHEAD
        if here or self._given is None:
            ahead = min(ahead, 2 * _local_workers())
        jobs: deque[_Job[Item, Made]] = deque()
        is_done = False
        try:
            for item in items:
                jobs.append(self._submitted(function, item, here=here))
                if len(jobs) >= ahead:
                    yield self._made(function, jobs.popleft())
            while jobs:
                yield self._made(function, jobs.popleft())
            is_done = True
        finally:
            if not is_done:  # whoever stops asking wants nothing more, as after Ctrl-C
                self._stop(jobs)

    def _submitted(self, function: Callable[[Item], Made], item: Item, *, here: bool) -> _Job[Item, Made]:
        """Hand an item to a worker, if one takes it."""
        executor = self._given if self._given is not None and not here else self._local()
        if executor is None:
            return _Job(item)
        try:
            return _Job(item, executor, executor.submit(_computed, _code(), function, item))
        except Exception as error:  # noqa: BLE001 - whatever an executor of somebody else's raises, such as when shut down
            self._failed(executor, error)
            return _Job(item)

    def _made(self, function: Callable[[Item], Made], job: _Job[Item, Made]) -> Made:
        """Take what a worker made of an item; where it made nothing, make it here."""
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
        """Note that a worker gave nothing; processes that died are not asked again."""
        _log.info("a worker gave nothing, its share is computed here: %s: %s", type(error).__name__, error)
        if isinstance(error, BrokenExecutor) and executor is self._own:
            self._own, self._broken = None, self._broken + 1

    def _stop(self, jobs: Iterable[_Job[Item, Made]]) -> None:
        """End what is under way: processes of this machine at once, others with what they have begun."""
        for job in jobs:
            if job.future is not None:
                job.future.cancel()
        if self._own is not None:
            self._own.shutdown(wait=True, kill_workers=True)
            self._own = None

    def _local(self) -> Executor | None:
        """Return processes of this machine; None where one process does as well."""
        if self._own is None and self._broken < ATTEMPTS and (count := _local_workers()) > 1:
            from loky import ProcessPoolExecutor  # noqa: PLC0415 - few runs have so many ranks

            self._own = ProcessPoolExecutor(max_workers=count, timeout=_IDLE_S)
            finalize(self, self._own.shutdown)
        return self._own


def _local_workers() -> int:
    """Return how many processes of this machine can work at once: bounded by processors and memory."""
    free = free_memory()
    bounds = [processors()] if free is None else [processors(), int(free * _MEMORY_SHARE / _WORKER_BYTES)]
    return max(1, min(bounds))


def _code() -> tuple[str, str]:
    """Name what computes: this package's version and code."""
    return __version__, fingerprint()


def _computed(code: tuple[str, str], function: Callable[[Item], Made], item: Item) -> _Answer[Made]:
    """Compute in a worker, with the code of whoever asks and no other."""
    if code != _code():
        raise OtherVersionError(
            f"the workers have another usp-prof ({__version__}) than this machine ({code[0]})",
            hint="install the same version on all of them",
        )
    return _Answer(function(item))
