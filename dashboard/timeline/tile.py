"""How does a view travel to the browser? As one small binary block that needs no parsing.

Layout, little-endian: ``uint32`` length of a JSON head, the head padded to 4 bytes, then columns one after the other.
A tile of slices holds ``start`` and ``dur`` as float32 in pixels from the left edge, ``event`` int32, ``name`` uint32,
``category`` and ``coverage`` uint8, and in its head the number of slices of each row. Where there are more slices than
anybody can see, the tile is a raster: ``category`` + 1 and ``coverage`` uint8 for each row and pixel, 0 for nothing.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from dashboard.timeline.store import View

LARGEST_PX = 1e7
MOST_SLICES = 30_000
"""More slices than this are painted here, not in the browser."""


def encode(view: View, start_ns: int, end_ns: int, width_px: int) -> bytes:
    """Write a view as a tile of this width."""
    scale = width_px / max(end_ns - start_ns, 1)
    left = (view.start - start_ns) * scale
    head: dict[str, object] = {"start_ns": start_ns, "end_ns": end_ns, "width": width_px, "bucket_ns": view.bucket_ns}
    if len(left) > MOST_SLICES:
        return _pack(head | {"rows": len(view.counts)}, _raster(view, left, scale, width_px))
    width = np.minimum(view.rest["dur"] * scale, LARGEST_PX)
    columns = (
        left.astype("<f4"), width.astype("<f4"), view.rest["event"].astype("<i4"), view.names.astype("<u4"),
        np.ascontiguousarray(view.rest["category"]), np.ascontiguousarray(view.rest["coverage"]),
    )  # fmt: skip
    return _pack(head | {"counts": view.counts.tolist()}, columns)


def _raster(view: View, left: NDArray[Any], scale: float, width_px: int) -> tuple[NDArray[Any], NDArray[Any]]:
    row = np.repeat(np.arange(len(view.counts)), view.counts)
    length = view.rest["dur"] * scale
    first = np.clip(left, 0, width_px - 1).astype(np.int64)
    last = np.clip(left + length, 0, width_px - 1).astype(np.int64)
    category = np.zeros((len(view.counts), width_px), np.uint8)
    coverage = np.zeros_like(category)
    shade = np.minimum(view.rest["coverage"] * np.minimum(length, 1.0) + 24, 255).astype(np.uint8)
    value = view.rest["category"] + np.uint8(1)
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


def _pack(head: dict[str, object], columns: Iterable[NDArray[Any]]) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    return b"".join([struct.pack("<I", len(text)), text, *(column.tobytes() for column in columns)])
