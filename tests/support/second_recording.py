"""Recordings of the second simulator: one rank's trace as host points and device work, on one clock.

Host points are the starts, ends and flow points of all threads that launch work. They form one sequence per rank,
because the main thread and the autograd thread never run at the same time. Threads that only query events (NCCL's
watchdog) have no points. Device times are moved to the host's clock, so that no work starts before its launch.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
Moment = tuple[int, bool]
"""Number of an event, and whether its end is meant."""
Thread = tuple[Any, Any]
"""Process and thread."""

RUNTIME = ("cuda_runtime", "cuda_driver")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS_FOR_STREAM = ("cudaStreamSynchronize", "cudaEventSynchronize")
WAITS_FOR_DEVICE = ("cudaDeviceSynchronize", "cudaFree")

US = 1_000
CLOCK_MARGIN_NS = 5 * US
"""Least latency of a launch. If work starts earlier than that, the device's clock is behind the host's."""
MOST_LATENCY_NS = 10 * US
"""Most latency of a launch without a reason. A rank whose device is always behind shows no smallest latency."""


class Turn(IntEnum):
    """Order of points at the same time."""

    BLOCKING_END = 0
    BLOCKING_START = 1
    END_OF_NO_TIME = 2
    """The end of a blocking call that took no time, which must follow its start."""
    REST = 3


class Point(NamedTuple):
    """A moment on a busy host thread; points sort by time and turn."""

    when_ns: int
    turn: Turn
    event: int
    is_end: bool

    @property
    def moment(self) -> Moment:
        return self.event, self.is_end


@dataclass(slots=True)
class Times:
    """Start and end by number of the event, in nanoseconds; device times are on the host's clock."""

    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)

    def side(self, *, is_end: bool) -> dict[int, int]:
        return self.end if is_end else self.start


@dataclass(frozen=True, slots=True)
class Wait:
    """Device work that a host point waits for, and when this wait began in the recording."""

    work: tuple[int, ...]
    since_ns: int


@dataclass(slots=True)
class RankTrace:
    """One rank's trace: its host points, its device work in order per stream, and what they wait for."""

    path: Path
    trace: dict[str, Any]
    recorded: Times
    host_threads: set[Thread]
    points: list[Point]
    launch_of: dict[int, int]
    """By work; work whose launch is not in the trace is missing."""
    streams: dict[Any, list[int]]
    clock_offset_ns: int
    """Device clock minus host clock; 0 unless the device's clock is behind."""
    latency_ns: int
    stream_of: dict[int, Any]
    previous_of: dict[int, int]
    crossing: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By work: work of other streams that it waits for."""
    waits: dict[Moment, Wait] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return int(self.trace["distributedInfo"]["rank"])

    @property
    def events(self) -> list[Event]:
        events: list[Event] = self.trace["traceEvents"]
        return events

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Start and end of each step's mark on the host."""
        marks = (
            (self.recorded.start[number], self.recorded.end[number])
            for number, event in enumerate(self.events)
            if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
        )
        return sorted(marks)

    def before(self, work: int) -> set[int]:
        """Return the work that must end first."""
        previous = {self.previous_of[work]} if work in self.previous_of else set()
        return previous | self.crossing.get(work, set())

    def ready_ns(self, work: int, times: Times) -> int | None:
        """Return when all that work waits for is done, or None if it waits for nothing in the trace."""
        done = [times.end[before] for before in self.before(work)]
        if work in self.launch_of:
            done.append(times.start[self.launch_of[work]] + self.latency_ns)
        return max(done, default=None)


def is_communication(event: Event) -> bool:
    return event.get("cat") == "kernel" and "nccl" in event["name"].lower()


def read_rank(path: Path) -> RankTrace:
    """Read one rank's trace, without what its work and its host wait for."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    events: list[Event] = trace["traceEvents"]
    recorded = Times()
    for number, event in enumerate(events):
        if "ts" in event and event["ph"] != "M":
            recorded.start[number] = round(event["ts"] * US)
            recorded.end[number] = recorded.start[number] + round(event.get("dur", 0) * US)
    work = [number for number, event in enumerate(events) if event["ph"] == "X" and event.get("cat") in DEVICE]
    threads = {thread_of(event) for event in events if event["ph"] == "X" and _is_busy(event)}
    call_of = {
        event["args"].get("correlation"): number
        for number, event in enumerate(events)
        if event["ph"] == "X" and event.get("cat") in RUNTIME and thread_of(event) in threads
    }
    correlations = {number: events[number]["args"].get("correlation") for number in work}
    launch_of = {number: call_of[value] for number, value in correlations.items() if value in call_of}
    least_ns = min(recorded.start[number] - recorded.start[launch] for number, launch in launch_of.items())
    offset_ns = min(0, least_ns - CLOCK_MARGIN_NS)
    for number in work:
        recorded.start[number] -= offset_ns
        recorded.end[number] -= offset_ns
    streams: dict[Any, list[int]] = defaultdict(list)
    for number in sorted(work, key=lambda number: (recorded.start[number], recorded.end[number])):
        streams[events[number]["args"].get("stream", events[number]["tid"])].append(number)
    return RankTrace(
        path,
        trace,
        recorded,
        threads,
        points=_points(events, recorded, threads),
        launch_of=launch_of,
        streams=dict(streams),
        clock_offset_ns=offset_ns,
        latency_ns=min(least_ns - offset_ns, MOST_LATENCY_NS),
        stream_of={number: stream for stream, numbers in streams.items() for number in numbers},
        previous_of={number: previous for numbers in streams.values() for previous, number in pairwise(numbers)},
    )


def thread_of(event: Event) -> Thread:
    return event.get("pid"), event.get("tid")


def _is_busy(event: Event) -> bool:
    """Return whether an event shows that its thread runs operators or launches work."""
    if event.get("cat") in RUNTIME:
        return "Launch" in event["name"] or "Memcpy" in event["name"]
    return event.get("cat") in ("cpu_op", "user_annotation")


def is_blocking(event: Event) -> bool:
    """Return whether an event is a call that may wait for device work."""
    name = event["name"]
    may_wait = name in WAITS_FOR_STREAM + WAITS_FOR_DEVICE or name.startswith("cudaMemcpy")
    return may_wait and event["ph"] == "X" and event.get("cat") in RUNTIME


def _points(events: list[Event], recorded: Times, threads: set[Thread]) -> list[Point]:
    points = []
    for number, start_ns in recorded.start.items():
        event, end_ns = events[number], recorded.end[number]
        if thread_of(event) not in threads or event.get("cat") in DEVICE:
            continue
        start_turn = end_turn = Turn.REST
        if is_blocking(event):
            start_turn = Turn.BLOCKING_START
            end_turn = Turn.BLOCKING_END if end_ns > start_ns else Turn.END_OF_NO_TIME
        points.append(Point(start_ns, start_turn, number, is_end=False))
        if event["ph"] == "X":
            points.append(Point(end_ns, end_turn, number, is_end=True))
    return sorted(points)
