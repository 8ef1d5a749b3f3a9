"""How are several edited graphs of one run replayed? At once, as far as the recorded run's plan serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import at_once, replay, replay_all
from usp_prof.replay.recorded import plan_of, timeline_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from usp_prof.replay.graph import Graph, Timeline
    from usp_prof.replay.plan import Plan
    from usp_prof.tables.table_set import TableSet


def replay_each(tables: TableSet, graphs: Sequence[Graph]) -> list[Timeline]:
    """Replay edited graphs of a run; one that is there several times, or is the recorded one, costs nothing more."""
    base = graph_of(tables)
    known = {id(base): timeline_of(tables)} if any(graph is base for graph in graphs) else {}
    return replayed(graphs, base, lambda: plan_of(tables), known)


def replayed(
    graphs: Sequence[Graph], base: Graph, plan: Callable[[], Plan], known: dict[int, Timeline]
) -> list[Timeline]:
    """Replay graphs, each once: together those that wait as `base` does, whose plan serves them; `known` are by id."""
    wanted = {id(graph): graph for graph in graphs if id(graph) not in known}
    same = [graph for graph in wanted.values() if graph.waits_as(base)]
    found = dict(known)
    width = at_once(base)
    for low in range(0, len(same), width):
        some = same[low : low + width]
        found.update(zip(map(id, some), replay_all(some, plan()), strict=True))
    found.update((key, replay(graph)) for key, graph in wanted.items() if not graph.waits_as(base))
    return [found[id(graph)] for graph in graphs]
