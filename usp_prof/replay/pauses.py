"""Pauses: times in which a rank's host does nothing for much longer than usual.

Garbage collection, a checkpoint or another process on the core stops the host. A pause is known by its length, compared
with other times of the same host or with the same place in other steps and on other ranks. It may be before a call,
within a launch that did not wait for room in a queue, or before the first recorded call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, numbered, rows_by_code
from usp_prof.replay.full_queues import LEAST_DEPTH
from usp_prof.replay.graph import NEVER, EdgeKind, Graph, NodeKind
from usp_prof.replay.host_gaps import allocating, hosts_seen, loading, on_common_clock, think_times, thinks
from usp_prof.replay.peers import peer_groups
from usp_prof.replay.rank_clocks import rank_clocks
from usp_prof.tables.table_set import TableSet

PAUSE_NS = 2_000_000
"""A shorter pause of the host cannot be distinguished from ordinary work."""
LONG_FOR_PLACE_NS = 1_000_000
"""The same compared with the same place in other steps. In 14 recorded GPU runs, this shows the same pauses."""
SLICE_NS = 50_000_000
"""Time slice: CPU ranks share cores and wait up to this long for one, so several such waits per step are not pauses."""
PAUSES_A_STEP = 10
"""Assumed number of pauses per step, left out of the ordinary think times of short recordings."""
PAUSE_RATIO = 20.0
"""A pause is at least this multiple of the 99th percentile of the rank's ordinary think times."""
STANDS_OUT = 3.0
"""Think times that are at least this multiple of all shorter ones are pauses, even if ordinary ones are long. On 15
recorded GPU runs, such steps between unexplained think times of hosts without a fault were up to 2.74."""
FEWEST_ALIKE = 4
"""Minimum number of steps, over ranks, with the same calls. Their times at one place tell what is usual there."""
FULL = 0.5
"""A queue that contains at least this share of the largest number of pending launches may be full."""


class PausePlace(IntEnum):
    """Where a pause is, relative to the host call of its node."""

    BEFORE_CALL = 0
    WITHIN_CALL = 1
    BEFORE_FIRST_CALL = 2


@dataclass(frozen=True, slots=True, eq=False)
class Pauses:
    """Parallel arrays: one entry per pause."""

    node: Ints
    place: Ints
    """Values of `PausePlace`."""
    excess_ns: Ints
    """How long the host paused, beyond what is usual at this place."""

    def take(self, rows: Ints | Flags) -> Pauses:
        """Return some of the pauses."""
        return Pauses(self.node[rows], self.place[rows], self.excess_ns[rows])

    def of_ranks(self, graph: Graph, ranks: Collection[int]) -> Pauses:
        """Return the pauses of these ranks' hosts."""
        return self.take(np.isin(graph.nodes.rank[self.node], list(ranks)))

    def by_node(self, graph: Graph, place: PausePlace) -> Ints:
        """Return the length of each node's pause at a place; 0 without one."""
        is_there = self.place == place
        excess_ns = np.zeros(len(graph.nodes), np.int64)
        np.maximum.at(excess_ns, self.node[is_there], self.excess_ns[is_there])
        return excess_ns


def pauses(graph: Graph, tables: TableSet) -> Pauses:
    """Return the pauses of all hosts, memoized; waiting for data is not a pause."""
    key = ("pauses", id(tables))
    return graph.memo(key, lambda: (tables, _pauses(graph, tables)))[1]  # a reference keeps the id in the key valid


def long_thinking(graph: Graph, tables: TableSet) -> Ints:
    """Return the nodes before which a host works for itself or pauses, for much longer than before others."""
    return np.flatnonzero(_long_thinking(graph, tables, _own_think_times(graph, tables)))


def _pauses(graph: Graph, tables: TableSet) -> Pauses:
    own_ns = _own_think_times(graph, tables)
    long_for_rank_ns, alike_steps = _long_thinking(graph, tables, own_ns), _alike_steps(graph, tables)
    is_work = _recurs_on_all_ranks(graph, own_ns, alike_steps)
    is_work &= _in_op_of_host(graph, tables, np.flatnonzero(long_for_rank_ns))
    long_for_rank_ns[is_work] = 0
    excess_ns = {
        PausePlace.BEFORE_CALL: np.maximum(long_for_rank_ns, _long_for_place(own_ns, alike_steps)),
        PausePlace.WITHIN_CALL: _long_calls(graph, tables),
        PausePlace.BEFORE_FIRST_CALL: _late_starts(graph, tables),
    }
    nodes = {place: np.flatnonzero(ns) for place, ns in excess_ns.items()}
    return Pauses(
        np.concatenate(list(nodes.values())),
        np.repeat([int(place) for place in nodes], [len(rows) for rows in nodes.values()]),
        np.concatenate([excess_ns[place][rows] for place, rows in nodes.items()]),
    )


