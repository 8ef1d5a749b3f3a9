"""Contents of a timeline area: equal from block sums and slice by slice, and as returned by its route."""

from __future__ import annotations

import csv
import json
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.timeline import area
from usp_prof.timeline import store, tiles
from usp_prof.timeline.rows import CATEGORIES, Row, Slices
from usp_prof.timeline.store import RankTimeline, TimelineStore

if TYPE_CHECKING:
    from pathlib import Path

    from dashboard_visit import Visit

ORIGIN = 1_790_857_026_000_000_000


def made(counts: list[int], seed: int, rank: int = 0) -> Slices:
    """Rows with these numbers of slices, one after the other with gaps, of seven names and five categories."""
    rng = np.random.default_rng(seed)
    dur = [rng.integers(1, 3000, count) for count in counts]
    start = [np.cumsum(row + rng.integers(0, 2000, len(row))) - row for row in dur]
    total = sum(counts)
    return Slices(
        tuple(Row(rank, f"lane {row}", "device", 0) for row in range(len(counts))),
        np.cumsum([0, *counts]).astype(np.int64),
        np.concatenate(start) + ORIGIN,
        np.concatenate(dur),
        np.arange(total),
        rng.integers(0, 7, total),
        rng.integers(0, 5, total).astype(np.uint8),
        tuple("abcdefg"),
    )


def counted(slices: Slices, rows: list[int], start_ns: int, end_ns: int) -> dict[tuple[str, str], list[int]]:
    """Count slice by slice: calls, time in the range and the longest, by name and category."""
    sums: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        for at in range(int(slices.offsets[row]), int(slices.offsets[row + 1])):
            begin, end = int(slices.start_ns[at]) - ORIGIN, int(slices.start_ns[at] + slices.dur_ns[at]) - ORIGIN
            if begin < end_ns and end > start_ns:
                key = slices.names[slices.name[at]], CATEGORIES[slices.category[at]]
                total = sums.setdefault(key, [0, 0, 0])
                total[0] += 1
                total[1] += min(end, end_ns) - max(begin, start_ns)
                total[2] = max(total[2], end - begin)
    return sums


BLOCKS = made([3 * tiles.BLOCK + 5, 17, 2 * tiles.BLOCK, tiles.BLOCK - 1], 1)


@pytest.fixture(scope="module")
def blocks() -> TimelineStore:
    levels = tuple(tiles.build(BLOCKS, ORIGIN))
    sums = tiles.block_sums(levels[0])
    assert set(sums["block"].tolist()) == {0, 1, 2, 3, 4}
    line = RankTimeline(BLOCKS.rows, levels, BLOCKS.names, sums=sums)
    end = int((BLOCKS.start_ns + BLOCKS.dur_ns).max())
    return TimelineStore({0: line}, origin_ns=ORIGIN, end_ns=end)


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0, 1), st.floats(0, 1), st.sets(st.integers(0, 3), min_size=1),
    st.sampled_from([0, tiles.BLOCK - 1, tiles.BLOCK, tiles.BLOCK + 1]),
)  # fmt: skip
def test_an_area_lists_the_same_slices_as_a_loop(
    blocks: TimelineStore, left: float, right: float, rows: set[int], edge: int
) -> None:
    start, end = sorted(int(share * blocks.span_ns) for share in (left, right))
    if edge:  # one that begins in the middle of a slice at the edge of a block
        start = int(BLOCKS.start_ns[edge] + BLOCKS.dur_ns[edge] // 2) - ORIGIN
    end = max(end, start + 1)
    chosen = sorted(rows)
    sums = {(row[0], row[1]): [row[2], row[4], row[5]] for row in area.contents(blocks, {0: chosen}, start, end).rows}
    assert sums == counted(BLOCKS, chosen, start, end)


def test_sums_use_memory_in_proportion_to_distinct_names_per_block() -> None:
    block_count = 64
    slices = made([block_count * tiles.BLOCK], 4)
    level = tiles.build(slices, ORIGIN)[0]
    level.rest["name"] = np.arange(len(level.rest))  # each name is in one block
    tracemalloc.start()
    sums = tiles.block_sums(level)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sums["block"].tolist() == np.repeat(np.arange(block_count), tiles.BLOCK).tolist()
    assert sums["name"].tolist() == list(range(len(level.rest)))
    assert sums["longest"].tolist() == level.rest["dur"].tolist()
    assert peak_bytes < 200 * len(level.rest)


def test_only_long_rows_have_precomputed_sums(tmp_path: Path) -> None:
    store.write(made([2 * tiles.BLOCK, 3], 2), tmp_path / "rank0")
    store.write(made([tiles.BLOCK - 1, 3], 3, rank=1), tmp_path / "rank1")
    (tmp_path / "run.json").write_text(json.dumps({"steps": []}))
    assert [(tmp_path / f"rank{rank}" / "sums.npy").exists() for rank in (0, 1)] == [True, False]
    opened = store.load(tmp_path, (0, 1))
    contents = area.contents(opened, {0: [0, 1], 1: [0, 1]}, 0, opened.span_ns)
    assert sum(int(str(row[2])) for row in contents.rows) == 3 * tiles.BLOCK + 5
    assert {row[3] for row in contents.rows} == {2}
    assert sum(int(str(row[2])) for row in area.by_kind(contents).rows) == sum(
        int(str(row[4])) for row in contents.rows
    )


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_the_server_returns_an_area_as_a_list_and_as_a_file(visit: Visit) -> None:
    ask = visit.page.context.request
    address = "run=recorded-1f1b&t0=0&t1=999999999999&ranks=0-1-2-3&kinds=device-counters"
    reply = ask.get(f"{visit.address}/usp/area?{address}").json()
    assert sum(calls for _, calls, _ in reply["kinds"]) == sum(row[2] for row in reply["names"])
    assert max(row[3] for row in reply["names"]) == 4
    rows = list(csv.reader(ask.get(f"{visit.address}/usp/area?{address}&as=csv").text().splitlines()))
    assert rows[0] == ["name", "kind", "calls [count]", "ranks [count]", "time in range [ns]", "longest [ns]"]
    assert sum(int(row[4]) for row in rows[1:]) == sum(time for _, _, time in reply["kinds"])
    some = ask.get(f"{visit.address}/usp/area?run=recorded-1f1b&t0=0&t1=999999999999&rows=0.0-1.0").json()
    assert some["rows"] == 2
    for wrong in ("rows=0.99999", "rows=x", "ranks=77&kinds=device", ""):
        assert ask.get(f"{visit.address}/usp/area?run=recorded-1f1b&t0=0&t1=9&{wrong}").status == 400
