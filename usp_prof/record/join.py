"""Join: match gloo's events with the flight recorder's entries, which have group, sequence number, sizes and dtype.

On gloo a trace shows that *some* group ran an all-reduce on a worker thread. The flight recorder has the group,
sequence number and time of each call, but not when it ran. They are matched by three facts:

1. An entry is created inside the `c10d::` operator that called it. Entries outside of all recorded operators are not in
   the window. The operator also distinguishes a reduce-scatter from an all-reduce, which gloo runs identically.
2. A worker thread serves a single group, and a group's workers take its collectives first in, first out. So the events
   on a group's threads, merged, are the group's entries in order, for each kind (name and size).
3. Workers are started with their group, so thread numbers increase in the order in which groups were created. This
   decides if two groups run the same kinds of collectives.

There are few collectives compared with events, so these are plain loops.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from usp_prof.record import _torch_private
from usp_prof.record.trace_text import TextEvent


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One collective as called on this rank."""

    group: str
    description: str
    sequence: int
    name: str
    created_ns: int
    in_elements: int
    out_elements: int
    dtype: str


def recorded_entries() -> list[FlightEntry] | None:
    """Return the flight recorder's current entries in order of calls, or `None` if torch has no flight recorder."""
    entries = _torch_private.flight_entries()
    return None if entries is None else read_entries(entries)


def read_entries(entries: Iterable[Mapping[str, Any]]) -> list[FlightEntry]:
    """Parse the flight recorder's entries; point-to-point entries, which have a separate sequence, are omitted."""
    collectives = [_entry(entry) for entry in entries if not entry.get("is_p2p")]
    return sorted(collectives, key=lambda entry: entry.created_ns)


def elements(shapes: Sequence[Sequence[int]]) -> int:
    """Return the total number of elements of several tensors."""
    return sum(prod(shape) for shape in shapes)


def _entry(entry: Mapping[str, Any]) -> FlightEntry:
    name, description = entry["process_group"]
    dtypes = [*entry.get("input_dtypes", ()), *entry.get("output_dtypes", ())]
    return FlightEntry(
        group=str(name),
        description=str(description),
        sequence=int(entry["collective_seq_id"]),
        name=str(entry["profiling_name"]),
        created_ns=int(entry["time_created_ns"]),
        in_elements=elements(entry.get("input_sizes", ())),
        out_elements=elements(entry.get("output_sizes", ())),
        dtype=str(dtypes[0]) if dtypes else "",
    )


Kind = tuple[str, int]

