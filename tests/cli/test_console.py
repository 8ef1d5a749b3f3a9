"""Progress: it shows which files are read from where, and appears only once reading starts."""

from __future__ import annotations

import io
import sys
from argparse import Namespace

import pytest

from usp_prof.cli.opening import reading_progress


class Screen(io.StringIO):
    """Stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Be one."""
        return True


def args(**changes: bool) -> Namespace:
    return Namespace(**{"quiet": False, "verbose": False, "no_color": False} | changes)


def test_the_progress_bar_appears_with_the_first_message_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with reading_progress(args()) as progress:
        assert progress is not None
        assert screen.getvalue() == ""  # to begin it starts a thread
        progress(0, 2_000_000, "rank0.json")
        progress(1_000_000, 2_000_000, "rank1.json")
    assert "rank0.json" in screen.getvalue()
    assert "1.0/2.0 MB" in screen.getvalue()


def test_no_bar_is_drawn_if_no_trace_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with reading_progress(args()):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("changes", "message"), [({"verbose": True}, "5/9 bytes: a.json\n"), ({}, ""), ({"quiet": True}, "")]
)
def test_no_bar_is_drawn_into_a_file(monkeypatch: pytest.MonkeyPatch, changes: dict[str, bool], message: str) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with reading_progress(args(**changes)) as progress:
        if progress is not None:
            progress(5, 9, "a.json")
    assert file.getvalue() == message
