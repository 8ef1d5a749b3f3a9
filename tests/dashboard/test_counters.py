"""Counters as timeline rows: their values on hand-made spans and on a synthetic GPU run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dashboard.timeline.tiles import encode
from usp_prof import open_run
from usp_prof.tables.calls import match_calls as calls_of
from usp_prof.timeline import counters, overlays
from usp_prof.timeline.counters import counters_of
from usp_prof.timeline.rows import Track, category_number
from usp_prof.timeline.store import load, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


@pytest.fixture(scope="module")
def tables(synthetic_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TableSet:
    return open_run(synthetic_folder, cache_dir=tmp_path_factory.mktemp("cache")).tables


@pytest.fixture(scope="module")
def of_rank_0(tables: TableSet) -> dict[str, Track]:
    return {counter.name: counter for counter in counters_of(tables, 0)}


def made(time: list[int], value: list[float], highest: float) -> list[tuple[int, int, int]]:
    counter = counters._counter("c", "what is counted", "1 B", np.array(time), np.array(value, float), highest)
    assert counter.level is not None
    return list(zip(counter.start_ns.tolist(), counter.dur_ns.tolist(), counter.level.tolist(), strict=True))


def test_a_counter_consists_of_spans_between_its_changes_and_is_blank_at_zero() -> None:
    assert made([0, 10, 30, 40], [4, 2, 0, 8], 4) == [(0, 10, 255), (10, 20, 128)]


def test_indistinguishable_heights_are_one_span() -> None:
    assert made([0, 10, 20], [4, 4, 0], 4) == [(0, 20, 255)]


def test_a_height_above_the_top_is_drawn_at_the_top() -> None:
    assert made([0, 10, 20], [9, 4, 0], 8) == [(0, 10, 255), (10, 10, 128)]


def test_overlapping_spans_add_up() -> None:
    starts, ends = np.array([0, 5]), np.array([10, 15])
    time, total = counters._running_sum(starts, ends, np.array([2.0, 3.0]))
    assert (time.tolist(), total.tolist()) == ([0, 5, 10, 15], [2.0, 5.0, 3.0, 0.0])


def test_many_changes_become_means_that_keep_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MOST_SPANS", 10)
    time = np.arange(0, 1001)
    time, mean = counters._means(time, (time % 2).astype(float))
    assert len(time) == 11
    assert mean[:-1] == pytest.approx([0.5] * 10)


def test_the_queue_counts_launches_that_have_not_ended(tables: TableSet, of_rank_0: dict[str, Track]) -> None:
    kernels, launches = tables.columns("kernels", 0), tables.columns("launches", 0)
    launch_of = dict(zip(launches["event"].tolist(), launches["start_ns"].tolist(), strict=True))
    starts = [launch_of[event] for event in kernels["launch_event"].tolist()]
    queue = of_rank_0["queue"]
    assert queue.level is not None
    at = int(queue.start_ns[queue.level.argmax()] + 1)
    ends = kernels["start_ns"] + kernels["dur_ns"]
    held = sum(1 for start, end in zip(starts, ends.tolist(), strict=True) if start < at <= end)
    assert queue.lane == f"{held} kernels"


def test_bandwidth_is_drawn_where_calls_transfer(tables: TableSet, of_rank_0: dict[str, Track]) -> None:
    calls = calls_of(tables).columns()
    is_of_rank = np.isin(calls["call"], calls_of(tables).parts.of_rank(0, "call")["call"]) & (calls["transfer_ns"] > 0)
    bandwidth = of_rank_0["bandwidth"]
    assert bandwidth.start_ns.min() == calls["last_ns"][is_of_rank].min()
    assert bandwidth.dur_ns.sum() <= calls["transfer_ns"][is_of_rank].sum()


def test_counters_have_rows_with_heights_in_the_browser(tables: TableSet, tmp_path: Path) -> None:
    prepare(tables, tmp_path / "slices")
    overlays.prepare(tables, tmp_path / "over")
    store = load(tmp_path / "slices", tables.ranks, tmp_path / "over")
    place, row = next((place, row) for place, row in enumerate(store.rows(0)) if row.kind == "counters")
    view = store.view([(0, place)], 0, store.span_ns, 0.0)
    assert row.lane.split(" ")[0].replace(",", "").replace(".", "").isdigit()
    assert set(view.rest["category"].tolist()) == {category_number("counter")}
    assert len(set(view.rest["coverage"].tolist())) > 1
    assert view.rest["coverage"].tobytes() in encode(view, 0, store.span_ns, 1000)
