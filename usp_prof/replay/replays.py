"""Replays of a run: as it was recorded, and with edits; plan, timeline and steps of the recording are made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import replay
from usp_prof.replay.plan import Plan, make_plan
from usp_prof.replay.step_times import StepTimes, step_times

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph, Timeline
    from usp_prof.tables.table_set import TableSet


def unedited(tables: TableSet) -> StepTimes:
    """Replay the run as it is: how well the graph explains what was measured."""
    return tables.memo(
        "whatif unedited", lambda: step_times(tables, graph_of(tables), timeline_of(tables, graph_of(tables)))
    )


def timeline_of(tables: TableSet, graph: Graph) -> Timeline:
    """Replay a graph of the run: the recorded one, or what edits made of it."""
    recorded = graph_of(tables)
    if graph is recorded:
        return tables.memo("whatif timeline", lambda: replay(recorded, _plan_of(tables)))
    return replay(graph, _plan_of(tables) if graph.waits_as(recorded) else None)


def _plan_of(tables: TableSet) -> Plan:
    """Give the order in which the run is replayed; it serves every graph that waits as the recorded one does."""
    return tables.memo("whatif plan", lambda: make_plan(graph_of(tables)))
