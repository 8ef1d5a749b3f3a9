"""Second injection: delays in real GPU traces, propagated by other rules than those of `injection.py`.

The rules were written without looking at the replay or at the first simulator. A mistake that one of them shares with
the replay is unlikely to be in the other one too.

  host        The time between two points of a rank's host is the host's own, unless the second one ends a wait.
  wait        A point that ends a wait is a fixed time after the end of the awaited work, and not before the host gets
              there.
  device      Work starts after its launch plus the rank's smallest launch latency, after its stream's previous work,
              and after the work of other streams that it waits for.
  collective  All participants end a fixed time after the last of them has started. One that ended long before this in
              the recording did not wait.

`second_waits.py` has the rules for what waits for what. A time that no rule explains stays as it is. Work never slows
other work down, and launch queues are unlimited. Without a delay, all times are those of the recording.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from second_recording import DEVICE, RUNTIME, US, Times, read_rank, thread_of
from second_waits import STREAM_TOLERANCE_NS, add_waits, match_calls

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from second_recording import Event, Moment, RankTrace
    from second_waits import Call, Participant

RETURN_NS, MOST_RETURN_NS = 5 * US, 8 * US
"""Least own time of a call that waited, and most time from the end of work to the return of a call that came later."""
SLEEP_NS = 50_000 * US
"""A host gap this long is a sleep, which a slower host does not make longer."""
DETACHED_NS = 100 * US
"""A participant that ended this long before the last one started did not wait for it."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Delay of one rank: time added before moments of its host, a slower host, or slower kernels."""

    rank: int
    added_ns: Mapping[Moment, int] = field(default_factory=dict)
    host_factor: float = 1.0
    kernels: frozenset[str] = frozenset()
    kernel_factor: float = 1.0
    """Factor of the duration of all kernels with these names."""


@dataclass(frozen=True, slots=True)
class Run:
    """All ranks of a run, and the call of each participant."""

    folder: Path
    ranks: dict[int, RankTrace]
    call_of: dict[Participant, Call]


def read_run(folder: Path) -> Run:
    """Read the traces of a folder, find what work and hosts wait for, and match calls across ranks."""
    paths = (path for path in sorted(folder.rglob("*.json*")) if path.name != "run.json" and "_et_" not in path.name)
    ranks = {rank.rank: rank for rank in map(read_rank, paths)}
    for rank in ranks.values():
        add_waits(rank)
    if len({rank.trace.get("baseTimeNanoseconds") for rank in ranks.values()}) > 1:
        raise ValueError(f"the traces of {folder} have different base times")
    return Run(folder, ranks, dict(match_calls(ranks)))


def simulate(run: Run, delay: Delay | None = None) -> dict[int, Times]:
    """Return the new times of each rank's busy host threads and device work."""
    new = {rank: Times() for rank in run.ranks}
    simulations = [
        _RankSimulation(rank, run, new, delay if delay and delay.rank == number else Delay(number))
        for number, rank in run.ranks.items()
    ]
    n_before, n_times = -1, 0
    while n_times > n_before:
        n_before = n_times
        for simulation in simulations:
            simulation.advance()
        n_times = sum(len(times.start) + len(times.end) for times in new.values())
    for simulation in simulations:
        simulation.check_complete()
    return new


