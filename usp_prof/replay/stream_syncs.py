"""Stream syncs that wait for another stream than that of the last launch.

`cudaStreamSynchronize` waits for one stream, which the trace rarely names. It is normally the stream of the thread's
last launch (`.item()`). Offloading syncs a stream of its own after other launches. Such a call returns long after the
last launch has ended, and right after the last work of another stream. If the last work of this stream explains nearly
all calls after the same launch, on all ranks, these calls always wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, lookup, sorted_by
from usp_prof.replay.graph import NEVER
from usp_prof.replay.host_waits import CONTRADICTED, RESUMED_NS, HostWaits
from usp_prof.replay.rank_nodes import RankNodes

_LEFT_OVER = 0.1
"""The end of work explains a wait if at most this share of it is left; by chance, it does so in this share of cases."""

OfRank = tuple[RankNodes, HostWaits, Ints]
"""The nodes of a rank, the waits of its host, and when its work was launched."""


def with_other_streams(of_ranks: Sequence[OfRank]) -> list[HostWaits]:
    """Return the waits of all ranks, in which stream syncs may wait for the last work of another stream."""
    after_unexplained = {after for nodes, waits, _ in of_ranks for after in waits.after[_unexplained(nodes, waits)]}
    if not after_unexplained:
        return [waits for _, waits, _ in of_ranks]
    waited: Counter[str] = Counter()
    explained: Counter[tuple[str, str]] = Counter()
    for nodes, waits, launched_at in of_ranks:
        has_waited = waits.is_stream_sync & (nodes.start[waits.back] - waits.called_at > RESUMED_NS)
        waited.update(waits.after[has_waited])
        for lane, piece in _last_of_lanes(nodes, waits, launched_at):
            explains = has_waited & _explains(nodes, waits, piece, waits.called_at)
            explained.update((after, lane) for after in waits.after[explains])
    always = {
        after: lane
        for (after, lane), number in explained.items()
        if after in after_unexplained and number >= (1 - CONTRADICTED) * waited[after]
    }
    return [_replaced(*of_rank, always) for of_rank in of_ranks]


def _replaced(nodes: RankNodes, waits: HostWaits, launched_at: Ints, always: dict[str, str]) -> HostWaits:
    """Return the waits of one rank; `always` has the stream that all calls after a launch of this name wait for.

    Other calls wait for another stream only if it explains a wait that the stream of the last launch does not.
    """
    late, explained_until = _unexplained(nodes, waits), _explained_until(nodes, waits)
    changed = waits
    for lane, piece in _last_of_lanes(nodes, waits, launched_at):
        is_always = np.array([always.get(after) == lane for after in waits.after], bool)
        is_needed = late & _explains(nodes, waits, piece, explained_until)
        calls = np.flatnonzero(waits.is_stream_sync & (piece >= 0) & (is_always | is_needed))
        changed = changed.instead(calls, piece[calls])
    return changed


def _explained_until(nodes: RankNodes, waits: HostWaits) -> Ints:
    """Return until when each call waits for the stream of the last launch."""
    return np.maximum(waits.ended(nodes), waits.called_at)


def _unexplained(nodes: RankNodes, waits: HostWaits) -> Flags:
    """Mark the stream syncs that return long after the work that they are assumed to wait for."""
    return waits.is_stream_sync & (nodes.start[waits.back] - _explained_until(nodes, waits) > RESUMED_NS)


def _explains(nodes: RankNodes, waits: HostWaits, piece: Ints, since: Ints) -> Flags:
    """Mark the calls for which the end of some work explains nearly all of the time since some moments."""
    returned = nodes.start[waits.back]
    left_ns = np.abs(returned - lookup(nodes.end, piece, missing=NEVER))
    return np.asarray(left_ns <= np.minimum(RESUMED_NS, _LEFT_OVER * (returned - since)))


def _last_of_lanes(nodes: RankNodes, waits: HostWaits, launched_at: Ints) -> Iterator[tuple[str, Ints]]:
    """Yield each lane of the device, by name, with the work launched there last before each call; -1 for none."""
    device = np.flatnonzero(nodes.of_device & (launched_at > NEVER)) if len(waits.back) else waits.back
    for number in distinct(nodes.lane[device]).tolist():
        of_lane = sorted_by(launched_at, device[nodes.lane[device] == number])
        last = np.searchsorted(launched_at[of_lane], waits.called_at) - 1
        yield nodes.lane_names[number], lookup(of_lane, last, missing=-1)
