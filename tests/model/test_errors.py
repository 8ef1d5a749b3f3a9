"""Errors raised on purpose: message, hint, and both on the way between processes."""

from __future__ import annotations

import pickle
import traceback

import pytest

from usp_prof.model.errors import InputError, UspProfError, unknown_name


def test_a_traceback_shows_the_hint() -> None:
    """A notebook used to show only the message; the hint was printed only on the command line."""
    error = unknown_name("edit", "rank_as_peer", ["rank_as_peers", "schedule"])
    assert traceback.format_exception_only(error)[-1] == "hint: did you mean rank_as_peers?\n"
    assert str(error) == error.message == "no edit is named 'rank_as_peer'"


def test_an_unknown_name_among_many_names_the_command_that_lists_them() -> None:
    names = [f"name{number}" for number in range(20)]
    assert unknown_name("edit", "xyzzy", names, list_command="usp-prof whatif PATH --list").hint == (
        "usp-prof whatif PATH --list lists all 20"
    )
    assert unknown_name("edit", "xyzzy", names[:2], list_command="usp-prof").hint == "choose from name0, name1"
    assert unknown_name("edit", "xyzzy", names).hint.endswith(", and 8 more")


@pytest.mark.parametrize("hint", ["", "look elsewhere"])
def test_an_error_from_another_process_keeps_its_hint(hint: str) -> None:
    error = pickle.loads(pickle.dumps(InputError("no trace here", hint=hint)))  # noqa: S301 - our own bytes
    assert isinstance(error, UspProfError)
    assert (error.message, error.hint) == ("no trace here", hint)
    assert getattr(error, "__notes__", []) == ([f"hint: {hint}"] if hint else [])


def test_a_hint_is_added_once() -> None:
    """Dask's pickler restores notes before the state, so the hint used to appear twice."""
    error = InputError("no trace here", hint="look elsewhere")
    error.__setstate__({"hint": "look elsewhere"})
    assert error.__notes__ == ["hint: look elsewhere"]