@dataclass(slots=True)
class _RankSimulation:
    """New times of one rank, computed as far as those of the other ranks allow."""

    rank: RankTrace
    run: Run
    new: dict[int, Times]
    """By rank: the times computed until now."""
    delay: Delay
    n_points: int = 0
    """Number of host points that have a new time."""
    n_ended: dict[Any, int] = field(default_factory=lambda: defaultdict(int))
    """By stream: number of pieces of work that have a new end."""

    @property
    def own(self) -> Times:
        return self.new[self.rank.rank]

    def advance(self) -> None:
        """Compute all times whose dependencies have new times."""
        points = self.rank.points
        while self.n_points < len(points) and (when_ns := self._point_ns()) is not None:
            point = points[self.n_points]
            self.own.side(is_end=point.is_end)[point.event] = when_ns + self.delay.added_ns.get(point.moment, 0)
            self.n_points += 1
        for stream, work in self.rank.streams.items():
            while self.n_ended[stream] < len(work) and self._has_ended(work[self.n_ended[stream]]):
                self.n_ended[stream] += 1

    def check_complete(self) -> None:
        n_work = sum(map(len, self.rank.streams.values()))
        if self.n_points < len(self.rank.points) or sum(self.n_ended.values()) < n_work:
            raise ValueError(f"the waits of rank {self.rank.rank} form a circle")

    def _point_ns(self) -> int | None:
        """Return the new time of the next host point, or None if work that it waits for has no new end yet."""
        point, before = self.rank.points[self.n_points], self.rank.points[max(self.n_points - 1, 0)]
        gap_ns, before_ns = point.when_ns - before.when_ns, before.when_ns
        if self.n_points:
            before_ns = self.own.side(is_end=before.is_end)[before.event]
        wait = self.rank.waits.get(point.moment)
        if wait is None:
            return before_ns + (round(gap_ns * self.delay.host_factor) if gap_ns < SLEEP_NS else gap_ns)
        if any(work not in self.own.end for work in wait.work):
            return None
        ended_ns = max(self.rank.recorded.end[work] for work in wait.work)
        own_ns, lag_ns = gap_ns, point.when_ns - ended_ns
        if ended_ns > wait.since_ns:  # it waited in the recording
            own_ns = min(gap_ns, max(RETURN_NS, lag_ns))
        else:
            lag_ns = min(lag_ns, MOST_RETURN_NS)
        return max(before_ns + own_ns, max(self.own.end[work] for work in wait.work) + lag_ns)

    def _has_ended(self, work: int) -> bool:
        """Compute start and end of work if possible, and return whether it has an end."""
        if work not in self.own.start:
            start_ns = self._start_ns(work)
            if start_ns is None:
                return False
            self.own.start[work] = start_ns
        end_ns = self._end_ns(work)
        if end_ns is not None:
            self.own.end[work] = end_ns
        return end_ns is not None

    def _start_ns(self, work: int) -> int | None:
        """Return the new start of work, or None if something that it waits for has no new time yet."""
        rank, recorded, own = self.rank, self.rank.recorded, self.own
        launch, previous = rank.launch_of.get(work), rank.previous_of.get(work)
        is_launched = launch is None or launch in own.start
        if not is_launched or any(before not in own.end for before in rank.before(work)):
            return None
        recorded_ns, new_ns = rank.ready_ns(work, recorded), rank.ready_ns(work, own)
        if recorded_ns is None or new_ns is None:
            return recorded.start[work]
        start_ns = new_ns + recorded.start[work] - recorded_ns
        # Tolerances can make the unexplained time negative. It never moves work before its launch or previous work.
        if launch is not None:
            start_ns = max(start_ns, own.start[launch] + rank.latency_ns)
        if previous is not None and recorded.end[previous] <= recorded.start[work]:
            start_ns = max(start_ns, own.end[previous])
        return start_ns

    def _end_ns(self, work: int) -> int | None:
        """Return the new end of work, or None if a participant of its call has no new start yet."""
        recorded, start_ns = self.rank.recorded, self.own.start[work]
        duration_ns = recorded.end[work] - recorded.start[work]
        call = self.run.call_of.get((self.rank.rank, work))
        if call is None:
            event = self.rank.events[work]
            is_slow = event["cat"] == "kernel" and event["name"] in self.delay.kernels
            return start_ns + round(duration_ns * (self.delay.kernel_factor if is_slow else 1))
        if any(other not in self.new[rank].start for rank, other in call.participants):
            return None
        after_ns = recorded.end[work] - call.last_start_ns
        if after_ns < -DETACHED_NS:
            return start_ns + duration_ns
        return max(start_ns + 1, max(self.new[rank].start[other] for rank, other in call.participants) + after_ns)


def write_run(run: Run, new: dict[int, Times], folder: Path) -> None:
    """Write the traces with new times under the same names, and the manifest if there is one."""
    for rank in run.ranks.values():
        target = folder / rank.path.relative_to(run.folder)
        target = target.with_name(target.name.removesuffix(".gz"))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({**rank.trace, "traceEvents": _moved_events(rank, new[rank.rank])}))
    if (run.folder / "run.json").exists():
        shutil.copy(run.folder / "run.json", folder / "run.json")


def _moved_events(rank: RankTrace, new: Times) -> list[Event]:
    """Return the events with new times. Flows and annotations on the device move with the work that they mark."""
    recorded, events = rank.recorded, rank.events
    start_of, end_of = recorded.start | new.start, recorded.end | new.end
    work_of = {events[work]["args"].get("correlation"): work for work in rank.stream_of}
    active = [number for number in recorded.end if events[number].get("cat") in (*RUNTIME, *DEVICE, "cpu_op")]
    longer_ns = max(0, max(end_of[number] for number in active) - max(recorded.end[number] for number in active))
    moved = []
    for number, event in enumerate(events):
        if number not in recorded.start:
            moved.append(event)
            continue
        start_ns, end_ns = start_of[number], end_of[number]
        is_on_host = thread_of(event) in rank.host_threads
        if number in rank.stream_of:
            start_ns, end_ns = start_ns + rank.clock_offset_ns, end_ns + rank.clock_offset_ns
        elif event.get("cat") == "ac2g" and event["ph"] == "f" and event["id"] in work_of and not is_on_host:
            start_ns += start_of[work_of[event["id"]]] - recorded.start[work_of[event["id"]]]
        elif event.get("cat") == "gpu_user_annotation" and (marked := _marked_work(rank, number)):
            last = max(marked, key=recorded.end.__getitem__)
            start_ns += start_of[marked[0]] - recorded.start[marked[0]]
            end_ns += end_of[last] - recorded.end[last]
        elif event.get("cat") == "Trace" and event["ph"] == "X" and not is_on_host:
            end_ns += longer_ns
        elif event["name"] == "Record Window End" and event["ph"] != "X" and not is_on_host:
            start_ns += longer_ns
        length = {"dur": _microseconds(end_ns - start_ns)} if "dur" in event else {}
        moved.append({**event, "ts": _microseconds(start_ns), **length})
    return moved


def _marked_work(rank: RankTrace, annotation: int) -> list[int]:
    """Return the work that an annotation on a device stream spans."""
    recorded, work = rank.recorded, rank.streams.get(rank.events[annotation]["tid"], [])
    first_ns = recorded.start[annotation] - rank.clock_offset_ns - STREAM_TOLERANCE_NS
    last_ns = recorded.end[annotation] - rank.clock_offset_ns
    first = bisect_left(work, first_ns, key=recorded.start.__getitem__)
    return work[first : bisect_right(work, last_ns, key=recorded.start.__getitem__)]


def _microseconds(ns: int) -> float:
    """Return microseconds, whole ones as an int: some recorders write only those."""
    return ns / US if ns % US else ns // US
