"""Reading of a run: progress, logging, and interruption."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tiny

from usp_prof import open_run
from usp_prof import run as opened
from usp_prof.store import running
from usp_prof.store.cache import Cache
from usp_prof.store.rank_jobs import RankJob
from usp_prof.store.running import run_jobs

if TYPE_CHECKING:
    from pathlib import Path


def folder(path: Path, ranks: int = 3) -> Path:
    traces = {rank: tiny.Trace(rank, ranks).step(1, 0, 1000).kernel("gemm", 0, 500) for rank in range(ranks)}
    return tiny.write(traces, path)


def test_logging_states_what_is_read_and_what_was_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, cache = folder(tmp_path / "run"), tmp_path / "cache"
    open_run(run, cache_dir=cache)
    stored = next(Cache(cache).folder.glob("*/events.parquet"))
    stored.write_bytes(stored.read_bytes()[:-9])
    with caplog.at_level(logging.INFO, "usp_prof"):
        open_run(run, cache_dir=cache)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "reading 3 ranks of run"
    assert messages[1].startswith("cache_damaged: rank ")
    assert messages[2].startswith("read 3 of 3 ranks of run in ")


def test_nothing_is_printed_unless_logging_is_enabled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_run(folder(tmp_path / "run"), cache_dir=tmp_path / "cache")
    assert capfd.readouterr() == ("", "")


def test_progress_can_stop_reading_and_finished_ranks_are_cached(tmp_path: Path) -> None:
    run = folder(tmp_path / "run")

    def stop(done: int, total: int, name: str) -> None:
        assert name
        if done >= total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_run(run, cache_dir=tmp_path / "cache", progress=stop)
    entries = {entry.name for entry in Cache(tmp_path / "cache").folder.iterdir() if entry.is_dir()}
    assert entries
    heard: list[int] = []
    assert open_run(run, cache_dir=tmp_path / "cache", progress=lambda done, *_: heard.append(done)).ranks == (0, 1, 2)
    assert heard[0] > 0  # the first message says that a rank was in the cache


def test_closing_a_query_stops_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder(tmp_path / "run", 4)
    jobs = [RankJob(run / f"rank{rank}.json.gz", rank, str(rank)) for rank in range(4)]
    go, real, read = Event(), running.run_job, []

    def slow(job: RankJob, *rest: Any) -> Any:
        if read:
            go.wait(10)
        read.append(job.rank)
        return real(job, *rest)

    monkeypatch.setattr(running, "run_job", slow)
    with ThreadPoolExecutor(1) as threads:
        results = run_jobs(jobs, None, Cache(tmp_path / "cache"), threads)
        next(results)
        results.close()
        go.set()
    assert len(read) <= 2  # the first one, and the one that had started


class Shown:
    """Record of what was displayed in a notebook."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def display(self, page: Any, *, display_id: bool) -> Shown:
        assert display_id
        self.pages.append(page.data)
        return self

    def update(self, page: Any) -> None:
        self.pages.append(page.data)


def test_a_notebook_shows_a_progress_bar_if_reading_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython  # noqa: PLC0415 - only here
    import IPython.display  # noqa: PLC0415

    shown, clock = Shown(), iter([0.0, 0.5, 1.5, 1.55, 3.0])
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=True))
    monkeypatch.setattr(IPython.display, "display", shown.display)
    monkeypatch.setattr(opened.time, "monotonic", lambda: next(clock))
    show = opened.notebook_progress()
    assert show is not None
    for done in (1, 2, 3, 10):
        show(done * 10**6, 10**7, "<rank>")
    assert len(shown.pages) == 2
    assert "reading &lt;rank&gt;, 2 of 10 MB" in shown.pages[0]
    assert "read 10 MB in 3.0 s" in shown.pages[1]


def test_outside_a_notebook_there_is_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert opened.notebook_progress() is None
