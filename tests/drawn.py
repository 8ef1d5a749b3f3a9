"""Which runs does the dashboard show in a test, and what does a page draw? Without a browser."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamlit.testing.v1 import AppTest

from dashboard import data

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest


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
    """Name runs to a dashboard that has kept nothing yet, and let it forget them afterwards."""
    data.paths.cache_clear()
    data.worker.forget()
    monkeypatch.setenv(data.PATHS_VARIABLE, json.dumps([str(run) for run in runs]))
    monkeypatch.setenv("USP_PROF_CACHE", str(cache))
    yield
    data.paths.cache_clear()
    data.worker.forget()


def drawn(page: str, **address: str) -> AppTest:
    """Draw a page at an address; fails on an exception."""
    app = AppTest.from_string(SCRIPT_OF_PAGE.format(page=page), default_timeout=120)
    for key, value in address.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception, app.exception[0].value
    return app


def tried(page: str, **address: str) -> AppTest:
    """Draw a page as the dashboard's script does: what the library refuses is told, anything else is an exception."""
    app = AppTest.from_string(CAREFUL_SCRIPT.format(page=page), default_timeout=120)
    for key, value in address.items():
        app.query_params[key] = value
    return app.run()
