"""Errors raised on purpose: message, hint, and both on the way between processes."""

from __future__ import annotations

import pickle
import traceback

import pytest

from usp_prof.model.errors import InputError, UspProfError, unknown_name


def test_a_traceback_shows_the_hint() -> None:
    """In a notebook the message stood alone: only the command line printed what to do next."""
    error = unknown_name("edit", "rank_as_peer", ["rank_as_peers", "schedule"])
    assert traceback.format_exception_only(error)[-1] == "hint: did you mean rank_as_peers?\n"
    assert str(error) == error.message == "no edit is named 'rank_as_peer'"


@pytest.mark.parametrize("hint", ["", "look elsewhere"])
def test_an_error_comes_whole_from_another_process(hint: str) -> None:
    error = pickle.loads(pickle.dumps(InputError("no trace here", hint=hint)))  # noqa: S301 - our own bytes
    assert isinstance(error, UspProfError)
    assert (error.message, error.hint) == ("no trace here", hint)
    assert getattr(error, "__notes__", []) == ([f"hint: {hint}"] if hint else [])


def test_a_hint_is_noted_once() -> None:
    """Where a pickler of Dask's restores notes before the state, it stood twice."""
    error = InputError("no trace here", hint="look elsewhere")
    error.__setstate__({"hint": "look elsewhere"})
    assert error.__notes__ == ["hint: look elsewhere"]
