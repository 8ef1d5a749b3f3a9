"""Workers: missing results are computed locally, and only another package version is refused."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from loky import ProcessPoolExecutor

from usp_prof.model.errors import UspProfError
from usp_prof.store import executors, workers
from usp_prof.store.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable


def process_of(_: int) -> int:
    return os.getpid()


def dies_elsewhere(number: int, home: int) -> int:
    """Kill the process, unless it is the main process."""
    if os.getpid() != home and number == 1:
        os._exit(1)
    return number


def test_local_processes_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "processors", lambda: 2)
    made = list(Workers().map(process_of, range(6)))
    assert len(made) == 6
    assert os.getpid() not in made


def slow(number: int) -> int:
    time.sleep(0 if not number else 30)
    return number


def test_local_workers_end_at_once_if_results_are_no_longer_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "processors", lambda: 2)
    ours, begun = Workers(), time.monotonic()
    made = ours.map(slow, range(4))
    assert next(made) == 0
    made.close()  # type: ignore[attr-defined] # a generator
    assert time.monotonic() - begun < 25
    assert list(ours.map(abs, [-1, -2])) == [1, 2]


def test_with_one_processor_the_main_process_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "processors", lambda: 1)
    assert list(Workers().map(process_of, range(3))) == [os.getpid()] * 3


def test_results_of_an_executor_are_in_order() -> None:
    with ProcessPoolExecutor(2) as executor:
        assert list(Workers(executor).map(partial(dies_elsewhere, home=os.getpid()), [5, 4, 3])) == [5, 4, 3]


@pytest.mark.parametrize("given", [False, True])
def test_items_of_a_dead_worker_are_computed_locally(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "processors", lambda: 2)
    executor = ProcessPoolExecutor(2) if given else None
    ours = Workers(executor)
    for _ in range(workers.ATTEMPTS + 1):  # and again, when no processes are started any more
        assert list(ours.map(partial(dies_elsewhere, home=os.getpid()), range(9))) == list(range(9))
    if executor is not None:
        executor.shutdown(kill_workers=True)


def test_work_of_a_closed_executor_is_computed_locally() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    assert list(Workers(executor).map(process_of, range(2))) == [os.getpid()] * 2


def test_an_executor_with_invalid_results_is_not_used() -> None:
    class Forgetful(ThreadPoolExecutor):
        def submit(self, *_: object, **__: object) -> Future[None]:  # type: ignore[override]
            return super().submit(lambda: None)

    with Forgetful(1) as executor:
        assert list(Workers(executor).map(process_of, range(2))) == [os.getpid()] * 2


def test_our_own_errors_are_raised() -> None:
    with ThreadPoolExecutor(1) as executor, pytest.raises(ZeroDivisionError):
        list(Workers(executor).map(lambda number: 1 // number, [1, 0]))


def test_workers_of_another_version_are_refused() -> None:
    class Other(ThreadPoolExecutor):
        def submit(self, run: Callable[..., Any], _: object, *args: Any) -> Future[Any]:  # type: ignore[override]
            return super().submit(run, ("0.0.1", "other"), *args)

    with Other(1) as executor, pytest.raises(UspProfError, match=r"another usp-prof .* than this machine \(0.0.1\)"):
        list(Workers(executor).map(process_of, range(2)))


def test_closing_the_results_cancels_remaining_items() -> None:
    with ThreadPoolExecutor(1) as executor:
        made = Workers(executor).map(process_of, iter(range(10_000)))
        assert next(made) == os.getpid()
        made.close()  # type: ignore[attr-defined] # a generator
