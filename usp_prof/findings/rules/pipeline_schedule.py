"""Another pipeline schedule would have a smaller bubble.

What it finds
    A pipeline for which one of the schedules interleaved (two stages on each rank), ZB-H1 or ZBV, with the measured
    times of the actions, would shorten the step by 3 % or more. This is an opportunity, not a fault: a schedule is a
    choice.

Why it costs time
    At the begin and end of each step stages have nothing to run; more, smaller actions and split backwards fill that.

What to do
    torchtitan `parallelism.pipeline_parallel_schedule` (`Interleaved1F1B`, `InterleavedZeroBubble`, `ZBVZeroBubble`),
    Megatron-LM `--num-layers-per-virtual-pipeline-stage`, or more micro-batches. Splitting stages needs as many layers;
    split backwards keep more activations.
    nanotron: `parallelism.pp_engine` has GPipe and 1F1B alone; DeepSpeed has 1F1B alone; our trainer: `--schedule`.

How the gain is predicted
    The order that ran and the other one are both simulated with the measured times (`schedule=`); halves of a backward
    that was not split are taken to be equal. What the simulation of the run's own order misses is the error.

When it is wrong
    When memory does not allow it, and when transfers between more stages are not hidden.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from usp_prof.analyses import pipeline as pipeline_analysis
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.whatif.reordering.schedule import pipeline_of, reschedule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "pipeline-schedule"
TITLE = "Another pipeline schedule has a smaller bubble"
CANDIDATES = (Edit("schedule", "interleaved", (("v", "2"),)), Edit("schedule", "zb-h1"), Edit("schedule", "zbv"))


def look(tables: TableSet) -> Iterable[Draft]:
    """Try other schedules and name the best."""
    try:
        pipeline = pipeline_of(tables)
    except UsageError:  # no pipeline
        return
    if len(pipeline.order) < 2:
        return
    tried = []
    for edit in CANDIDATES:
        try:
            tried.append((reschedule(tables, edit), edit))
        except UsageError:  # this pipeline cannot be scheduled so
            continue
    if not tried:
        return
    best, edit = max(tried, key=lambda pair: pair[0].saved_ns)
    measured = pipeline_analysis.compute(tables).bubble_fraction()
    bubble = f"pipeline bubble {100 * measured:.1f} %" if isfinite(measured) else "pipeline bubble"
    yield Draft(
        f"{bubble}: the {edit.value} schedule would leave {100 * best.bubble_fraction:.1f} %",
        {"stages": pipeline.stages},
        {"window_ns": best.measured_ns, "simulated_ns": best.simulated_ns, "other_ns": best.other_ns},
        edit,
        f"use the {edit.value} schedule",
        least_gain=0.03,
        rows="SELECT rank, stage, kind, count(*) AS actions, sum(dur_ns) AS dur_ns FROM actions "
        "GROUP BY rank, stage, kind ORDER BY rank, stage, kind",
        opportunity=True,
        settings={"torchtitan": "parallelism.pipeline_parallel_schedule"},
    )
