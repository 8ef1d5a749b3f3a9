"""Workers: one thread per run computes results for all sessions, memoizes them and reports progress.

A lane is one thread with its own queue. Every run has a lane, so opening a large run does not delay the others; results
of no single run (comparisons, plans) share one more lane. The least recently requested results are dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_any
from dataclasses import dataclass
from typing import Any, TypeVar

import streamlit as st

T = TypeVar("T")
MOST_STORED = 128


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a lane: `done` of `of` pieces; `of` is 0 if the number is unknown."""

    text: str = ""
    done: int = 0
    total: int = 0

    @property
    def fraction(self) -> float:
        """The completed share, 0..1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


class Result(Future[T]):
    """A result that a lane computes."""

    def __init__(self, lane: Hashable) -> None:
        super().__init__()
        self.lane = lane


class Worker:
    """Computes results, one at a time per lane, and memoizes them."""

    def __init__(self, most_stored: int = MOST_STORED) -> None:
        self._most_stored = most_stored
        self._answers: OrderedDict[Hashable, Result[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._pools: dict[Hashable, ThreadPoolExecutor] = {}
        self._progress: dict[Hashable, Progress] = {}
        self._here = threading.local()

    def ask(self, key: Hashable, build: Callable[[], T], *, lane: Hashable = None) -> Result[T]:
        """Return the result for `key`, computed by `build` on `lane` unless it is known; errors are not memoized.

        A computation may ask for other results. One that has not started is computed at once, and skipped when its turn
        comes. One that another lane computes is waited for. Results have no cyclic dependencies, so lanes never wait
        in a circle.
        """
        is_within = getattr(self._here, "lane", self) is not self
        with self._lock:
            answer = self._answers.get(key)
            if answer is None or (answer.done() and answer.exception() is not None):
                answer = self._answers[key] = Result(lane)
                if not is_within:
                    self._pool(lane).submit(self._compute, answer, build)
                self._drop_oldest()
            self._answers.move_to_end(key)
        if is_within:
            self._compute(answer, build)
        return answer

    def is_ready(self, key: Hashable) -> bool:
        """Return whether a result is available."""
        answer = self._answers.get(key)
        return answer is not None and answer.done() and answer.exception() is None

    def report_progress(self, text: str, done: int = 0, total: int = 0) -> None:
        """Report the progress of the lane that calls this."""
        self._progress[getattr(self._here, "lane", None)] = Progress(text, done, total)

    def progress(self, lane: Hashable = None) -> Progress:
        """Return the progress of a lane."""
        return self._progress.get(lane, Progress())

    def keep_latest(self, kinds: Collection[str], most: int) -> None:
        """Drop results whose keys start with one of `kinds`, except the `most` that were requested last."""
        with self._lock:
            done = [key for key, answer in self._answers.items() if _kind(key) in kinds and answer.done()]
            for key in done[: max(0, len(done) - most)]:
                del self._answers[key]

    def forget(self) -> None:
        """Drop all results; those that are still queued are canceled."""
        with self._lock:
            for answer in self._answers.values():
                answer.cancel()
            self._answers.clear()

    def finish(self) -> None:
        """Wait until every lane is idle."""
        with self._lock:
            pools = list(self._pools.values())
        for pool in pools:
            pool.submit(lambda: None).result()

    def _pool(self, lane: Hashable) -> ThreadPoolExecutor:
        if lane not in self._pools:
            self._pools[lane] = ThreadPoolExecutor(1, f"usp-prof {lane}", initializer=self._enter, initargs=(lane,))
        return self._pools[lane]

    def _enter(self, lane: Hashable) -> None:
        self._here.lane = lane

    def _compute(self, answer: Result[T], build: Callable[[], T]) -> None:
        """Compute a result unless a lane has started or finished it; only lanes call this."""
        with self._lock:
            if answer.done() or answer.running() or not answer.set_running_or_notify_cancel():
                return
        answer.lane = self._here.lane
        try:
            answer.set_result(build())
        except BaseException as error:  # noqa: BLE001 - raised again in the session that waits for the result
            answer.set_exception(error)

    def _drop_oldest(self) -> None:
        done = [key for key, answer in self._answers.items() if answer.done()]
        for key in done[: max(0, len(self._answers) - self._most_stored)]:
            del self._answers[key]


def _kind(key: Hashable) -> object:
    return key[0] if isinstance(key, tuple) and key else None


worker = Worker()
"""The workers of this process."""


# Waiting on a page: a progress bar in every session that waits for a result.


LOOK_EVERY_S = 0.15
PATIENCE_S = 0.05
"""A result that arrives within this time needs no progress bar."""


def wait(answer: Result[T]) -> T:
    """Return a result; show the progress of its lane until it is available."""
    wait_for_any([answer], PATIENCE_S)
    if not answer.done():
        place = st.empty()
        while not answer.done():
            now = worker.progress(answer.lane)
            count = f" {now.done:,} of {now.total:,}" if now.total and now.total < 10_000 else ""
            place.progress(now.fraction, f"{now.text or 'waiting'}{count}")
            wait_for_any([answer], LOOK_EVERY_S)
        place.empty()
    return answer.result()
