"""Context of a slice, and the next slice with its name, on a run of two tiny ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny import Trace, table_set

from dashboard.timeline import queries
from dashboard.timeline.details import details
from dashboard.timeline.queries import matching, search
from usp_prof import open_run
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity
from usp_prof.timeline import overlays
from usp_prof.timeline.store import RankTimeline, TimelineStore, load, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


@pytest.fixture(scope="module")
def prepared(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TableSet, TimelineStore]:
    tables = open_run(run_folder, cache_dir=tmp_path_factory.mktemp("cache")).tables
    folder = tmp_path_factory.mktemp("timeline")
    seen: list[tuple[int, int]] = []
    prepare(tables, folder, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(tables.ranks), len(tables.ranks))
    over = tmp_path_factory.mktemp("over")
    overlays.prepare(tables, over)
    return tables, load(folder, tables.ranks, over)


def test_every_activity_is_on_the_timeline_once(prepared: tuple[TableSet, TimelineStore]) -> None:
    tables, store = prepared
    for rank in tables.ranks:
        line = store.ranks[rank]
        device = [i for i, row in enumerate(line.rows) if row.kind == "device"]
        level = line.levels[0]
        shown = np.concatenate([level.rest["event"][level.offsets[i] : level.offsets[i + 1]] for i in device])
        assert sorted(shown.tolist()) == sorted(tables.columns("activities", rank)["event"].tolist())


def test_the_next_slice_of_each_leads_through_its_whole_row(prepared: tuple[TableSet, TimelineStore]) -> None:
    tables, store = prepared
    level = store.ranks[0].levels[0]
    row = int(np.argmax(np.diff(level.offsets)))
    wanted = level.rest["event"][level.offsets[row] : level.offsets[row + 1]].tolist()
    shown = details(tables, store, 0, wanted[0])
    seen = [wanted[0]]
    while shown is not None and "next" in shown and len(seen) < 50:
        before, shown = seen[-1], details(tables, store, 0, shown["next"]["event"])
        assert shown is not None
        assert shown["previous"]["event"] == before
        seen.append(shown["place"]["event"] if shown["place"]["row"] == row else -1)
    assert seen == wanted[:50]
    assert "previous" not in (details(tables, store, 0, wanted[0]) or {})
    assert "next" not in (details(tables, store, 0, wanted[-1]) or {})


def test_members_of_a_call_are_found_on_every_rank(prepared: tuple[TableSet, TimelineStore]) -> None:
    tables, store = prepared
    rank = tables.ranks[0]
    events = tables.columns("collectives", rank)["event"]
    called = [call for event in events if event >= 0 and (call := queries.call_of(tables, rank, int(event)))]
    assert called
    call = max(called, key=lambda call: len(call.parts))
    assert len({member for member, _ in call.parts}) == len(call.parts) > 1
    places = [queries.place(store, *part) for part in call.parts]
    assert all(place is not None and 0 <= place.start_ns <= store.span_ns for place in places)


def test_an_event_without_a_call_has_none(prepared: tuple[TableSet, TimelineStore]) -> None:
    tables, store = prepared
    assert queries.call_of(tables, tables.ranks[0], 10**9) is None
    assert queries.launch_of(tables, tables.ranks[0], 10**9) is None
    assert queries.place(store, tables.ranks[0], 10**9) is None
    assert queries.place(store, 10**6, 0) is None


def test_a_search_and_a_query_find_the_same_slices(prepared: tuple[TableSet, TimelineStore]) -> None:
    tables, store = prepared
    wanted = matching(store, "^ATEN::")
    assert wanted
    matches = search(store, wanted, tables.ranks)
    assert np.all(np.diff(matches.start_ns) >= 0)
    for rank in tables.ranks:
        level = store.ranks[rank].levels[0]
        names = np.array(store.ranks[rank].names, object)[level.rest["name"]]
        assert (matches.rank == rank).sum() == sum(name.startswith("aten::") for name in names)
    assert len(search(store, wanted, tables.ranks, ("device",))) < len(matches)
    rank, row, start, dur, event = matches.first(1)[0]
    assert queries.place(store, rank, event) == queries.Place(rank, row, start, dur, event)
    assert [longest[3] for longest in matches.longest(3)] == sorted(matches.dur_ns.tolist(), reverse=True)[:3]


def test_the_details_compare_a_slice_with_others_of_the_same_name(prepared: tuple[TableSet, TimelineStore]) -> None:
    tables, store = prepared
    first = tables.ranks[0]
    matches = search(store, matching(store, "^aten::mm$") or (), [first])
    _, _, _, dur_ns, event = matches.longest(1)[0]
    answer = details(tables, store, first, event)
    assert answer is not None
    median = quantity(np.median(matches.dur_ns), Unit.NS)
    duration = f"{quantity(dur_ns, Unit.NS)} (number 1 of {len(matches)} by length, median {median})"
    assert dict(answer["facts"])["duration"] == duration


def test_the_details_of_a_send_name_both_sides_and_its_stream_once(run_folder: Path, tmp_path: Path) -> None:
    """The group's name replaced its ranks and the number of the call, and the stream was called a thread."""
    tables = open_run(run_folder.with_name("gpu-nccl-pp2"), cache_dir=tmp_path / "cache").tables
    prepare(tables, tmp_path / "timeline")
    store = load(tmp_path / "timeline", tables.ranks, None)
    matches = search(store, matching(store, "SendRecv") or (), [1], ("device",))
    answer = details(tables, store, 1, matches.longest(1)[0][-1])
    assert answer is not None
    facts = dict(answer["facts"])
    assert facts["call"] == "send and receive on pp, 256 KiB"
    assert facts["group"].startswith("mesh_pp, ranks 0-1, call ")
    assert facts["stream"] == "20"
    assert "thread" not in facts


def test_without_ranks_nothing_matches(prepared: tuple[TableSet, TimelineStore]) -> None:
    assert len(search(prepared[1], {0}, ())) == 0


def test_an_invalid_pattern_matches_nothing(prepared: tuple[TableSet, TimelineStore]) -> None:
    assert matching(prepared[1], "((") is None


def test_slow_patterns_do_not_block_the_server() -> None:
    line = RankTimeline((), (), ("a" * 5000 + "!",))
    store = TimelineStore({0: line}, origin_ns=0, end_ns=1)
    assert matching(store, "(a+)+$") == frozenset()
    assert matching(store, "(a+)+!$") == {0}


def test_a_kernel_has_the_op_that_launched_it_and_its_shapes() -> None:
    trace = Trace(0).step(1, 0, 1000).op("aten::mm", 10, 50, args={"Input Dims": [[2, 3], [3, 4]]}).launch(7, 20, 5)
    tables = table_set({0: trace.kernel("gemm", 100, 10, correlation=7).kernel("lost", 200, 10, correlation=8)})
    events = dict(zip(tables.columns("kernels", 0)["name"], tables.columns("kernels", 0)["event"], strict=True))
    op = queries.op_of(tables, 0, int(events["gemm"]))
    assert op is not None
    assert op[0] == "aten::mm"
    assert json.loads(op[1]) == [[2, 3], [3, 4]]
    assert queries.op_of(tables, 0, int(events["lost"])) is None
    assert queries.op_of(tables, 0, 10**9) is None
