"""A step as it was recorded and as it is predicted, one row per rank, for "Play the fix".

  1. a rank's device slices whose middle is in the step, as recorded
  2. the same slices at their replayed time, matched by event; removed work is left out
  3. neighbors of one kind that stay closer than half a pixel are merged, so the number of slices is bounded

Both start with their first slice, so the gain is visible at the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from usp_prof.replay.graph import events_of
from usp_prof.timeline.rows import CATEGORIES, category_number
from usp_prof.timeline.store import TimelineStore
from usp_prof.timeline.tiles import longest_of_groups
from usp_prof.whatif.predict import Prediction

from .tiles import pack

if TYPE_CHECKING:
    Ints = NDArray[np.int64]

WIDTH_PX = 4096
"""Slices are written in pixels of this width of the whole range; the canvas stretches them."""
CLOSER_PX = 1.5
"""At 1,400 pixels of a screen, half of one."""
COMPUTE = category_number("compute")


@dataclass(frozen=True, slots=True)
class Morph:
    """The slices of one rank by painting order: communication first, compute over it. Times are from the run's origin.

    `begin` and `end` have two rows: as recorded, as predicted.
    """

    category: NDArray[np.uint8]
    name: Ints
    begin: Ints
    end: Ints
    coverage: NDArray[np.uint8]
    """How much of a slice is busy, of 255; less where it is made of several."""


def morph_of_rank(
    store: TimelineStore, rank: int, start_ns: int, end_ns: int, prediction: Prediction | None, closer_ns: float
) -> Morph:
    """Return a rank's slices of a step; without a prediction both states are the recorded one."""
    timeline = store.ranks[rank]
    level = timeline.levels[0]
    device_rows = [number for number, row in enumerate(timeline.rows) if row.kind == "device"]
    slices_of_rows = [np.arange(level.offsets[row], level.offsets[row + 1]) for row in device_rows]
    slices = np.concatenate(slices_of_rows) if slices_of_rows else np.zeros(0, np.int64)
    begin = level.start[slices] + timeline.shift_ns
    end = begin + level.rest["dur"][slices].astype(np.int64)
    # Steps of ranks end at different times: slices that are mostly in the next step are left out.
    middle = (begin + end) // 2
    is_inside = (middle >= start_ns) & (middle < end_ns)
    slices, begin, end = slices[is_inside], begin[is_inside], end[is_inside]
    category, name = level.rest["category"][slices], store.run_names(rank, level.rest["name"][slices])
    begins, ends = np.stack([begin, begin]), np.stack([end, end])
    if prediction is not None:
        node = _node_of_event(prediction, rank, level.rest["event"][slices])
        has_node = node >= 0
        begins[1, has_node] = prediction.timeline.start[node[has_node]] - store.origin_ns
        ends[1, has_node] = prediction.timeline.end[node[has_node]] - store.origin_ns
        begins, ends, category, name = begins[:, has_node], ends[:, has_node], category[has_node], name[has_node]
    coverage = np.full(len(category), 255, np.uint8)
    return _merged(Morph(category, name, begins, np.maximum(ends, begins), coverage), closer_ns)


def _node_of_event(prediction: Prediction, rank: int, event: NDArray[np.int32]) -> Ints:
    """Find the node of each event of a rank; -1 if the graph has none."""
    graph = prediction.graph
    rows = graph.nodes.of_rank(rank)
    rows = rows[~graph.nodes.of_host[rows]]
    events = events_of(graph)[rows]
    rows, events = rows[events >= 0], events[events >= 0]
    order = np.argsort(events, kind="stable")
    if not len(order):
        return np.full(len(event), -1)
    place = np.minimum(np.searchsorted(events[order], event), len(order) - 1)
    nodes = rows[order[place]]
    return np.where(events[order[place]] == event, nodes, -1)


def _merged(morph: Morph, closer_ns: float) -> Morph:
    """Merge neighbors of one kind that stay closer than a pixel; compute is last, painted over the rest."""
    order = np.lexsort((morph.begin[0], morph.category, morph.category == COMPUTE))
    category, begin, end = morph.category[order], morph.begin[:, order], morph.end[:, order]
    if not len(order):
        return morph
    is_far = (np.abs(begin[:, 1:] - end[:, :-1]) > closer_ns).any(axis=0)
    first = np.flatnonzero(np.append(True, (category[1:] != category[:-1]) | is_far))
    duration = (end[0] - begin[0]).astype(np.float64)
    merged_begin = np.minimum.reduceat(begin, first, axis=1)
    merged_end = np.maximum.reduceat(end, first, axis=1)
    busy_share = np.add.reduceat(duration, first) / np.maximum(merged_end[0] - merged_begin[0], 1)
    return Morph(
        category=category[first],
        name=morph.name[order][longest_of_groups(duration, first)],
        begin=merged_begin,
        end=merged_end,
        coverage=np.clip(np.ceil(255 * busy_share), 1, 255).astype(np.uint8),
    )


def encode_morph(
    store: TimelineStore, ranks: Sequence[int], start_ns: int, end_ns: int, prediction: Prediction | None
) -> bytes:
    """Write a step of some ranks in both states as a tile, with a head like a timeline's."""
    closer_ns = (end_ns - start_ns) * CLOSER_PX / WIDTH_PX
    morphs = [morph_of_rank(store, rank, start_ns, end_ns, prediction, closer_ns) for rank in ranks]
    # Two rows, as recorded and as predicted; one column per slice, rank after rank.
    begin = np.concatenate([morph.begin for morph in morphs], axis=1)
    end = np.concatenate([morph.end for morph in morphs], axis=1)
    origin = begin.min(axis=1, keepdims=True) if begin.size else np.zeros((2, 1), np.int64)
    lasts = (end - origin).max(axis=1, initial=1)
    span_ns = int(lasts.max())
    scale = WIDTH_PX / span_ns
    name = np.concatenate([morph.name for morph in morphs])
    used, number = np.unique(name, return_inverse=True)
    head = {
        "rows": {rank: [("", "device", 0, "")] for rank in ranks}, "names": [store.names[index] for index in used],
        "categories": CATEGORIES, "span_ns": span_ns, "steps": [], "labels": {}, "width": WIDTH_PX, "start_ns": 0,
        "end_ns": span_ns, "counts": [len(morph.category) for morph in morphs], "lasts_ns": lasts.tolist(),
    }  # fmt: skip
    begin_px = ((begin - origin) * scale).astype("<f4")
    end_px = ((end - origin) * scale).astype("<f4")
    columns = [begin_px[0], end_px[0], begin_px[1], end_px[1]]
    shades = [
        np.concatenate([morph.category for morph in morphs]), np.concatenate([morph.coverage for morph in morphs])
    ]  # fmt: skip
    return pack(head, (*columns, number.astype("<u4"), *(shade.astype(np.uint8) for shade in shades)))
