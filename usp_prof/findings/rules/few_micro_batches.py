"""A pipeline has too few micro-batches.

What it finds
    A pipeline with fewer than four micro-batches for each of its ranks, where twice as many of half the size, under the
    same schedule, would shorten the step by 3 % or more. With m micro-batches on p ranks a share (p-1)/(m+p-1) of the
    step is bubble: a fifth at m = 4p.

Why it costs time
    At the begin and end of each step stages wait for the first micro-batch to arrive and the last to leave.

What to do
    Cut the batch into more pieces. torchtitan: `parallelism.pipeline_parallel_microbatch_size` smaller; Megatron-LM:
    `--micro-batch-size` smaller at the same `--global-batch-size`; nanotron: `tokens.micro_batch_size` smaller and
    `tokens.batch_accumulation_per_replica` larger; DeepSpeed: `train_micro_batch_size_per_gpu` smaller and
    `gradient_accumulation_steps` larger; our trainer: `--micro-batches`.

How the gain is predicted
    The schedule that ran is simulated with its measured actions, and with twice as many of half the length
    (`schedule=...,m=...`): modelled.

When it is wrong
    When half a micro-batch takes more than half the time, because its products no longer fill the device; a micro-batch
    of one sequence cannot be cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.model.edit import Edit
from usp_prof.schedule import named
from usp_prof.whatif.layout import layout_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "few-micro-batches"
TITLE = "A pipeline has too few micro-batches"
NEEDS = (Input.ALL_RANKS,)
ENOUGH = 4
"""Micro-batches for each pipeline rank beyond which the bubble is a fifth or less."""


def look(tables: TableSet) -> Iterable[Draft]:
    """Ask what twice the micro-batches would save."""
    layout = layout_of(tables)
    if layout.pp < 2 or not 0 < layout.micro_batches < ENOUGH * layout.pp or named(layout.schedule) is None:
        return
    keys = [("m", str(2 * layout.micro_batches))]
    if layout.chunks > 1:
        keys.append(("v", str(layout.chunks)))
    yield Draft(
        f"{layout.micro_batches} micro-batches are few for {layout.pp} pipeline ranks",
        {"axis": "pp"},
        {
            "micro_batches": layout.micro_batches,
            "pipeline_ranks": layout.pp,
            "textbook_bubble_fraction": (layout.pp - 1) / (layout.chunks * layout.micro_batches + layout.pp - 1),
        },
        Edit("schedule", str(named(layout.schedule)), tuple(keys)),
        "cut the batch into more micro-batches",
        least_gain=0.03,
        rows=_rows(tables),
        opportunity=layout.micro_batches > layout.pp,
        is_choice=True,
        settings={
            "torchtitan": "parallelism.pipeline_parallel_microbatch_size",
            "Megatron-LM": "--micro-batch-size",
            "DeepSpeed": "gradient_accumulation_steps",
            "our trainer": "--micro-batches",
        },
    )


def _rows(tables: TableSet) -> str:
    """Select the marked actions, counted; without marks what the pipeline's ranks send each other."""
    if any(len(tables.columns("actions", rank)) for rank in tables.ranks):
        return (
            "SELECT rank, step, stage, kind, count(DISTINCT micro_batch) AS micro_batches FROM actions "
            "GROUP BY rank, step, stage, kind ORDER BY rank, step, stage, kind"
        )
    return proof.largest("collectives", "axis = 'pp'", "dur_ns")