def _own_think_times(graph: Graph, tables: TableSet) -> Ints:
    """Return the think time before each node, without data loading and memory allocation."""
    nodes, clocks, think = graph.nodes, rank_clocks(tables), think_times(graph)
    own_ns = think.copy()
    for rank in _seen(graph, tables):
        rows = nodes.of_rank(rank)
        rows = rows[think[rows] > 0]
        for busy in (loading(tables, rank), allocating(tables.columns("launches", rank))):
            host_time = on_common_clock(busy, clocks, rank)
            own_ns[rows] -= host_time.within(nodes.start[rows] - think[rows], nodes.start[rows])
    return own_ns


def _seen(graph: Graph, tables: TableSet) -> Iterator[int]:
    return (rank for rank, is_seen in hosts_seen(graph, tables).items() if is_seen)


def _long_thinking(graph: Graph, tables: TableSet, own_ns: Ints) -> Ints:
    """Return the pauses that are long for their rank, by the node after them; rank by rank.

    1. A rank's ordinary think time is its 99th percentile, or that of the median rank if that is less.
    2. A pause is a think time of at least PAUSE_NS and PAUSE_RATIO times the ordinary one, not counting data loading
       and memory allocation. With a device, think times that stand out from all others are pauses, too.
    3. A CPU rank waits for its turn on a core. If that happens more than once per step, only longer waits are pauses.
    """
    nodes, think = graph.nodes, think_times(graph)
    paused_ns = np.zeros(len(nodes), np.int64)
    # By rank: its nodes with think time before them.
    thinking = {}
    for rank in _seen(graph, tables):
        rows = nodes.of_rank(rank)
        rows = rows[think[rows] > 0]
        if len(rows):
            thinking[rank] = rows
    usual_ns = {rank: _usual(graph, think, rows) for rank, rows in thinking.items()}
    for rank, usual in usual_ns.items():
        has_device = bool(nodes.of_host[thinking[rank]].any())
        # A host that always pauses stands out from other ranks. On a CPU, ranks may differ in what they wait for.
        ordinary = min(usual, float(np.median(list(usual_ns.values())))) if has_device else usual
        rows = thinking[rank]
        steps = len(numbered(nodes.step[rows])[0])
        least = max(PAUSE_NS, PAUSE_RATIO * ordinary)
        if has_device:
            least = min(least, _least_that_stands_out(own_ns[rows], steps))
        elif (own_ns[rows] > least).sum() > steps:
            least = max(SLICE_NS, PAUSE_RATIO * usual)
        is_long = own_ns[rows] > least
        paused_ns[rows[is_long]] = think[rows[is_long]]
    return paused_ns


def _usual(graph: Graph, took_ns: Ints, rows: Ints) -> float:
    """Return the 99th percentile of a rank's times; with few of them, leave out each step's longest instead."""
    steps = len(numbered(graph.nodes.step[rows])[0])
    longest = (PAUSES_A_STEP if graph.nodes.of_host[rows].any() else 3) * steps
    return float(np.quantile(took_ns[rows], min(0.99, max(0.5, 1 - longest / len(rows)))))


def _least_that_stands_out(own_ns: Ints, steps: int) -> float:
    """Return a limit below the few think times that are much longer than all others, or infinity without any."""
    longest = -np.sort(-own_ns)[: PAUSES_A_STEP * steps + 1]
    stands_out = (longest[:-1] >= STANDS_OUT * longest[1:]) & (longest[:-1] > PAUSE_NS)
    return float(longest[1:][stands_out].max(initial=PAUSE_NS)) if stands_out.any() else float("inf")


LEAST_COVERED_BY_OPS = 0.8
"""Share of a think time that ops must cover to be its cause."""


def _in_op_of_host(graph: Graph, tables: TableSet, rows: Ints) -> Flags:
    """Mark those of the nodes before which the host was in an op that launches nothing, such as its own optimizer."""
    nodes, clocks, think = graph.nodes, rank_clocks(tables), think_times(graph)
    is_in_op = np.zeros(len(nodes), dtype=bool)
    for rank in distinct(nodes.rank[rows]).tolist():
        ops, launched = tables.columns("ops", rank), np.sort(tables.columns("launches", rank)["start_ns"])
        begin, end = ops["start_ns"], ops["start_ns"] + ops["dur_ns"]
        alone = np.searchsorted(launched, begin) == np.searchsorted(launched, end)
        busy = on_common_clock((begin[alone], end[alone]), clocks, rank)
        own = rows[nodes.rank[rows] == rank]
        is_in_op[own] = (
            busy.within(nodes.start[own] - think[own], nodes.start[own]) >= LEAST_COVERED_BY_OPS * think[own]
        )
    return is_in_op


