"""Devices: streams that run work in order, and communication that starts with its last participant.

  stream     work starts after its launch has arrived, the previous work has ended, and all work it waits for has ended
  meeting    a message or collective ends a fixed time after the last participant has started
  slowdown   compute is slower while communication runs on the same device, also while that only waits for its peers

All times are microseconds.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
NEXT_START_US = 0.8
"""Time between two pieces of work on a stream."""


@dataclass(slots=True, eq=False)
class Work:
    """One piece of device work. `duration` of communication is the time after the end of its messages."""

    rank: int
    stream: int
    name: str
    duration: float
    category: str = "kernel"
    meetings: Sequence[Meeting] = ()
    step: int = 0
    is_recorded: bool = False
    correlation: int = 0
    external_id: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    start: float | None = None
    end: float | None = None
    has_arrived: bool = False
    missing: int = 0
    """Pieces of work that it waits for and that have not ended."""
    open_meetings: int = 0
    remaining: float = 0.0
    since: float = 0.0
    """When `remaining` was last computed."""
    speed: float = 1.0
    version: int = 0
    """Number of changes of the speed: an end computed before the last change is void."""
    on_end: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Meeting:
    """One message or collective: it ends `duration` after the last participant has started."""

    participants: int
    duration: float
    started: list[Work] = field(default_factory=list)


Program = Generator[Sequence[Work], None, T]
"""Program of a host: it yields the work that the host waits for, and returns a value."""


class HasTime(Protocol):
    """A host's clock."""

    now: float


class Devices:
    """The devices of a job, and the queue of events that drives hosts and devices."""

    def __init__(self, slowdown: float) -> None:
        self.now = 0.0
        self.slowdown = slowdown
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._streams: dict[tuple[int, int], list[Work]] = defaultdict(list)
        self._next: dict[tuple[int, int], int] = defaultdict(int)
        self._computing: dict[int, dict[Work, None]] = defaultdict(dict)
        self._communicating: dict[int, int] = defaultdict(int)
        self._meetings: dict[Hashable, Meeting] = {}

    def run(self) -> None:
        """Process all events in the order of their times."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time, self.now), next(self._order), action))

    def meeting(self, key: Hashable, participants: int, duration: float) -> Meeting:
        """Return the meeting with this key; the first participant creates it."""
        return self._meetings.setdefault(key, Meeting(participants, duration))

    def submit(self, work: Work, arrival: float, after: Sequence[Work]) -> None:
        """Append work to its stream; it starts after `arrival` and after the end of all work in `after`."""
        self._streams[work.rank, work.stream].append(work)
        for earlier in after:
            if earlier.end is None:
                work.missing += 1
                earlier.on_end.append(partial(self._one_less, work))
            else:
                arrival = max(arrival, earlier.end)
        self._at(arrival, partial(self._arrive, work))

    def _one_less(self, work: Work) -> None:
        work.missing -= 1
        self._start_next(work.rank, work.stream)

    def _arrive(self, work: Work) -> None:
        work.has_arrived = True
        self._start_next(work.rank, work.stream)

    def _start_next(self, rank: int, stream: int) -> None:
        queue, place = self._streams[rank, stream], self._next[rank, stream]
        if place < len(queue):
            work = queue[place]
            if work.start is None and work.has_arrived and not work.missing:
                work.start = self.now
                if work.meetings:
                    self._communicate(work)
                else:
                    self._compute(work)

    def _communicate(self, work: Work) -> None:
        work.open_meetings = len(work.meetings)
        self._communicating[work.rank] += 1
        self._update_speeds(work.rank)
        for meeting in work.meetings:
            meeting.started.append(work)
            if len(meeting.started) == meeting.participants:
                for participant in meeting.started:
                    participant.open_meetings -= 1
                    participant.since = max(participant.since, self.now + meeting.duration)
                    if not participant.open_meetings:
                        self._end_at(participant.since + participant.duration, participant)

    def _compute(self, work: Work) -> None:
        work.remaining, work.since = work.duration, self.now
        if work.category == "kernel":
            self._computing[work.rank][work] = None
            work.speed = self._speed(work.rank)
        self._end_at(self.now + work.remaining / work.speed, work)

    def _speed(self, rank: int) -> float:
        return 1 / self.slowdown if self._communicating[rank] else 1.0

    def _update_speeds(self, rank: int) -> None:
        speed = self._speed(rank)
        for work in self._computing[rank]:
            if work.speed != speed:
                work.remaining = max(work.remaining - (self.now - work.since) * work.speed, 0.0)
                work.since, work.speed = self.now, speed
                work.version += 1
                self._end_at(self.now + work.remaining / speed, work)

    def _end_at(self, time: float, work: Work) -> None:
        self._at(time, partial(self._end, work, work.version))

    def _end(self, work: Work, version: int) -> None:
        if version != work.version:
            return
        work.end = self.now
        self._at(self.now + NEXT_START_US, partial(self._advance, work.rank, work.stream))
        if work.meetings:
            self._communicating[work.rank] -= 1
            self._update_speeds(work.rank)
        else:
            self._computing[work.rank].pop(work, None)
        actions, work.on_end = work.on_end, []
        for action in actions:
            action()

    def _advance(self, rank: int, stream: int) -> None:
        self._next[rank, stream] += 1
        self._start_next(rank, stream)

    def start(self, host: HasTime, program: Program[None]) -> None:
        """Run a host's program, interrupted wherever it waits for work."""
        self._at(0.0, partial(self._resume, host, program))

    def _resume(self, host: HasTime, program: Program[None]) -> None:
        for awaited in program:
            host.now = max([host.now, *(work.end for work in awaited if work.end is not None)])
            pending = [work for work in awaited if work.end is None]
            if pending:
                for work in pending:
                    work.on_end.append(partial(self._ended, host, program, pending))
                return

    def _ended(self, host: HasTime, program: Program[None], pending: list[Work]) -> None:
        host.now = max(host.now, self.now)
        pending.pop()
        if not pending:
            self._at(self.now, partial(self._resume, host, program))
