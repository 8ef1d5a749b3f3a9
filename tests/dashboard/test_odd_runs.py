"""Pages of incomplete runs: one rank, no steps, a damaged rank, a deleted folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drawn import naming, tried

from dashboard import data, report, served_runs
from dashboard.pages import PAGES
from usp_prof.model.selection import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORDED = Path(__file__).parents[2] / "traces" / "recorded-slow-rank"


def one_rank(folder: Path) -> None:
    shutil.copy(RECORDED / "rank0.json.gz", folder)


def a_damaged_rank(folder: Path) -> None:
    for rank in (0, 1):
        shutil.copy(RECORDED / f"rank{rank}.json.gz", folder)
    content = (RECORDED / "rank2.json.gz").read_bytes()
    (folder / "rank2.json.gz").write_bytes(content[: len(content) // 3])
    (folder / "rank3.json.gz").write_bytes(b"no trace at all")


def no_steps(folder: Path) -> None:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": f"k{at}", "pid": 0, "tid": 7, "ts": at, "dur": 3 + at % 5,
         "args": {"stream": 7, "device": 0, "correlation": at}}
        for at in range(1, 60, 9)
    ]  # fmt: skip
    (folder / "rank0.json").write_text(json.dumps({"traceEvents": kernels}))


def one_event(folder: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "", "pid": 1, "tid": 1, "ts": 0, "dur": 0}
    (folder / "rank0.json").write_text(json.dumps({"traceEvents": [event]}))


KINDS = (one_rank, a_damaged_rank, no_steps, one_event)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "run"
    place.mkdir()
    with naming([place], tmp_path / "cache", monkeypatch):
        yield place


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_every_page_is_drawn_or_says_why_not(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder)
    for page in PAGES:
        app = tried(page.path)
        assert not app.exception, (page.path, app.exception[0].value)
        assert len(app.main) > 0, page.path


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_the_report_is_written(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder)
    assert report.ask(0, EVERYTHING).result().endswith("</html>\n")


def test_a_run_with_a_deleted_folder_stays_open(folder: Path) -> None:
    one_rank(folder)
    assert not tried("overview").exception
    shutil.rmtree(folder)
    for page in PAGES:
        app = tried(page.path)
        assert not app.exception, (page.path, app.exception[0].value)
    assert data.open_numbered(0).ranks == (0,)


def test_a_folder_without_traces_says_what_to_do(folder: Path) -> None:
    app = tried("overview")
    assert not app.exception
    assert app.error


def test_pages_are_drawn_after_the_cache_was_cleared(folder: Path, tmp_path: Path) -> None:
    one_rank(folder)
    assert not tried("overview").exception
    shutil.rmtree(tmp_path / "cache")
    for page in PAGES:
        app = tried(page.path)
        assert not app.exception, (page.path, app.exception[0].value)


def test_each_run_of_a_folder_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = tmp_path / "both"
    for name in ("first", "second"):
        shutil.copytree(RECORDED, both / name)
    with naming([both], tmp_path / "cache", monkeypatch):
        assert {run.name for run in served_runs.runs()} == {"both: first", "both: second"}
        assert [data.open_numbered(index).name for index in (0, 1)] == [run.run for run in served_runs.runs()]


def test_a_run_of_one_rank_is_described_without_axes(folder: Path) -> None:
    """It said "1 ranks read" and "axes unknown"."""
    no_steps(folder)
    captions = [caption.value for caption in tried("overview").caption]
    assert any(caption.startswith("run · 1 rank read · ") for caption in captions)
    assert not any("axes unknown" in caption for caption in captions)
