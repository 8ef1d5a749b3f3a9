"""Parts of the step that the change of a finding shortens or lengthens, from its replay.

The gain of a change is seldom the time of one part. Launches that come sooner also shorten the waits of other ranks,
and a rank that no longer waits for input may wait for its peers instead. The times before the change are those of the
step breakdown, so a report can show how both figures fit together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from usp_prof.analyses.breakdown import BreakdownResult
from usp_prof.analyses.measures import partition
from usp_prof.findings.causes import causes_of
from usp_prof.model.edit import Edit, parse_edit
from usp_prof.model.finding import ChangedPart, Finding
from usp_prof.model.selection import EVERYTHING
from usp_prof.replay.graph import Timeline
from usp_prof.replay.step_times import timeline_of
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edited import Edited, as_recorded
from usp_prof.whatif.predicted_tables import retimed

LEAST_CHANGE = 0.01
"""Changes below this share of the step are not listed."""
MOST_PARTS = 3
"""Maximum number of parts, those that change most first."""


def with_changed_parts(
    tables: TableSet, findings: Sequence[Finding], replays: Mapping[str, tuple[Edited, Timeline]]
) -> list[Finding]:
    """Return the findings; those that a report shows have the parts of the mean rank step that their change affects.

    `replays` has the replays of some edits; the others are replayed here.
    """
    shown = [cause.finding for cause in causes_of(findings).shown]
    return [
        replace(finding, changed=changed_parts(tables, parse_edit(finding.edit), replays.get(finding.edit)))
        if finding.edit and any(finding is other for other in shown)
        else finding
        for finding in findings
    ]


def changed_parts(
    tables: TableSet, edit: Edit, replayed: tuple[Edited, Timeline] | None = None
) -> tuple[ChangedPart, ...]:
    """Return the parts that an edit changes most; none if no events move, as with another order of actions."""
    edited_run, timeline = replayed or (as_recorded(tables).then(tables, edit), None)
    if edited_run.reordered or not all(tables.view("events", rank).num_rows for rank in tables.ranks):
        return ()
    moved = retimed(tables, edited_run.graph, timeline or timeline_of(tables, edited_run.graph))
    before, after = (_times_of_parts(run) for run in (tables, moved))
    parts = [ChangedPart(role, time, after.get(role, 0.0)) for role, time in before.items()]
    parts += [ChangedPart(role, 0.0, time) for role, time in after.items() if role not in before]
    least_ns = LEAST_CHANGE * sum(before.values())
    notable = [part for part in parts if abs(part.saved_ns) >= least_ns]
    return tuple(sorted(notable, key=lambda part: (-abs(part.saved_ns), part.role))[:MOST_PARTS])


def _times_of_parts(tables: TableSet) -> dict[str, float]:
    return BreakdownResult(partition.divide_run(tables, EVERYTHING)).mean_ns()
