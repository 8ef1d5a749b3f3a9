"""Job slowdown: the measured step relative to an ideal run with equal ranks, and the share of each part of the run.

S = T / T_ideal. The share of a part is the fraction of the loss T - T_ideal that disappears if only that part is made
ideal. Shares overlap and need not add up to one.

A call is replayed only if the parts of all its members are matched. Otherwise a rank may wait for another without the
replay showing it. If such communication exposes more of the step than the loss, S is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from usp_prof.columns.arrays import Flags
from usp_prof.columns.intervals import Intervals, union
from usp_prof.columns.rows import lookup
from usp_prof.columns.table import Columns
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import LEAST_LOSS, IdealStep
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Timeline
from usp_prof.replay.node_work import work_of
from usp_prof.replay.representatives import Representatives
from usp_prof.replay.step_times import unedited
from usp_prof.tables import calls
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edited import Edited
from usp_prof.whatif.edits.balance import KINDS
from usp_prof.whatif.host_steps import without_hosts
from usp_prof.whatif.predict import predict


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the run, the step with only that part made ideal, and its share of the loss."""

    dimension: str
    name: str
    step_ns: float
    share: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The ideal step, and the parts of the run that cause the loss, sorted by dimension and share."""

    overall: IdealStep
    parts: tuple[Part, ...]
    replayed: Representatives
    """The ranks that were replayed."""

    @property
    def slowdown(self) -> float | None:
        """S: the step divided by its ideal; `None` if unknown."""
        return self.overall.slowdown


IDEAL = Edit("ideal")
"""The edit that makes all ranks perform like their peers."""


def ideal_step(tables: TableSet, made: tuple[Edited, Timeline] | None = None) -> IdealStep:
    """Return the step of an ideal run in which all ranks perform like their peers, memoized.

    `made` is the run with the edit `IDEAL` and its replay, if they are at hand.
    """
    return tables.memo("ideal step", lambda: _ideal_step(tables, made))


def why_no_ideal(tables: TableSet) -> str:
    """Return why the run has no ideal step to replay, or an empty text if it has one."""
    if not len(unedited(tables).step):
        return _why_no_steps(tables)
    if without_hosts(tables, tables.ranks):
        return tables.incomparable or "only device activity was recorded, not the hosts"
    return tables.incomparable


def _ideal_step(tables: TableSet, made: tuple[Edited, Timeline] | None) -> IdealStep:
    measured = unedited(tables)
    step_ns = measured.mean_measured_ns if len(measured.step) else 0.0
    if unknown := why_no_ideal(tables):
        return IdealStep(step_ns, 0.0, unknown=unknown)
    try:
        prediction = predict(tables, [IDEAL], made)
    except UsageError:  # no compute and no call has a peer
        ideal = IdealStep(step_ns, step_ns)
    else:
        ideal = IdealStep(prediction.before_ns, prediction.after_ns, prediction.error_fraction)
    if not ideal.step_ns:
        return IdealStep(0.0, 0.0, unknown="the replayed steps take no time")
    unseen = unmatched_fraction(tables)
    if unseen > max(LEAST_LOSS, 1 - ideal.ideal_ns / ideal.step_ns):
        reason = f"{unseen:.0%} of the step waits in communication whose other participants are unknown"
        return IdealStep(ideal.step_ns, 0.0, unknown=reason)
    return ideal


def _why_no_steps(tables: TableSet) -> str:
    """Return why the run has no step to replay."""
    if not any(len(tables.columns("activities", rank)) for rank in tables.ranks):
        return "no device work was recorded"
    return "no step with device work was found"


def unmatched_fraction(tables: TableSet) -> float:
    """Return the share of step time in which ranks only communicate with unmatched members."""
    exposed_ns = wall_ns = 0
    for rank in tables.ranks:
        steps = tables.columns("steps", rank)
        activities = tables.columns("activities", rank)
        computes = _ranges(activities, activities.matches("kind", "compute"))
        unmatched = _ranges(activities, activities.matches("kind", "communication") & ~_is_matched(tables, rank))
        exposed_ns += int((unmatched - computes).within(steps["start_ns"], steps["end_ns"]).sum())
        wall_ns += int((steps["end_ns"] - steps["start_ns"]).sum())
    return exposed_ns / wall_ns if wall_ns else 0.0


def _is_matched(tables: TableSet, rank: int) -> Flags:
    """Mark a rank's activities that belong to a call whose members were all read."""
    matched = calls.match_calls(tables)
    parts = matched.parts.of_rank(rank, "call", "part")
    of_part = np.zeros(len(tables.columns("collectives", rank)), dtype=bool)
    of_part[parts["part"]] = matched.columns()["complete"][parts["call"]]
    return lookup(of_part, tables.columns("activities", rank)["collective"], missing=False)


def _ranges(activities: Columns, rows: Flags) -> Intervals:
    start = activities["start_ns"][rows]
    return union(start, start + activities["dur_ns"][rows])


def slowdown(tables: TableSet) -> Slowdown:
    """Return the job slowdown from a replay of all ranks; see `slowdown_on`."""
    return slowdown_on(Representatives(tables))


def slowdown_on(replayed: Representatives, ideal: IdealStep | None = None) -> Slowdown:
    """Return the job slowdown from a replay of the ideal run, or from a given ideal step, and the share of each part.

    `parts` is empty if the ideal is unknown, if no part can be made ideal, or if the loss does not exceed the error of
    the prediction. In the last case, the shares would be noise.
    """
    tables = replayed.tables
    step = ideal or ideal_step(tables)
    step = replace(step, error_fraction=step.error_fraction + replayed.doubt)
    if not step.is_loss:
        return Slowdown(step, (), replayed)
    parts = [part for key, name in _parts(tables) if (part := part_of_loss(tables, step, key, name))]
    parts.sort(key=lambda part: (part.dimension, -part.share, part.name))
    return Slowdown(step, tuple(parts), replayed)


def part_of_loss(tables: TableSet, ideal: IdealStep, key: str, name: str) -> Part | None:
    """Return the effect of making only this part ideal, or `None` if it has nothing to make ideal."""
    try:
        alone = predict(tables, [Edit("ideal", "", ((key, name),))])
    except UsageError:
        return None
    return Part(key, name, alone.after_ns, (alone.before_ns - alone.after_ns) / (ideal.step_ns - ideal.ideal_ns))


def _parts(tables: TableSet) -> Iterator[tuple[str, str]]:
    graph, work = graph_of(tables), work_of(tables)
    yield from (("rank", str(rank)) for rank in tables.ranks)
    stages = np.unique(work.stage[work.stage >= 0]).tolist()
    yield from (("stage", str(stage)) for stage in stages if len(stages) > 1)
    tied = np.unique(graph.nodes.axis[graph.tied]).tolist()
    yield from (("axis", graph.axes[code]) for code in tied if code >= 0 and graph.axes[code])
    yield from (("kind", KINDS[code]) for code in np.unique(work.kind[work.kind >= 0]).tolist())
