"""One worker computes each thing once, whoever asks, and keeps no errors."""

from __future__ import annotations

import threading

import pytest

from dashboard.work import Progress, Worker


def test_an_answer_is_computed_once() -> None:
    worker, computed = Worker(), []
    answers = [worker.ask("a", lambda: computed.append(1) or "answer") for _ in range(3)]
    assert [answer.result(10) for answer in answers] == ["answer"] * 3
    assert computed == [1]
    assert worker.known("a")
    assert not worker.known("b")


def test_an_error_is_handed_on_and_not_kept() -> None:
    worker, tries = Worker(), []

    def fail() -> None:
        tries.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            worker.ask("a", fail).result(10)
    assert len(tries) == 2
    assert not worker.known("a")


def test_what_is_computed_may_ask_for_more() -> None:
    worker = Worker()
    outer = worker.ask("outer", lambda: worker.ask("inner", lambda: 20).result() + 1)
    assert outer.result(10) == 21
    assert worker.ask("inner", lambda: 0).result(10) == 20


def test_an_error_of_what_was_asked_within_is_handed_on() -> None:
    worker = Worker()
    outer = worker.ask("outer", lambda: worker.ask("inner", lambda: 1 // 0).result())
    with pytest.raises(ZeroDivisionError):
        outer.result(10)


def test_the_least_recently_asked_answers_are_let_go() -> None:
    worker = Worker(most_kept=2)
    for key in "abc":
        worker.ask(key, lambda: 1).result(10)
    worker.ask("d", lambda: 1).result(10)
    assert not worker.known("a")
    assert worker.known("d")
    worker.forget()
    assert not worker.known("d")


def test_progress_is_seen_while_it_works() -> None:
    worker, told, seen = Worker(), threading.Event(), threading.Event()

    def work() -> None:
        worker.tell("reading", 1, 4)
        told.set()
        seen.wait(10)

    answer = worker.ask("a", work)
    assert told.wait(10)
    assert worker.now == Progress("reading", 1, 4)
    assert worker.now.fraction == 0.25
    assert Progress("unknown").fraction == 0.0
    seen.set()
    answer.result(10)


def test_of_large_answers_the_latest_are_kept() -> None:
    worker = Worker()
    for number in range(4):
        worker.ask(("large", number), lambda: 0).result(10)
        worker.ask(("small", number), lambda: 0).result(10)
    worker.keep_latest(("large",), 2)
    assert [number for number in range(4) if worker.known(("large", number))] == [2, 3]
    assert all(worker.known(("small", number)) for number in range(4))