_SLACK_NS = 50_000
"""Kineto and the flight recorder use different clocks of the same machine, which agree to a few microseconds."""
_MOST_WORKERS = 8
_FAMILIES = {"allreduce": {"allreduce", "reducescatter"}}
"""Operators that can appear as a gloo event of another name; gloo has no native reduce-scatter."""


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded collective: its entry, the operator that called it, and the kind of gloo events that it ran as."""

    entry: FlightEntry
    operator: TextEvent
    kind: Kind


def join(
    events: Sequence[TextEvent], operators: Sequence[TextEvent], entries: Sequence[FlightEntry], groups: Sequence[str]
) -> dict[int, Call]:
    """Return the collective that each event ran, by index in `events`; `groups` are in order of creation."""
    sized = any("Input Dims" in event.args for event in events)
    calls: dict[str, list[Call]] = defaultdict(list)
    for entry, operator in calls_within(entries, operators):
        calls[entry.group].append(Call(entry, operator, _kind(entry.name, entry.in_elements if sized else 0)))
    threads: dict[int, list[int]] = defaultdict(list)  # indexes of each worker thread's events, by start
    kinds = [_kind(event.name, _event_elements(event) if sized else 0) for event in events]
    for place in sorted(range(len(events)), key=lambda place: events[place].start_ns):
        threads[events[place].thread].append(place)
    order = [name for name in groups if name in calls] + sorted(set(calls) - set(groups))
    owners = _owners(threads, calls, kinds, events, order)
    call_of_event: dict[int, Call] = {}
    for group in order:
        of_group = [place for thread, owner in owners.items() if owner == group for place in threads[thread]]
        call_of_event.update(_pairs(of_group, calls[group], kinds, events))
    return call_of_event


def calls_within(entries: Iterable[FlightEntry], operators: Iterable[TextEvent]) -> list[tuple[FlightEntry, TextEvent]]:
    """Pair each entry with the innermost recorded operator that called it; entries without one are omitted."""
    ordered = sorted(operators, key=lambda operator: operator.start_ns)
    starts = [operator.start_ns for operator in ordered]
    pairs = []
    for entry in entries:
        last = bisect_right(starts, entry.created_ns + _SLACK_NS)
        near = [call for call in ordered[max(0, last - 16) : last] if _called(call, entry)]
        if near:
            pairs.append((entry, min(near, key=lambda call: (_distance(call, entry.created_ns), -call.start_ns))))
    return pairs


def family(name: str) -> str:
    """Return the collective of a gloo event or operator: `c10d::_allgather_base_` is an allgather."""
    word = name.rpartition("::")[2].rpartition(":")[2]
    parts = [part for part in word.split("_") if part not in {"", "base", "coalesced", "into", "tensor", "monitored"}]
    return "".join(parts)


def _called(operator: TextEvent, entry: FlightEntry) -> bool:
    wanted = family(entry.name)
    if family(operator.name) not in _FAMILIES.get(wanted, {wanted}):
        return False
    return _distance(operator, entry.created_ns) <= _SLACK_NS


def _distance(operator: TextEvent, moment: int) -> int:
    return max(operator.start_ns - moment, moment - operator.end_ns, 0)


def _kind(name: str, size: int) -> Kind:
    return (family(name), size)


def _event_elements(event: TextEvent) -> int:
    dims = event.args.get("Input Dims", ())
    return elements([shape for shape in dims if all(isinstance(size, int) for size in shape)])


def _owners(
    threads: Mapping[int, list[int]],
    calls: Mapping[str, list[Call]],
    kinds: Sequence[Kind],
    events: Sequence[TextEvent],
    order: Sequence[str],
) -> dict[int, str]:
    """Assign each worker thread its group: blocks of adjacent threads with the lowest total misfit."""
    numbers = sorted(threads)
    nobody: tuple[str, ...] = ()
    # best[n]: lowest misfit of assigning the first n threads to the groups so far, and the owner of each thread.
    best = [(0, nobody)] + [(1 << 60, nobody)] * len(numbers)
    for group in order:
        following = []
        for stop in range(len(numbers) + 1):
            options = []
            for start in range(max(0, stop - _MOST_WORKERS), stop + 1):
                cost, owners = best[start]
                places = [place for thread in numbers[start:stop] for place in threads[thread]]
                misfit = _misfit(places, calls[group], kinds, events)
                options.append((cost + misfit, (*owners, *[group] * (stop - start))))
            following.append(min(options, key=lambda option: option[0]))
        best = following
    if best[-1][0] == 0:
        return dict(zip(numbers, best[-1][1], strict=True))
    return {thread: _likeliest(places, calls, kinds, events) for thread, places in threads.items() if calls}


def _misfit(places: list[int], calls: Sequence[Call], kinds: Sequence[Kind], events: Sequence[TextEvent]) -> int:
    """Count unpaired events and calls, and events before their call; calls after the last event do not count."""
    kinds_of_events, kinds_of_calls = Counter(kinds[place] for place in places), Counter(call.kind for call in calls)
    if not kinds_of_events:
        return sum(kinds_of_calls.values())
    last = max(events[place].start_ns for place in places)
    open_calls = Counter(call.kind for call in calls if call.entry.created_ns > last)
    alone = sum((kinds_of_events - kinds_of_calls).values()) + sum(
        (kinds_of_calls - kinds_of_events - open_calls).values()
    )
    # Events that start before the call with which they would be paired.
    early = sum(
        events[place].start_ns + _SLACK_NS < call.entry.created_ns
        for place, call in _pairs(places, calls, kinds, events)
    )
    return alone + early


def _likeliest(
    places: Sequence[int], calls: Mapping[str, list[Call]], kinds: Sequence[Kind], events: Sequence[TextEvent]
) -> str:
    """Return the group whose calls of the same kinds were made most shortly before the thread's events."""

    def delay(group: str) -> float:
        moments: dict[Kind, list[int]] = defaultdict(list)
        for call in calls[group]:
            moments[call.kind].append(call.entry.created_ns)
        total = 0.0
        for place in places:
            call_times = moments.get(kinds[place], [])
            before = bisect_right(call_times, events[place].start_ns + _SLACK_NS)
            total += min(events[place].start_ns - call_times[before - 1], 10**9) if before else 10**9
        return total

    return min(calls, key=delay)


def _pairs(
    places: Iterable[int], calls: Iterable[Call], kinds: Sequence[Kind], events: Sequence[TextEvent]
) -> list[tuple[int, Call]]:
    """Pair a group's events with its calls by kind: in order, or with the nearest earlier call if some are missing."""
    waiting: dict[Kind, list[Call]] = defaultdict(list)  # in the order of their sequence numbers
    for call in sorted(calls, key=lambda call: call.entry.sequence):
        waiting[call.kind].append(call)
    running: dict[Kind, list[int]] = defaultdict(list)
    for place in sorted(places, key=lambda place: events[place].start_ns):
        running[kinds[place]].append(place)
    pairs: list[tuple[int, Call]] = []
    for kind, places_of_kind in running.items():
        waiting_calls = waiting[kind]
        if len(places_of_kind) == len(waiting_calls):
            pairs += zip(places_of_kind, waiting_calls, strict=True)
            continue
        # If some are missing: from the last event backward, each takes the latest call made before the event started.
        left = list(waiting_calls)
        for place in reversed(places_of_kind):
            while left and left[-1].entry.created_ns > events[place].start_ns + _SLACK_NS:
                left.pop()
            if left:
                pairs.append((place, left.pop()))
    return pairs
