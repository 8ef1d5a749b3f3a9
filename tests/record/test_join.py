from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from usp_prof.record.join import FlightEntry, family, join
from usp_prof.record.trace_text import TextEvent

OPERATORS = {"gloo:all_reduce": "c10d::allreduce_", "gloo:all_gather": "c10d::_allgather_base_"}
US = 1000


@dataclass
class Simulation:
    """Groups with two workers each that run their collectives in order, like gloo."""

    events: list[TextEvent] = field(default_factory=list)
    operators: list[TextEvent] = field(default_factory=list)
    entries: list[FlightEntry] = field(default_factory=list)
    truth: list[tuple[str, int]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


def event(name: str, thread: int, start_ns: int, duration_ns: int, elements: int) -> TextEvent:
    return TextEvent(0, 0, name, thread, start_ns, duration_ns, {"Input Dims": [[elements]]})


def simulate(calls: list[tuple[int, int, int, int]], groups: int, before: int = 0) -> Simulation:
    """Each call: group, size, pause before it, and duration (in microseconds). The first calls were not recorded."""
    simulation = Simulation(groups=[f"g{group}" for group in range(groups)])
    workers = {group: [(0, 100 + 2 * group), (0, 101 + 2 * group)] for group in range(groups)}
    now, sequences = 10_000 * US, dict.fromkeys(range(groups), 0)
    events_with_keys = []
    for place, (group, size, pause, length) in enumerate(calls):
        now += pause * US
        sequences[group] += 1
        name = f"g{group}"
        gloo = "gloo:all_reduce" if size % 2 else "gloo:all_gather"
        entry = FlightEntry(name, "", sequences[group], gloo, now + 20 * US, size, size, "Float")
        simulation.entries.append(entry)
        free, thread = heapq.heappop(workers[group])
        start = max(free, now + 25 * US)
        heapq.heappush(workers[group], (start + length * US, thread))
        if place >= before:
            simulation.operators.append(event(OPERATORS[gloo], 1, now, 40 * US, size))
            events_with_keys.append((event(gloo, thread, start, length * US, size), (name, sequences[group])))
        now += 200 * US
    random.Random(0).shuffle(events_with_keys)  # noqa: S311 - the file holds them in no order
    simulation.events = [event_of_pair for event_of_pair, _ in events_with_keys]
    simulation.truth = [truth for _, truth in events_with_keys]
    return simulation


def join_events(simulation: Simulation) -> list[tuple[str, int] | None]:
    matches = join(simulation.events, simulation.operators, simulation.entries, simulation.groups)
    return [
        (matches[place].entry.group, matches[place].entry.sequence) if place in matches else None
        for place in range(len(simulation.events))
    ]


CALLS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 300), st.integers(50, 900)), min_size=1, max_size=40
)


@settings(max_examples=60)
@given(calls=CALLS, before=st.integers(0, 5))
def test_every_event_gets_its_call_if_sizes_distinguish_the_groups(
    calls: list[tuple[int, int, int, int]], before: int
) -> None:
    distinct = [(group, size + 10 * group, pause, length) for group, size, pause, length in calls]
    simulation = simulate(distinct, 3, before)
    assert join_events(simulation) == simulation.truth


@settings(max_examples=60)
@given(rounds=st.integers(2, 8), pause=st.integers(0, 100), length=st.integers(50, 900), before=st.integers(0, 3))
def test_worker_order_distinguishes_groups_with_the_same_calls(
    rounds: int, pause: int, length: int, before: int
) -> None:
    simulation = simulate([(group, 7, pause, length) for _ in range(rounds) for group in (0, 1)], 2, before)
    workers = {pooled.thread for pooled in simulation.events}
    if len(workers) == 4:  # both workers of both groups were seen
        assert join_events(simulation) == simulation.truth


def test_a_call_that_outlives_the_window_does_not_shift_others() -> None:
    simulation = simulate([(0, 3, 0, 60)] * 5, 1)
    last = max(range(5), key=lambda place: simulation.truth[place])
    del simulation.events[last], simulation.truth[last]
    assert join_events(simulation) == simulation.truth


def test_an_event_without_a_call_stays_unmatched() -> None:
    simulation = simulate([(0, 3, 0, 60)] * 3, 1)
    simulation.events.append(event("gloo:all_gather", 100, simulation.events[0].start_ns + 5, 10, 99))
    assert join_events(simulation) == [*simulation.truth, None]


def test_an_operator_of_another_kind_is_not_matched() -> None:
    simulation = simulate([(0, 3, 0, 60)], 1)
    simulation.operators = [event("c10d::broadcast_", 1, simulation.operators[0].start_ns, 40 * US, 3)]
    assert join_events(simulation) == [None]


def test_delays_distinguish_worker_threads_in_any_order() -> None:
    simulation = simulate([(0, 3, 0, 60), (1, 5, 0, 60), (0, 3, 0, 60), (1, 5, 0, 60), (1, 5, 0, 60)], 2)
    swapped = {100: 102, 101: 103, 102: 100, 103: 101}
    simulation.events = [
        event(pooled.name, swapped[pooled.thread], pooled.start_ns, pooled.duration_ns, pooled.args["Input Dims"][0][0])
        for pooled in simulation.events
    ]
    assert join_events(simulation) == simulation.truth


def test_a_trace_without_shapes_is_joined_by_names_and_order() -> None:
    simulation = simulate([(0, 3, 0, 60), (0, 4, 0, 60), (0, 5, 0, 60)], 1)
    simulation.events = [
        TextEvent(0, 0, shaped.name, shaped.thread, shaped.start_ns, 1, {}) for shaped in simulation.events
    ]
    assert join_events(simulation) == simulation.truth


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_reduce", "allreduce"),
        ("c10d::allreduce_coalesced_", "allreduce"),
        ("c10d::_allgather_base_", "allgather"),
        ("c10d::allgather_into_tensor_coalesced_", "allgather"),
        ("c10d::_reduce_scatter_base_", "reducescatter"),
        ("c10d::alltoall_base_", "alltoall"),
        ("gloo:all_to_all", "alltoall"),
        ("c10d::monitored_barrier_", "barrier"),
    ],
)
def test_gloo_events_and_operators_have_the_same_kinds(name: str, kind: str) -> None:
    assert family(name) == kind
