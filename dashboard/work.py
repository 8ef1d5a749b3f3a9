"""The worker: computes one thing after the other for all sessions, keeps the answers, says how far it is.

Answers are kept, the least recently asked ones let go. A page that waits shows `now`; whoever only pans a timeline
waits for nobody.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable


T = TypeVar("T")
MOST_KEPT = 128


@dataclass(frozen=True, slots=True)
class Progress:
    """What the worker is at: `done` of `of` pieces; `of` is 0 where nobody knows how many there are."""

    text: str = ""
    done: int = 0
    of: int = 0

    @property
    def fraction(self) -> float:
        """The share that is done, 0..1."""
        return min(1.0, self.done / self.of) if self.of else 0.0


class Worker:
    """Computes one thing after the other and keeps the answers."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self.now = Progress()
        self._most_kept = most_kept
        self._kept: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "usp-prof", initializer=self._mark_worker)
        self._here = threading.local()

    def ask(self, key: Hashable, build: Callable[[], T]) -> Future[T]:
        """Return the answer to `key`, to be computed by `build` unless it is known; errors are not kept.

        The worker itself may ask, for what it computes. It never waits in its own line: an answer that nobody has begun
        is computed at once, and passed over when its turn comes.
        """
        with self._lock:
            answer = self._kept.get(key)
            if answer is None or (answer.done() and answer.exception() is not None):
                answer = self._kept[key] = Future()
                if not self._is_worker():
                    self._pool.submit(_compute, answer, build)
                self._let_go()
            self._kept.move_to_end(key)
        if self._is_worker():
            _compute(answer, build)
        return answer

    def known(self, key: Hashable) -> bool:
        """Return whether an answer is there."""
        answer = self._kept.get(key)
        return answer is not None and answer.done() and answer.exception() is None

    def tell(self, text: str, done: int = 0, of: int = 0) -> None:
        """Report what is being done; called by what is being computed."""
        self.now = Progress(text, done, of)

    def keep_latest(self, kinds: Collection[str], most: int) -> None:
        """Let go of answers whose keys begin with one of `kinds`, but for the `most` that were asked for last."""
        with self._lock:
            kept = [key for key, future in self._kept.items() if _kind(key) in kinds and future.done()]
            for key in kept[: max(0, len(kept) - most)]:
                del self._kept[key]

    def forget(self) -> None:
        """Let every answer go."""
        with self._lock:
            self._kept.clear()

    def _mark_worker(self) -> None:
        self._here.is_worker = True

    def _is_worker(self) -> bool:
        return getattr(self._here, "is_worker", False)

    def _let_go(self) -> None:
        done = [key for key, future in self._kept.items() if future.done()]
        for key in done[: max(0, len(self._kept) - self._most_kept)]:
            del self._kept[key]


def _compute(answer: Future[T], build: Callable[[], T]) -> None:
    """Compute an answer, unless it is computed already or being computed; only the worker's thread calls this."""
    if answer.running() or answer.done():
        return
    answer.set_running_or_notify_cancel()
    try:
        answer.set_result(build())
    except BaseException as error:  # noqa: BLE001 - handed on to whoever asks: without an answer they would wait forever
        answer.set_exception(error)


def _kind(key: Hashable) -> object:
    return key[0] if isinstance(key, tuple) and key else None


worker = Worker()
"""The one worker of this process."""


# Waiting on a page: a bar that shows how far the work is, in every session that waits for it.


LOOK_EVERY_S = 0.15
PATIENCE_S = 0.05
"""An answer that comes within this needs no bar."""


def wait(answer: Future[T]) -> T:
    """Return an answer; while it is computed, show how far it is."""
    try:
        return answer.result(PATIENCE_S)
    except NotYet:
        if answer.done():  # the work itself ran out of time
            raise
    place = st.empty()
    while not answer.done():
        now = worker.now
        count = f" {now.done:,} of {now.of:,}" if now.of and now.of < 10_000 else ""
        place.progress(now.fraction, f"{now.text or 'waiting'}{count}")
        try:
            answer.result(LOOK_EVERY_S)
        except NotYet:
            continue
    place.empty()
    return answer.result()
