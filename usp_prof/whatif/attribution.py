"""Job slowdown: the measured step over its replay with all ranks alike, and what each part of the run costs.

S = T / T_ideal. A part's share is what goes away of the loss T - T_ideal when that part alone is brought to the ideal;
shares overlap and need not add up to one.

A call is only replayed where the parts of all its members are matched. Elsewhere a rank may wait for another without
the replay seeing it: where such communication exposes more of the step than is lost, S is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.intervals import union
from usp_prof.columns.rows import lookup
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import LEAST_LOSS, IdealStep
from usp_prof.replay.build import graph_of
from usp_prof.replay.node_work import work_of
from usp_prof.replay.representatives import Representatives
from usp_prof.tables import calls
from usp_prof.whatif.edits.balance import KINDS
from usp_prof.whatif.host_times import without_hosts
from usp_prof.whatif.predict import predict, unedited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.columns.arrays import Flags
    from usp_prof.columns.intervals import Intervals
    from usp_prof.columns.table import Columns
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Part:
    """What is brought to the ideal alone, the step then, and its share of the loss."""

    what: str
    name: str
    step_ns: float
    share: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The ideal step, and by what and share the parts of the run that the loss comes from."""

    whole: IdealStep
    parts: tuple[Part, ...]
    replayed: Representatives
    """The ranks that were replayed."""

    @property
    def slowdown(self) -> float | None:
        """S: how many times its ideal the step takes; `None` where that is not known."""
        return self.whole.slowdown


def ideal_step(tables: TableSet) -> IdealStep:
    """Replay the run with all ranks alike, once."""
    return tables.memo("ideal step", lambda: _ideal_step(tables))


def _ideal_step(tables: TableSet) -> IdealStep:
    measured = unedited(tables)
    if not len(measured.step):
        return IdealStep(0.0, 0.0, unknown=_why_no_steps(tables))
    step_ns = measured.mean_measured_ns
    if tables.incomparable:
        return IdealStep(step_ns, 0.0, unknown=tables.incomparable)
    if without_hosts(tables, tables.ranks):
        return IdealStep(step_ns, 0.0, unknown="what the hosts did was not recorded, only device activity")
    try:
        whole = predict(tables, [Edit("ideal")])
    except UsageError:  # no compute and no call that could be another's equal
        ideal = IdealStep(step_ns, step_ns)
    else:
        ideal = IdealStep(whole.before_ns, whole.after_ns, whole.error_fraction)
    if not ideal.step_ns:
        return IdealStep(0.0, 0.0, unknown="the replayed steps take no time")
    unseen = unmatched_fraction(tables)
    if unseen > max(LEAST_LOSS, 1 - ideal.ideal_ns / ideal.step_ns):
        reason = f"{unseen:.0%} of the step waits in communication whose other members are not known"
        return IdealStep(ideal.step_ns, 0.0, unknown=reason)
    return ideal


def _why_no_steps(tables: TableSet) -> str:
    """Say what a replay would need and the run does not have."""
    if not any(len(tables.columns("activities", rank)) for rank in tables.ranks):
        return "no device work was recorded"
    return "no step with device work was found"


def unmatched_fraction(tables: TableSet) -> float:
    """Give the share of the steps in which a rank does nothing but communicate with members that are not known."""
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
    """Mark a rank's activities that belong to a call of which every member was read."""
    matched = calls.of(tables)
    parts = matched.parts.of(rank, "call", "part")
    of_part = np.zeros(len(tables.columns("collectives", rank)), dtype=bool)
    of_part[parts["part"]] = matched.columns()["complete"][parts["call"]]
    return lookup(of_part, tables.columns("activities", rank)["collective"], missing=False)


def _ranges(activities: Columns, rows: Flags) -> Intervals:
    start = activities["start_ns"][rows]
    return union(start, start + activities["dur_ns"][rows])


def slowdown(tables: TableSet) -> Slowdown:
    """Replay all of these ranks; see `slowdown_on`."""
    return slowdown_on(Representatives(tables))


def slowdown_on(replayed: Representatives) -> Slowdown:
    """Replay the run at its ideal, and with each part alone brought there.

    `parts` is empty where the ideal is not known or nothing can be idealised, and where the loss does not exceed the
    prediction's error: shares of no loss would be shares of noise.
    """
    tables = replayed.tables
    known = ideal_step(tables)
    whole = replace(known, error_fraction=known.error_fraction + replayed.doubt)
    if not whole.is_loss:
        return Slowdown(whole, (), replayed)
    lost = whole.step_ns - whole.ideal_ns
    parts = [part for what, name in _parts(tables) if (part := _alone(tables, what, name, lost))]
    parts.sort(key=lambda part: (part.what, -part.share, part.name))
    return Slowdown(whole, tuple(parts), replayed)


def _alone(tables: TableSet, what: str, name: str, lost: float) -> Part | None:
    """Bring one part alone to its ideal; nothing where it has nothing to idealise."""
    try:
        alone = predict(tables, [Edit("ideal", "", ((what, name),))])
    except UsageError:
        return None
    return Part(what, name, alone.after_ns, (alone.before_ns - alone.after_ns) / lost)


def _parts(tables: TableSet) -> Iterator[tuple[str, str]]:
    graph, work = graph_of(tables), work_of(tables)
    yield from (("rank", str(rank)) for rank in tables.ranks)
    stages = np.unique(work.stage[work.stage >= 0]).tolist()
    yield from (("stage", str(stage)) for stage in stages if len(stages) > 1)
    tied = np.unique(graph.nodes.axis[graph.tied]).tolist()
    yield from (("axis", graph.axes[code]) for code in tied if code >= 0 and graph.axes[code])
    yield from (("kind", KINDS[code]) for code in np.unique(work.kind[work.kind >= 0]).tolist())
