"""Runs in the dashboard's tests, and the contents of a page, without a browser."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streamlit.testing.v1 import AppTest

import dashboard
from dashboard import data, served_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

SCRIPT = Path(dashboard.__file__).parent / "script" / "main.py"
"""What Streamlit runs for a visitor: each page in its frame."""
SCRIPT_OF_PAGE = """from dashboard.pages import PAGES
next(page for page in PAGES if page.path == {page!r}).draw()
"""
CAREFUL_SCRIPT = """import streamlit as st
from dashboard.pages import PAGES
from usp_prof import UspProfError
try:
    next(page for page in PAGES if page.path == {page!r}).draw()
except UspProfError as error:
    st.error(error.message)
"""


@contextmanager
def naming(runs: Sequence[Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open runs in a fresh dashboard, and clear its state afterwards."""
    _forget()
    monkeypatch.setenv(served_runs.PATHS_VARIABLE, json.dumps([str(run) for run in runs]))
    monkeypatch.setenv("USP_PROF_CACHE", str(cache))
    yield
    _forget()


def _forget() -> None:
    """Wait for the workers; otherwise they would use the runs of the next test."""
    data.worker.forget()
    data.worker.finish()
    data.read_again()


def drawn(page: str, **address: str) -> AppTest:
    """Draw a page at an address; fails on an exception."""
    app = AppTest.from_string(SCRIPT_OF_PAGE.format(page=page), default_timeout=120)
    for key, value in address.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception, app.exception[0].value
    return app


def framed(**address: str) -> AppTest:
    """Draw the landing page in its frame, with the sidebar and the navigation; fails on an exception."""
    app = AppTest.from_file(str(SCRIPT), default_timeout=120)
    for key, value in address.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception, app.exception[0].value
    return app


def tried(page: str, **address: str) -> AppTest:
    """Draw a page like the dashboard's script: errors of the library are shown, others are exceptions."""
    app = AppTest.from_string(CAREFUL_SCRIPT.format(page=page), default_timeout=120)
    for key, value in address.items():
        app.query_params[key] = value
    return app.run()
