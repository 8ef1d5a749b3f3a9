"""Steps cut by the end of the recording: the last steps of ranks that lack the wait with which their other steps end.

A rank's step ends with the first work of the next step. The last one ends with the rank's last work instead, so it
lacks the wait, for example for input, that would have followed. Such a step is too short, and figures per step leave
it out on all ranks. It remains in the tables and on the timeline.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from usp_prof.columns.arrays import Flags
from usp_prof.columns.table import Columns
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import spans
from usp_prof.tables.activities import without_unpacking
from usp_prof.tables.steps import Steps
from usp_prof.tables.table_set import Source

LEAST_WAIT = 0.1
"""A last step that lacks a smaller share than this counts as complete."""


def lacks_wait(steps: Steps, activities: Columns) -> Flags:
    """Mark a rank's steps that end with its last work and lack the wait with which its other steps end."""
    work = without_unpacking(activities)
    is_last = np.ones(len(steps.number), bool)
    if not len(work) or not len(is_last):
        return ~is_last
    order = np.argsort(work["start_ns"], kind="stable")
    start, latest_end = work["start_ns"][order], np.maximum.accumulate((work["start_ns"] + work["dur_ns"])[order])
    place = np.searchsorted(start, steps.end)
    # A step's end is not the end of all work if work starts then or later.
    is_last = place == len(work)
    wait, length = steps.end - latest_end[place - 1], steps.end - steps.start
    if is_last.all() or wait[~is_last].sum() <= LEAST_WAIT * length[~is_last].sum():
        return np.zeros(len(is_last), bool)
    return np.asarray(is_last & (wait <= 0) & (length < (1 - LEAST_WAIT) * length[~is_last].mean()))


def cut_steps(sources: Mapping[int, Source]) -> tuple[tuple[int, ...], list[HealthRow]]:
    """Return the numbers of the steps that no figure per step includes, and the health row that names them."""
    of_ranks = {rank: Columns(source.view("steps")) for rank, source in sources.items()}
    steps = {rank: own for rank, own in of_ranks.items() if len(own) and sources[rank].view("activities").num_rows}
    cut_ranks = [rank for rank, of_rank in steps.items() if of_rank["is_cut"].any()]
    numbers = {number for rank in cut_ranks for number in steps[rank]["step"][steps[rank]["is_cut"]].tolist()}
    # If only a few ranks lack a wait in their last step, their waits before were delays of their own.
    is_usual = 2 * len(cut_ranks) >= len(steps)
    leaves_none = any(numbers.issuperset(of_rank["step"].tolist()) for of_rank in steps.values())
    if not numbers or not is_usual or leaves_none:
        return (), []
    detail = (
        f"the recording of rank {spans(cut_ranks)} ended before step {spans(numbers)} did: figures per step do not "
        f"include it; --steps {max(numbers)} shows it"
    )
    return tuple(sorted(numbers)), [HealthRow("steps_cut", Severity.INFO, count=len(numbers), detail=detail)]
