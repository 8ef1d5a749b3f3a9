"""Timeline rows, pyramid and tiles, compared with a loop over all slices."""

from __future__ import annotations

import json
import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.timeline.tiles import encode
from usp_prof.timeline import rows, tiles
from usp_prof.timeline.rows import Row, Slices
from usp_prof.timeline.store import RankTimeline, TimelineStore

ORIGIN = 1_790_857_026_000_000_000


def slices_of(lanes: list[list[tuple[int, int]]]) -> Slices:
    """Slices of several rows, given as (start, duration)."""
    flat = [pair for lane in lanes for pair in lane]
    offsets = np.cumsum([0, *(len(lane) for lane in lanes)])
    start, dur = (np.array([pair[i] for pair in flat], np.int64) for i in (0, 1))
    count = len(flat)
    return Slices(
        tuple(Row(0, f"lane {i}", "device", 0) for i in range(len(lanes))),
        offsets.astype(np.int64),
        start + ORIGIN,
        dur,
        np.arange(count),
        np.arange(count) % 7,
        (np.arange(count) % 5).astype(np.uint8),
        tuple("abcdefg"),
    )


def store_of(slices: Slices) -> TimelineStore:
    levels = tuple(tiles.build(slices, ORIGIN))
    end = int((slices.start_ns + slices.dur_ns).max(initial=ORIGIN + 1))
    return TimelineStore({0: RankTimeline(slices.rows, levels, slices.names)}, origin_ns=ORIGIN, end_ns=end)


def crowd(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Many short slices one after the other, with gaps."""
    rng = np.random.default_rng(seed)
    dur = rng.integers(1, 3000, count)
    start = np.cumsum(dur + rng.integers(0, 2000, count)) - dur
    return list(zip(start.tolist(), dur.tolist(), strict=True))


gaps = st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 9000)), max_size=60)


@given(gaps, st.integers(0, 200_000), st.integers(1, 100_000))
def test_the_finest_view_contains_exactly_the_slices_in_the_range(
    pairs: list[tuple[int, int]], start: int, span: int
) -> None:
    lane, at = [], 0
    for gap, dur in pairs:
        lane.append((at + gap, dur))
        at += gap + dur
    store = store_of(slices_of([lane]))
    view = store.view([(0, 0)], start, start + span, pixel_ns=0.1)
    expected = [i for i, (s, d) in enumerate(lane) if s < start + span and s + d > start]
    assert view.rest["event"].tolist() == expected
    assert view.counts.tolist() == [len(expected)]


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_every_level_preserves_busy_time_count_and_order(seed: int) -> None:
    lanes = [crowd(4000, seed), crowd(3000, seed + 1)]
    slices = slices_of(lanes)
    levels = tiles.build(slices, ORIGIN)
    assert len(levels) > 2
    busy = slices.dur_ns.sum()
    for level in levels:
        assert int(level.rest["count"].sum()) == len(slices.dur_ns)
        shown = (level.rest["dur"].astype(float) * level.rest["coverage"] / 255).sum()
        assert busy <= shown * 1.001
        assert shown <= busy * 1.2 + 255 * len(level.start)
        for row in range(2):
            low, high = level.offsets[row], level.offsets[row + 1]
            start, dur = level.start[low:high], level.rest["dur"][low:high]
            assert np.all(start[1:] >= start[:-1] + dur[:-1] - 1)


def test_an_entry_is_named_after_its_longest_slice() -> None:
    lane = [(i * 10, 5) for i in range(2000)] + [(20_100, 900)]
    levels = tiles.build(slices_of([lane]), ORIGIN)
    coarse = levels[-1]
    last = coarse.rest[-1]
    assert last["event"] == 2000


def test_a_slice_that_starts_before_the_range_is_in_it() -> None:
    store = store_of(slices_of([[(0, 1_000_000)]]))
    assert store.view([(0, 0)], 500_000, 600_000, 100.0).counts.tolist() == [1]


def decode(block: bytes) -> tuple[dict[str, object], bytes]:
    (length,) = struct.unpack_from("<I", block)
    return json.loads(block[4 : 4 + length]), block[4 + length :]


def test_a_tile_has_the_position_of_each_slice() -> None:
    store = store_of(slices_of([[(100, 50), (200, 100)], [(0, 1000)]]))
    head, body = decode(encode(store.view([(0, 0), (0, 1)], 0, 1000, 1.0), 0, 1000, 500))
    assert head["counts"] == [2, 1]
    start, dur = np.frombuffer(body, "<f4", 3), np.frombuffer(body, "<f4", 3, 12)
    assert start.tolist() == [50, 100, 0]
    assert dur.tolist() == [25, 50, 500]
    assert len(body) == 3 * (4 + 4 + 4 + 4 + 1 + 1)


def test_a_tile_far_wider_than_the_run_is_written() -> None:
    """Of two runs that move together the shorter is asked for the range of the longer."""
    store = store_of(slices_of([[(100, 50), (200, 100)], [(0, 1000)]]))
    for start, end in ((-(10**15), 10**15), (10**14, 10**15), (-(10**15), -(10**14))):
        head, _ = decode(encode(store.view([(0, 0), (0, 1)], start, end, (end - start) / 1400), start, end, 1400))
        assert (head["start_ns"], head["end_ns"]) == (start, end)
        assert len(head["counts"]) == 2


def test_a_crowded_tile_is_painted_by_the_server() -> None:
    lanes = [crowd(60_000, seed) for seed in range(20)]
    store = store_of(slices_of(lanes))
    places = [(0, i) for i in range(20)]
    head, body = decode(encode(store.view(places, 0, store.span_ns, store.span_ns / 4000), 0, store.span_ns, 4000))
    assert head["rows"] == 20
    category = np.frombuffer(body, np.uint8, 80_000).reshape(20, 4000)
    coverage = np.frombuffer(body, np.uint8, 80_000, 80_000).reshape(20, 4000)
    assert len(body) == 160_000
    assert (category[:, :3000] > 0).mean() > 0.95
    assert np.all((coverage > 0) == (category > 0))


def test_crossing_slices_get_separate_rows() -> None:
    depth = rows.depths(np.array([0, 5, 12]), np.array([10, 10, 8]))
    assert depth.tolist() == [0, 1, 0]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=40))
def test_no_two_slices_of_a_row_overlap(pairs: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in pairs], np.int64)
    dur = np.array([d for _, d in pairs], np.int64)
    depth = rows.depths(start, dur)
    for row in set(depth.tolist()):
        spans = sorted((s, s + max(d, 1)) for s, d, r in zip(start, dur, depth, strict=True) if r == row)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


@pytest.mark.parametrize("names", [["stream 20", "stream 7", "stream 7/1"]])
def test_streams_are_sorted_as_people_count(names: list[str]) -> None:
    assert sorted(names, key=rows._natural) == ["stream 7", "stream 7/1", "stream 20"]
