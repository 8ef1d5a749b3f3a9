"""What does the replay make of the run as it was recorded? Its plan, its timeline, its steps: each made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import as_measured, replay
from usp_prof.replay.plan import Plan, make_plan
from usp_prof.replay.step_times import StepTimes, step_times

if TYPE_CHECKING:
    from usp_prof.replay.graph import Timeline
    from usp_prof.tables.table_set import TableSet


def unedited(tables: TableSet) -> StepTimes:
    """Replay the run as it is: how well the graph explains what was measured."""
    return tables.memo("whatif unedited", lambda: step_times(tables, graph_of(tables), timeline_of(tables)))


def timeline_of(tables: TableSet) -> Timeline:
    """Give when everything ran, as the replay has it."""
    return tables.memo("whatif timeline", lambda: _timeline(tables))


def _timeline(tables: TableSet) -> Timeline:
    graph = graph_of(tables)
    return as_measured(graph) or replay(graph, plan_of(tables))


def plan_of(tables: TableSet) -> Plan:
    """Give the order in which the run is replayed; it serves every graph that waits as this one does."""
    return tables.memo("whatif plan", lambda: make_plan(graph_of(tables)))
