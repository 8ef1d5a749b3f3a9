"""Pixels of the rank wall, on two ranks whose work is counted by hand."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dashboard.timeline.wall import encode_wall, shades, time_in_pixels
from usp_prof.timeline.rows import Row, Slices, category_number
from usp_prof.timeline.store import TimelineStore, load, write

if TYPE_CHECKING:
    from pathlib import Path

COMPUTE, TP, COPY = (category_number(name) for name in ("compute", "tp", "memcpy"))


def written(folder: Path, rank: int, kind: str, spans: list[tuple[int, int, int]]) -> None:
    """Write one row of slices, each (start, duration, category)."""
    start, dur, category = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    row = (Row(rank, kind, kind, 0),)
    name = np.zeros(len(spans), np.int64)
    offsets = np.array([0, len(spans)])
    write(Slices(row, offsets, start, dur, name, name, category.astype(np.uint8), ("x",)), folder / f"rank{rank}")


@pytest.fixture
def store(tmp_path: Path) -> TimelineStore:
    """Rank 0 computes 25 ns of each 100 and then waits on tp; rank 7 computes all the time, with a copy within."""
    below, over = tmp_path / "below", tmp_path / "over"
    below.mkdir()
    (below / "run.json").write_text('{"steps": []}')
    written(below, 0, "device", [(0, 25, COMPUTE), (25, 75, TP), (100, 25, COMPUTE), (300, 100, COPY)])
    written(over, 0, "exposed", [(25, 75, TP), (125, 50, TP)])
    written(below, 7, "device", [(0, 400, COMPUTE)])
    written(over, 7, "exposed", [(0, 0, TP)])
    return load(below, (0, 7), over)


def test_a_pixel_has_the_share_of_each_part_of_its_time(store: TimelineStore) -> None:
    used, filled = time_in_pixels(store, [0, 7], 0, 400, 4)
    slow, busy = (dict(zip(used.tolist(), rank.tolist(), strict=True)) for rank in filled)
    assert slow == {COMPUTE: [0.25, 0.25, 0, 0], TP: [0.75, 0.5, 0, 0], COPY: [0, 0, 0, 1]}
    assert busy[COMPUTE] == [1, 1, 1, 1]


def test_shares_do_not_depend_on_pixel_boundaries(store: TimelineStore) -> None:
    fine, coarse = (time_in_pixels(store, [0, 7], -37, 411, width)[1].mean(axis=2) for width in (448, 7))
    assert fine == pytest.approx(coarse)


def test_a_pixel_has_the_color_of_its_largest_part_and_the_strength_of_all(store: TimelineStore) -> None:
    category, coverage = shades(*time_in_pixels(store, [0, 7], 0, 400, 4))
    assert category.tolist() == [[TP + 1, TP + 1, 0, COPY + 1], [COMPUTE + 1] * 4]
    assert coverage[0].tolist() == [255, int(0.75 * 255), 0, 255]


def test_a_wall_is_a_tile_of_its_ranks(store: TimelineStore) -> None:
    tile = encode_wall(store, 4)
    (length,) = struct.unpack_from("<I", tile)
    head = json.loads(tile[4 : 4 + length])
    assert head["ranks"] == [0, 7]
    assert len(tile) == 4 + length + 2 * head["rows"] * head["width"]