def _alike_steps(graph: Graph, tables: TableSet) -> list[Ints]:
    """Return groups of steps with the same calls, of one or several ranks; a row has the calls of one step, in order.

    So a column of a group is one place of a step: the same call in all of its steps.
    """
    nodes = graph.nodes
    launched_name = np.full(len(nodes), -1)
    launch = graph.edges.take(graph.edges.kind == EdgeKind.LAUNCH)
    launched_name[launch.source] = nodes.name[launch.target]
    # A launch that waited for room in a queue has a second node.
    is_call = thinks(graph) & nodes.of_host & (nodes.kind != NodeKind.ADMITTED)
    steps_by_calls: dict[bytes, list[Ints]] = {}
    for rank in _seen(graph, tables):
        rows = nodes.of_rank(rank)
        rows = rows[is_call[rows] & graph.measured[rows] & (nodes.step[rows] >= 0)]
        for rows_of_step in rows_by_code(nodes.step[rows]).values():
            calls = rows[rows_of_step]
            calls = calls[np.argsort(nodes.start[calls], kind="stable")]
            names = np.append(launched_name[calls], nodes.kind[calls]).tobytes()
            steps_by_calls.setdefault(names, []).append(calls)
    return [np.array(steps) for steps in steps_by_calls.values() if len(steps) > 1]


def _long_for_place(own_ns: Ints, alike_steps: list[Ints]) -> Ints:
    """Return the pauses that are STANDS_OUT times as long as most times at their place, by the node after them."""
    paused_ns = np.zeros(len(own_ns), np.int64)
    for calls in (steps for steps in alike_steps if len(steps) >= FEWEST_ALIKE):
        usual, most = np.quantile(own_ns[calls], (0.5, 0.75), axis=0, method="lower")
        excess_ns = own_ns[calls] - usual
        is_long = (excess_ns > LONG_FOR_PLACE_NS) & (own_ns[calls] > STANDS_OUT * most)
        paused_ns[calls[is_long]] = np.rint(excess_ns)[is_long]
    return paused_ns


def _recurs_on_all_ranks(graph: Graph, own_ns: Ints, alike_steps: list[Ints]) -> Flags:
    """Mark the nodes before which all of several ranks take about as long at this place."""
    recurs = np.zeros(len(own_ns), dtype=bool)
    for calls in alike_steps:
        steps_of_rank = list(rows_by_code(graph.nodes.rank[calls[:, 0]]).values())
        if len(steps_of_rank) > 1:
            medians = [np.median(own_ns[calls[steps]], axis=0) for steps in steps_of_rank]
            recurs[calls] = own_ns[calls] < STANDS_OUT * np.min(medians, axis=0)
    return recurs


def _long_calls(graph: Graph, tables: TableSet) -> Ints:
    """Return the pauses within launch calls, by node: beyond the usual length of the rank's launches.

    A launch after which nearly as many are pending as ever may have waited for room in a queue, and is none.
    """
    nodes = graph.nodes
    paused_ns = np.zeros(len(nodes), np.int64)
    launch = graph.edges.take(graph.edges.kind == EdgeKind.LAUNCH)
    launches_of_rank = rows_by_code(nodes.rank[launch.source])
    for rank in set(launches_of_rank).intersection(_seen(graph, tables)):
        of_rank = launches_of_rank[rank]
        rows = distinct(launch.source[of_rank])
        rows = rows[(nodes.kind[rows] == NodeKind.HOST) & graph.measured[rows]]
        if not len(rows):
            continue
        took_ns = graph.duration[rows]
        usual = _usual(graph, graph.duration, rows)
        launched, begun = np.sort(nodes.start[launch.source[of_rank]]), np.sort(nodes.start[launch.target[of_rank]])
        pending = np.searchsorted(launched, nodes.end[rows]) - np.searchsorted(begun, nodes.end[rows])
        is_full = pending >= max(LEAST_DEPTH, FULL * pending.max())
        is_long = (took_ns > max(PAUSE_NS, PAUSE_RATIO * usual)) & ~is_full
        paused_ns[rows[is_long]] = took_ns[is_long] - round(usual)
    return paused_ns


def _late_starts(graph: Graph, tables: TableSet) -> Ints:
    """Return the pauses before the first recorded call of each rank, by its node.

    The trace begins with an op or a mark before this call. That time is compared with the peers'.
    """
    nodes, clocks = graph.nodes, rank_clocks(tables)
    paused_ns = np.zeros(len(nodes), np.int64)
    for group in peer_groups(tables, graph):
        first, waited_ns = {}, {}
        for rank in set(group).intersection(_seen(graph, tables)):
            rows = nodes.of_rank(rank)
            rows = rows[nodes.of_host[rows] & (graph.earliest[rows] > NEVER)]
            if not len(rows):
                continue
            first[rank] = int(rows[np.argmin(nodes.start[rows])])
            opened = nodes.start[first[rank]][np.newaxis]
            marks = tables.columns("annotations", rank)
            begun = np.append(tables.columns("ops", rank)["start_ns"], marks["start_ns"][~marks["on_device"]])
            began = np.append(clocks.align_host(rank, begun), opened).min(keepdims=True)
            loader = on_common_clock(loading(tables, rank), clocks, rank)
            waited_ns[rank] = int((opened - began - loader.within(began, opened))[0])
        for rank, waited in waited_ns.items():
            of_peers = [ns for peer, ns in waited_ns.items() if peer != rank]
            if of_peers and waited - np.median(of_peers) > PAUSE_NS and waited > STANDS_OUT * max(of_peers):
                paused_ns[first[rank]] = waited - round(float(np.median(of_peers)))
    return paused_ns
