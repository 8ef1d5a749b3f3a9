"""Waits of the second simulator: what device work, hosts and collectives wait for in a recording.

stream wait  After `cudaStreamWaitEvent`, the thread's next launch waits for the last work launched on each other
             stream that had ended when it started. A wait within an `nccl:` range affects the next collective only.
             A wait for the copy of a batch never waits for collectives.
blocking     `cudaDeviceSynchronize` and `cudaFree` wait for all streams, other syncs for the stream of the thread's
             last launch, copies to pageable memory for themselves.
silent wait  `cudaEventSynchronize` is not traced. A long gap before `cudaFree` or `cudaEventElapsedTime`, or at the
             end of `aten::copy_`, is a wait if it ends with device work.
coincidence  Work that starts long after all of this waits for work of other streams that ended at that moment.
collective   The calls of a group are matched in order. A send is matched with its receive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from second_recording import (
    RUNTIME,
    US,
    WAITS_FOR_DEVICE,
    WAITS_FOR_STREAM,
    Wait,
    is_blocking,
    is_communication,
    thread_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from second_recording import Event, RankTrace, Thread

Participant = tuple[int, int]
"""Rank and work."""

BATCH_COPY_RANGES = ("start_sparse_data_dist", "sparse_data_dist", "wait_for_batch", "copy_batch_to_gpu")
"""Ranges of TorchRec's pipeline: their stream waits are for the copy of the batch."""
STREAM_TOLERANCE_NS = 2 * US
"""Work of another stream that ended up to this long after a start counts as ended before it."""
CALL_TOLERANCE_NS = 100 * US
"""A call that returned longer than this before the end of work did not wait for it."""
SILENT_GAP_NS, LONG_GAP_NS = 200 * US, 10_000 * US
"""Shortest host gap that may be a silent wait, and shortest one that may be a wait for a timer of many kernels."""
PROMPT_NS, LATE_NS, EARLY_NS = 80 * US, 3_000 * US, 20 * US
"""Most time from the end of work to the end of a silent wait, for short and long gaps, and most time the other way."""
UNEXPLAINED_NS, COINCIDENCE_NS = 100 * US, 30 * US
"""Work that starts this long after all that it waits for waits for what ends this close to its start."""


def add_waits(rank: RankTrace) -> None:
    """Find what the rank's work and its host wait for. Later rules use the results of the earlier ones."""
    _add_traced_waits(rank)
    ends = sorted((rank.recorded.end[work], work) for work in rank.stream_of)
    _add_silent_waits(rank, ends)
    _add_coincidences(rank, ends)


@dataclass(slots=True)
class _Launches:
    """What was launched before a call, in order of the host."""

    rank: RankTrace
    last: dict[Any, int] = field(default_factory=dict)
    """By stream."""
    last_stream: dict[Thread, Any] = field(default_factory=dict)
    waited: dict[Thread, dict[Any, int]] = field(default_factory=dict)
    """By thread and stream: what the thread's next launch waits for."""
    waited_by_collective: dict[Thread, dict[Any, int]] = field(default_factory=dict)

    def wait_for_streams(self, thread: Thread, inside: str) -> None:
        """Make the thread's next launch wait; `inside` is the innermost annotation."""
        if inside.startswith("nccl:"):
            self.waited_by_collective[thread] = dict(self.last)
            return
        is_copy = inside.strip("# ") in BATCH_COPY_RANGES
        self.waited[thread] = {
            stream: work
            for stream, work in self.last.items()
            if not (is_copy and is_communication(self.rank.events[work]))
        }

    def awaited(self, thread: Thread, name: str, copy: int | None) -> list[int]:
        """Return the work that a blocking call may wait for; `copy` is what the call launches."""
        if name in WAITS_FOR_DEVICE:
            return list(self.last.values())
        if name in WAITS_FOR_STREAM:
            return [self.last[self.last_stream[thread]]] if thread in self.last_stream else []
        return [copy] if copy is not None and _blocks_host(self.rank.events[copy]) else []

    def launch(self, thread: Thread, work: int) -> None:
        """Add what the work waits for, and the work as its stream's last."""
        before = self.waited.pop(thread, {})
        if is_communication(self.rank.events[work]):
            before |= self.waited_by_collective.pop(thread, {})
        self.rank.crossing[work].update(_last_ended(self.rank, before, work))
        self.last_stream[thread] = self.rank.stream_of[work]
        self.last[self.rank.stream_of[work]] = work


def _add_traced_waits(rank: RankTrace) -> None:
    events, recorded, launches = rank.events, rank.recorded, _Launches(rank)
    work_of = {launch: work for work, launch in rank.launch_of.items()}
    calls = (
        (recorded.start[number], number)
        for number, event in enumerate(events)
        if event["ph"] == "X" and event.get("cat") in RUNTIME and thread_of(event) in rank.host_threads
    )
    ranges = _ranges(rank)
    for start_ns, call in sorted(calls):
        thread, name, work = thread_of(events[call]), events[call]["name"], work_of.get(call)
        if name.startswith("cudaStreamWaitEvent"):
            inside = [title for begin, end, title in ranges[thread] if begin <= start_ns <= end]
            launches.wait_for_streams(thread, inside[-1] if inside else "")
        if is_blocking(events[call]):
            latest_ns = recorded.end[call] + CALL_TOLERANCE_NS
            awaited = launches.awaited(thread, name, work)
            if ended := tuple(before for before in awaited if recorded.end[before] <= latest_ns):
                rank.waits[call, True] = Wait(ended, start_ns)
        if work is not None:
            launches.launch(thread, work)


