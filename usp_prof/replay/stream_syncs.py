"""Stream syncs that wait for another stream than that of the last launch.

`cudaStreamSynchronize` waits for one stream, which the trace rarely names. It is normally the stream of the thread's
last launch (`.item()`). Offloading syncs a stream of its own after other launches. Such a call returns long after the
last launch has ended, and right after the last work of another stream:

    host               launch 7   sync |--------------------------| returns
    stream 7 (last launch)    =========|
    stream 33 (copies)          ==================================|    explains the return

If the last work of this stream explains nearly all calls after the same launch, on all ranks, these calls always wait
for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import lookup
from usp_prof.replay.graph import NEVER
from usp_prof.replay.host_waits import CONTRADICTED, RESUMED_NS, HostWaits, launches_by_lane

_LEFT_OVER = 0.1
"""The end of work explains a wait if at most this share of it is left: work that ends at random would in 1 of 10."""


def with_other_streams(waits_of_ranks: Sequence[HostWaits]) -> list[HostWaits]:
    """Return the waits of all ranks, in which stream syncs may wait for the last work of another stream."""
    unexplained_after = {launch for waits in waits_of_ranks for launch in waits.last_launch[_unexplained(waits)]}
    if not unexplained_after:
        return list(waits_of_ranks)
    lane_after = {launch: lane for launch, lane in _constant_lanes(waits_of_ranks) if launch in unexplained_after}
    return [_with_other_streams(waits, lane_after) for waits in waits_of_ranks]


def _constant_lanes(waits_of_ranks: Sequence[HostWaits]) -> Iterator[tuple[str, str]]:
    """Yield launches, by name, with the lane whose last work explains nearly all waits after such a launch."""
    waited: Counter[str] = Counter()
    explained: Counter[tuple[str, str]] = Counter()
    for waits in waits_of_ranks:
        has_waited = waits.is_stream_sync & (waits.returned_at - waits.called_at > RESUMED_NS)
        waited.update(waits.last_launch[has_waited])
        for lane, work in _last_of_lanes(waits):
            explains = has_waited & _explains(waits, work, waits.called_at)
            explained.update((launch, lane) for launch in waits.last_launch[explains])
    for (launch, lane), number in explained.items():
        if number >= (1 - CONTRADICTED) * waited[launch]:
            yield launch, lane


def _with_other_streams(waits: HostWaits, lane_after: dict[str, str]) -> HostWaits:
    """Return the waits of one rank; `lane_after` has the lane that all calls after a launch of this name wait for.

    Other calls wait for another stream only if it explains a wait that the stream of the last launch does not.
    """
    unexplained, explained_until = _unexplained(waits), waits.returned_at - waits.own_ns
    changed = waits
    for lane, work in _last_of_lanes(waits):
        is_constant = np.array([lane_after.get(launch) == lane for launch in waits.last_launch], bool)
        is_needed = unexplained & _explains(waits, work, explained_until)
        changed = changed.with_source(np.where(waits.is_stream_sync & (is_constant | is_needed), work, -1))
    return changed


def _unexplained(waits: HostWaits) -> Flags:
    """Mark the stream syncs that return long after the work that they are assumed to wait for."""
    return waits.is_stream_sync & (waits.own_ns > RESUMED_NS)


def _explains(waits: HostWaits, work: Ints, since: Ints) -> Flags:
    """Mark the calls that return with the end of their `work`: it explains nearly all of the time since a moment."""
    left_ns = np.abs(waits.returned_at - lookup(waits.nodes.end, work, missing=NEVER))
    return np.asarray(left_ns <= np.minimum(RESUMED_NS, _LEFT_OVER * (waits.returned_at - since)))


def _last_of_lanes(waits: HostWaits) -> Iterator[tuple[str, Ints]]:
    """Yield each lane of the device, by name, with the work launched there last before each call; -1 for none."""
    for lane, work, last in launches_by_lane(waits.nodes, waits.called_at):
        yield waits.nodes.lane_names[lane], lookup(work, last, missing=-1)
