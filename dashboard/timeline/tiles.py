"""Tiles: a view of the timeline as one small binary block that the browser needs not parse."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.timeline.rows import category_number
from usp_prof.timeline.store import View

# Layout, little-endian:
#   uint32    length of the JSON head
#   head      JSON, padded to 4 bytes; `counts` has the number of slices of each row
#   columns   one after the other: `start` and `dur` float32 in pixels from the left edge, `event` int32, `name` uint32,
#             `category` and `coverage` uint8
# If there are more slices than can be distinguished, the tile is a raster and its head has `rows` instead of `counts`:
# `category` + 1 and `coverage` as uint8 for each row and pixel, 0 if there is nothing.


LARGEST_PX = 1e7
COUNTER = category_number("counter")
MOST_SLICES = 30_000
"""Number of slices above which the server paints the tile instead of the browser."""


def encode(view: View, start_ns: int, end_ns: int, width_px: int) -> bytes:
    """Encode a view as a tile of this width."""
    scale = width_px / max(end_ns - start_ns, 1)
    left = (view.start - start_ns) * scale
    head: dict[str, object] = {"start_ns": start_ns, "end_ns": end_ns, "width": width_px, "bucket_ns": view.bucket_ns}
    if len(left) > MOST_SLICES:
        return pack(head | {"rows": len(view.counts)}, _raster(view, left, scale, width_px))
    width = np.minimum(view.rest["dur"] * scale, LARGEST_PX)
    columns = (
        left.astype("<f4"), width.astype("<f4"), view.rest["event"].astype("<i4"), view.names.astype("<u4"),
        np.ascontiguousarray(view.rest["category"]), np.ascontiguousarray(view.rest["coverage"]),
    )  # fmt: skip
    return pack(head | {"counts": view.counts.tolist()}, columns)


def _raster(view: View, left: NDArray[Any], scale: float, width_px: int) -> tuple[NDArray[Any], NDArray[Any]]:
    row = np.repeat(np.arange(len(view.counts)), view.counts)
    length = view.rest["dur"] * scale
    first = np.clip(left, 0, width_px - 1).astype(np.int64)
    last = np.clip(left + length, 0, width_px - 1).astype(np.int64)
    category = np.zeros((len(view.counts), width_px), np.uint8)
    coverage = np.zeros_like(category)
    shade = np.minimum(view.rest["coverage"] * np.minimum(length, 1.0) + 24, 255).astype(np.uint8)
    value = view.rest["category"] + np.uint8(1)
    is_counter = view.rest["category"] == COUNTER  # a height, which does not depend on the width of a span
    shade[is_counter] = view.rest["coverage"][is_counter]
    narrow = first == last
    category[row[narrow], first[narrow]] = value[narrow]
    np.maximum.at(coverage, (row[narrow], first[narrow]), shade[narrow])
    wide = np.flatnonzero(~narrow)
    cells = last[wide] - first[wide] + 1
    source = np.repeat(wide, cells)
    place = np.arange(len(source)) - np.repeat(np.cumsum(cells) - cells, cells) + first[source]
    category[row[source], place] = value[source]
    coverage[row[source], place] = view.rest["coverage"][source]
    return category, coverage


def pack(head: dict[str, object], columns: Iterable[NDArray[Any]]) -> bytes:
    """Combine a head and its columns into one block, in the layout above."""
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    return b"".join([struct.pack("<I", len(text)), text, *(column.tobytes() for column in columns)])