def _ranges(rank: RankTrace) -> dict[Thread, list[tuple[int, int, str]]]:
    """Return start, end and title of the annotations of each thread, outer ones first."""
    ranges: dict[Thread, list[tuple[int, int, str]]] = defaultdict(list)
    for number, event in enumerate(rank.events):
        if event["ph"] == "X" and event.get("cat") == "user_annotation":
            ranges[thread_of(event)].append((rank.recorded.start[number], rank.recorded.end[number], event["name"]))
    for titles in ranges.values():
        titles.sort()
    return ranges


def _blocks_host(copy: Event) -> bool:
    return "DtoH" in copy["name"] and "Pageable" in copy["name"]


def _last_ended(rank: RankTrace, before: dict[Any, int], launched: int) -> Iterator[int]:
    """Yield the last work of each other stream that had ended when the launched work started."""
    latest_ns = rank.recorded.start[launched] + STREAM_TOLERANCE_NS
    for stream, last in before.items():
        work: int | None = last
        while work is not None and rank.recorded.end[work] > latest_ns:
            work = rank.previous_of.get(work)
        if work is not None and stream != rank.stream_of[launched]:
            yield work


def _ended_within(ends: list[tuple[int, int]], first_ns: int, last_ns: int) -> list[int]:
    return [work for _, work in ends[bisect_left(ends, (first_ns, 0)) : bisect_left(ends, (last_ns + 1, 0))]]


def _add_silent_waits(rank: RankTrace, ends: list[tuple[int, int]]) -> None:
    """Add waits that no call names: host gaps that end with device work launched before them."""
    events, recorded = rank.events, rank.recorded
    for before, point in pairwise(rank.points):
        gap_ns, name = point.when_ns - before.when_ns, events[point.event]["name"]
        if point.is_end:
            may_wait = name == "aten::copy_" and events[before.event].get("cat") == "ac2g"
        else:
            may_wait = name in ("cudaFree", "cudaEventElapsedTime")
        if gap_ns < SILENT_GAP_NS or not may_wait:
            continue
        since_ns = LATE_NS if name == "cudaEventElapsedTime" and gap_ns > LONG_GAP_NS else PROMPT_NS
        ended = [
            work
            for work in _ended_within(ends, point.when_ns - since_ns, point.when_ns + EARLY_NS)
            if work not in rank.launch_of or recorded.start[rank.launch_of[work]] <= before.when_ns
        ]
        if ended:
            rank.waits[point.moment] = Wait((max(ended, key=recorded.end.__getitem__),), before.when_ns)


def _add_coincidences(rank: RankTrace, ends: list[tuple[int, int]]) -> None:
    """Make work whose late start has no other reason wait for other streams' work that ended then.

    One reason is communication that needs room on the device. Communication does not wait for work whose launch is not
    in the trace. In a first step, such work of another stream ended by chance when a send started.
    """
    start_of = rank.recorded.start
    for work, launch in rank.launch_of.items():
        start_ns, ready_ns = start_of[work], rank.ready_ns(work, rank.recorded)
        if ready_ns is None or start_ns - ready_ns <= UNEXPLAINED_NS:
            continue
        for other in _ended_within(ends, start_ns - COINCIDENCE_NS, start_ns + COINCIDENCE_NS):
            if other in rank.launch_of:
                is_earlier = start_of[rank.launch_of[other]] < start_of[launch]
            else:
                is_earlier = not is_communication(rank.events[work])
            if is_earlier and rank.stream_of[other] != rank.stream_of[work]:
                rank.crossing[work].add(other)


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, or a send with its receive: rank and work of each participant."""

    participants: tuple[Participant, ...]
    last_start_ns: int


def match_calls(ranks: dict[int, RankTrace]) -> Iterator[tuple[Participant, Call]]:
    """Yield the call of each participant: calls of a group are matched in order, from the best common start."""
    groups: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks.values():
        for work in sorted(rank.stream_of, key=rank.recorded.start.__getitem__):
            event = rank.events[work]
            if is_communication(event):
                groups[_group(rank.rank, event["args"])][rank.rank].append(work)
    for members in groups.values():
        shortest = min(sorted(members), key=lambda rank: len(members[rank]))
        reference = [ranks[shortest].recorded.end[work] for work in members[shortest]]
        aligned = {rank: _aligned(work, ranks[rank].recorded.end, reference) for rank, work in members.items()}
        for works in zip(*aligned.values(), strict=True):
            participants = tuple(zip(aligned, works, strict=True))
            call = Call(participants, max(ranks[rank].recorded.start[work] for rank, work in participants))
            if len(participants) > 1:
                yield from ((participant, call) for participant in participants)


def _group(rank: int, arguments: dict[str, Any]) -> Any:
    """Return what calls are matched by: the process group, and for sends and receives both ranks in order."""
    group = arguments.get("Process Group Name", "all")
    if arguments.get("Collective name") == "send":
        return group, rank, int(arguments["Dst Rank"])
    if arguments.get("Collective name") == "recv":
        return group, int(arguments["Src Rank"]), rank
    return group


def _aligned(work: list[int], end_of: dict[int, int], reference: list[int]) -> list[int]:
    """Return the consecutive calls whose ends are closest to those of the rank with the fewest calls."""
    candidates = [work[first : first + len(reference)] for first in range(len(work) - len(reference) + 1)]
    return min(
        candidates,
        key=lambda own: median(abs(end_of[number] - end_ns) for number, end_ns in zip(own, reference, strict=True)),
    )
