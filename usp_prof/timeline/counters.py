"""Counters of a rank over time: memory in use, unfinished launched work, bus bandwidth of its communication.

A counter is a row of spans. Each span has the counter's value as a share of the row's maximum, 1..255; there is no span
for a value of zero. The maximum is shown next to the row, as the scale.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from usp_prof.analyses.collectives import bus_bandwidth
from usp_prof.analyses.measures.ranges import launched_at
from usp_prof.analyses.memory import line_of as memory_line_of
from usp_prof.columns.arrays import Floats, Ints
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity
from usp_prof.tables.calls import match_calls as calls_of
from usp_prof.tables.clock import fit_clocks as clock_of
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.rows import Track, category_number

MOST_SPANS = 131_072
"""Maximum number of spans; a counter that changes more often is stored as means of equal intervals: 3 MB per row."""
TOP_SHARE = 0.001
"""Share of the transfers' time above the maximum of the bandwidth; otherwise one short call would set the scale."""


def counters_of(tables: TableSet, rank: int) -> Iterator[Track]:
    """Yield the counters available in a rank's trace, in common time."""
    made = (_memory(tables, rank), _queue(tables, rank), _bandwidth(tables, rank))
    yield from (counter for counter in made if counter is not None)


def _memory(tables: TableSet, rank: int) -> Track | None:
    line = memory_line_of(tables, rank)
    has_value = line["allocated_bytes"] >= 0
    time = np.asarray(clock_of(tables).align(rank, line["start_ns"][has_value]))
    in_use = line["allocated_bytes"][has_value].astype(np.float64)
    if not len(time) or not in_use.max():
        return None
    # The last value holds for an unknown time, so it is not drawn.
    top = float(in_use.max())
    return _counter("memory", "memory in use", quantity(top, Unit.BYTES), time, in_use, top)


def _queue(tables: TableSet, rank: int) -> Track | None:
    """Count launched work that has not ended, over all streams: +1 at the launch, -1 at the end."""
    kernels, launched = tables.columns("kernels", rank), launched_at(tables, rank)
    queued = launched < kernels["start_ns"]  # work without a recorded launch is excluded
    if not queued.any():
        return None
    end = kernels["start_ns"][queued] + kernels["dur_ns"][queued]
    time, depth = _running_sum(launched[queued], end, np.ones(len(end)))
    top = float(depth.max())
    aligned = np.asarray(clock_of(tables).align(rank, time))
    return _counter("queue", "launched and not finished", f"{top:.0f} kernels", aligned, depth, top)


def _bandwidth(tables: TableSet, rank: int) -> Track | None:
    """Sum the bus bandwidth of the calls in transfer, from the last member's arrival to the end."""
    matched = calls_of(tables)
    calls = matched.columns()
    rate = bus_bandwidth(calls)
    rows = np.flatnonzero(matched.touching([rank]) & ~np.isnan(rate))
    if not len(rows):
        return None
    start, dur, rate = calls["last_ns"][rows], calls["transfer_ns"][rows], rate[rows]
    time, total = _running_sum(start, start + dur, rate)
    fastest_first = np.argsort(-rate, kind="stable")
    lasted = np.cumsum(dur[fastest_first])
    top = float(rate[fastest_first][int(np.searchsorted(lasted, TOP_SHARE * lasted[-1]))])
    highest = f"{quantity(top, Unit.BYTES_PER_SECOND)} or more"
    return _counter("bandwidth", "bus bandwidth while it transfers", highest, time, total, top)


def _running_sum(start: Ints, end: Ints, height: Floats) -> tuple[Ints, Floats]:
    """Return the times when a sum over spans changes, and the sum from each time on: + at a start, - at an end."""
    moment = np.concatenate([start, end])
    change = np.concatenate([height, -height])
    time, place = np.unique(moment, return_inverse=True)
    value = np.cumsum(np.bincount(place, change, len(time)))
    value[np.abs(value) < 1e-6 * np.abs(height).max(initial=0.0)] = 0.0  # rounding error of a float sum
    return time, np.maximum(value, 0.0)


def _counter(track: str, name: str, top: str, time: Ints, value: Floats, highest: float) -> Track:
    """Build spans of a value that holds from each time to the next; `time` is sorted, the last value has no end.

    `track` names the row in one or two words, `name` its spans, and `top` is the value of its maximum height.
    """
    if len(time) > MOST_SPANS:
        time, value = _means(time, value)
    level = np.clip(np.ceil(255 * value[:-1] / highest), 0, 255).astype(np.uint8)
    changes = np.flatnonzero(np.diff(level, prepend=np.int16(-1)) != 0)  # the first entry always starts a span
    start = time[:-1][changes]
    end = np.append(start[1:], time[-1])
    stands = (level[changes] > 0) & (end > start)
    start, dur, level = start[stands], (end - start)[stands], level[changes][stands]
    zero = np.zeros(len(start), np.int64)
    category = np.full(len(start), category_number("counter"), np.uint8)
    return Track(track, "counters", top, zero, start, dur, zero - 1, zero, [name], category, level)


def _means(time: Ints, value: Floats) -> tuple[Ints, Floats]:
    """Return the mean of each of `MOST_SPANS` equal sections: the difference of the running integral at its borders."""
    integral = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(time))])
    border = np.linspace(time[0], time[-1], MOST_SPANS + 1)
    mean = np.diff(np.interp(border, time, integral)) / np.diff(border)
    return border.astype(np.int64), np.append(mean, 0.0)
