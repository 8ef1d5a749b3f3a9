"""Workers compute each result once, one lane per run, and memoize no errors."""

from __future__ import annotations

import sys
import threading

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.work import Progress, Worker


def test_an_answer_is_computed_once() -> None:
    worker, computed = Worker(), []
    answers = [worker.ask("a", lambda: computed.append(1) or "answer") for _ in range(3)]
    assert [answer.result(10) for answer in answers] == ["answer"] * 3
    assert computed == [1]
    assert worker.is_ready("a")
    assert not worker.is_ready("b")


def test_an_error_is_raised_to_the_caller_and_not_memoized() -> None:
    worker, tries = Worker(), []

    def fail() -> None:
        tries.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            worker.ask("a", fail).result(10)
    assert len(tries) == 2
    assert not worker.is_ready("a")


def test_a_job_may_start_other_jobs() -> None:
    worker = Worker()
    outer = worker.ask("outer", lambda: worker.ask("inner", lambda: 20).result() + 1)
    assert outer.result(10) == 21
    assert worker.ask("inner", lambda: 0).result(10) == 20


def test_a_job_gets_the_result_of_a_queued_job() -> None:
    worker, in_line, computed = Worker(), threading.Event(), []

    def build_inner() -> int:
        computed.append("inner")
        return 20

    def build_outer() -> int:
        in_line.wait(10)
        # With a time limit, so that a worker that waits for itself fails the test, and does not hold it up.
        return worker.ask("inner", build_inner).result(5) + 1

    outer = worker.ask("outer", build_outer)
    inner = worker.ask("inner", build_inner)
    in_line.set()
    assert outer.result(10) == 21
    assert inner.result(10) == 20
    assert worker.ask("after", lambda: 1).result(10) == 1  # the turn of `inner` has passed
    assert computed == ["inner"]


def test_an_exit_is_raised_too() -> None:
    worker = Worker()
    outer = worker.ask("outer", lambda: worker.ask("inner", sys.exit).result())
    with pytest.raises(SystemExit):
        outer.result(10)
    assert worker.ask("after", lambda: 1).result(10) == 1


def test_an_error_of_a_nested_job_is_raised_to_the_caller() -> None:
    worker = Worker()
    outer = worker.ask("outer", lambda: worker.ask("inner", lambda: 1 // 0).result())
    with pytest.raises(ZeroDivisionError):
        outer.result(10)


def test_the_least_recently_used_results_are_dropped() -> None:
    worker = Worker(most_stored=2)
    for key in "abc":
        worker.ask(key, lambda: 1).result(10)
    worker.ask("d", lambda: 1).result(10)
    assert not worker.is_ready("a")
    assert worker.is_ready("d")
    worker.forget()
    assert not worker.is_ready("d")


def test_results_are_kept_up_to_the_limit() -> None:
    worker = Worker(most_stored=4)
    for key in "abcd":
        worker.ask(key, lambda: 1).result(10)
    assert all(worker.is_ready(key) for key in "abcd")


def test_progress_is_visible_during_the_computation() -> None:
    worker, reported, seen = Worker(), threading.Event(), threading.Event()

    def work() -> None:
        worker.report_progress("reading", 1, 4)
        reported.set()
        seen.wait(10)

    answer = worker.ask("a", work)
    assert reported.wait(10)
    assert worker.progress() == Progress("reading", 1, 4)
    assert worker.progress().fraction == 0.25
    assert Progress("unknown").fraction == 0.0
    seen.set()
    answer.result(10)


def test_the_latest_large_results_are_kept() -> None:
    worker = Worker()
    for number in range(4):
        worker.ask(("large", number), lambda: 0).result(10)
        worker.ask(("small", number), lambda: 0).result(10)
    worker.keep_latest(("large",), 2)
    assert [number for number in range(4) if worker.is_ready(("large", number))] == [2, 3]
    assert all(worker.is_ready(("small", number)) for number in range(4))


def test_a_failure_leaves_no_progress_bar() -> None:
    def page() -> None:
        import time  # noqa: PLC0415 - the script of a page is read from the function's text

        import streamlit as st  # noqa: PLC0415

        from dashboard.work import wait, worker  # noqa: PLC0415

        def fail() -> None:
            time.sleep(0.4)
            raise ValueError("no")

        try:
            wait(worker.ask("failing", fail))
        except ValueError:
            st.write("failed")

    app = AppTest.from_function(page).run(timeout=30)
    assert [text.value for text in app.markdown] == ["failed"]
    assert not app.get("progress")


def test_a_slow_run_does_not_delay_the_others() -> None:
    worker, held = Worker(), threading.Event()
    slow = worker.ask("large run", lambda: held.wait(10), lane=0)
    assert worker.ask("small run", lambda: 1, lane=1).result(5) == 1
    assert not slow.done()
    held.set()
    assert slow.result(10)


def test_a_result_computed_by_another_lane_is_awaited() -> None:
    worker, held, computed = Worker(), threading.Event(), []

    def build() -> int:
        computed.append(1)
        held.wait(10)
        return 20

    shared = worker.ask("shared", build, lane=0)
    pair = worker.ask("pair", lambda: worker.ask("shared", build, lane=0).result(10) + 1)
    held.set()
    assert (shared.result(10), pair.result(10), computed) == (20, 21, [1])
