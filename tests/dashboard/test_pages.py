"""Each page on a small run, without a browser, and the selection that it reads from the address."""

from __future__ import annotations

import json
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from streamlit.testing.v1 import AppTest

import dashboard.pages
from dashboard import data, state
from dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(dashboard.pages.__file__).parents[1] / "script" / "main.py"


@pytest.fixture(autouse=True)
def named_run(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    data.paths.cache_clear()
    data.worker.forget()
    monkeypatch.setenv(data.PATHS_VARIABLE, json.dumps([str(run_folder), str(run_folder)]))
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path))
    yield
    data.paths.cache_clear()
    data.worker.forget()


def test_every_page_is_listed() -> None:
    found = {module.name for module in pkgutil.iter_modules(dashboard.pages.__path__)}
    assert found == {page.__name__.rpartition(".")[2] for page in PAGES}
    assert len({page.PATH for page in PAGES}) == len(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=[page.PATH for page in PAGES])
def test_a_page_is_drawn(page: object) -> None:
    app = AppTest.from_string(f"from {page.__name__} import draw\ndraw()", default_timeout=120)  # type: ignore[attr-defined]
    app.run()
    assert not app.exception, app.exception[0].value
    assert app.main


def test_a_change_is_predicted() -> None:
    app = AppTest.from_string("from dashboard.pages.whatif import draw\ndraw()", default_timeout=120)
    app.query_params["edits"] = "comm_faster=2"
    app.run()
    assert not app.exception, app.exception[0].value
    assert [metric.label for metric in app.metric] == ["step, measured", "step, predicted", "gain"]


def test_a_run_is_not_compared_with_itself() -> None:
    app = AppTest.from_string("from dashboard.pages.compare import draw\ndraw()", default_timeout=120)
    app.query_params["before"] = "1"
    app.query_params["after"] = "1"
    app.run()
    assert [info.value for info in app.info] == ["Choose two different runs."]


def test_what_is_no_sql_is_an_error_with_a_hint() -> None:
    app = AppTest.from_file(str(SCRIPT), default_timeout=120)
    app.query_params["sql"] = "SELEC"
    app.run()
    assert not app.exception


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), ("0,2", (0, 2)), ("1-3", (1, 2, 3)), ("9", None), ("x; DROP", None), ("2-0", None), ("3,1,1", (1, 3))],
)
def test_ranks_are_read_from_the_address(text: str, expected: tuple[int, ...] | None) -> None:
    assert state.parse_ranks(text, (0, 1, 2, 3)) == expected


@pytest.mark.parametrize("ranks", [None, (0,), (0, 1, 2), (0, 2, 3, 7)])
def test_ranks_are_written_as_they_are_read(ranks: tuple[int, ...] | None) -> None:
    assert state.parse_ranks(state.format_ranks(ranks), tuple(range(8))) == ranks
