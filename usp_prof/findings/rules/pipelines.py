"""Rules on pipelines: too few micro-batches, a schedule with a larger bubble than others, unequal stages."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from usp_prof.analyses import pipeline as pipeline_analysis
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import Basis
from usp_prof.replay.build import graph_of
from usp_prof.replay.peers import compute_per_step
from usp_prof.schedule import named
from usp_prof.whatif.edits.pipeline import SAME
from usp_prof.whatif.layout import layout_of
from usp_prof.whatif.recorded_pipeline import pipeline_of
from usp_prof.whatif.rescheduled import reschedule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet


ENOUGH = 4
"""Micro-batches for each pipeline rank beyond which the bubble is a fifth or less."""


class FewMicroBatches:
    """A pipeline has too few micro-batches.

    What it finds
        A pipeline with fewer than four micro-batches for each of its ranks, where twice as many of half the size, under
        the same schedule, would shorten the step by 3 % or more. With m micro-batches on p ranks a share (p-1)/(m+p-1)
        of the step is bubble: a fifth at m = 4p.

    Why it costs time
        At the begin and end of each step stages wait for the first micro-batch to arrive and the last to leave.

    What to do
        Cut the batch into more pieces. torchtitan: `parallelism.pipeline_parallel_microbatch_size` smaller;
        Megatron-LM: `--micro-batch-size` smaller at the same `--global-batch-size`; nanotron: `tokens.micro_batch_size`
        smaller and `tokens.batch_accumulation_per_replica` larger; DeepSpeed: `train_micro_batch_size_per_gpu` smaller
        and `gradient_accumulation_steps` larger; our trainer: `--micro-batches`.

    How the gain is predicted
        The schedule that ran is simulated with its measured actions, and with twice as many of half the length
        (`schedule=same,m=...`): modelled.

    When it is wrong
        When half a micro-batch takes more than half the time, because its products no longer fill the device; a
        micro-batch of one sequence cannot be cut.
    """

    CODE = "few-micro-batches"
    TITLE = "A pipeline has too few micro-batches"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Ask what twice the micro-batches would save."""
        layout = layout_of(tables)
        if layout.pp < 2 or not 0 < layout.micro_batches < ENOUGH * layout.pp or named(layout.schedule) is None:
            return
        yield Draft(
            f"{layout.micro_batches} micro-batches are too few for {layout.pp} pipeline ranks",
            {"axis": "pp"},
            {
                "micro_batches": layout.micro_batches,
                "pipeline_ranks": layout.pp,
                "textbook_bubble_fraction": (layout.pp - 1) / (layout.chunks * layout.micro_batches + layout.pp - 1),
            },
            Edit("schedule", SAME, (("m", str(2 * layout.micro_batches)),)),
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


CANDIDATES = (Edit("schedule", "interleaved", (("v", "2"),)), Edit("schedule", "zb-h1"), Edit("schedule", "zbv"))


class PipelineSchedule:
    """Another pipeline schedule would have a smaller bubble.

    What it finds
        A pipeline for which one of the schedules interleaved (two stages on each rank), ZB-H1 or ZBV, with the measured
        times of the actions, would shorten the step by 3 % or more. This is an opportunity, not a fault: a schedule is
        a choice.

    Why it costs time
        At the begin and end of each step stages have nothing to run; more, smaller actions and split backwards fill
        that.

    What to do
        torchtitan `parallelism.pipeline_parallel_schedule` (`Interleaved1F1B`, `InterleavedZeroBubble`,
        `ZBVZeroBubble`), Megatron-LM `--num-layers-per-virtual-pipeline-stage`, or more micro-batches. Splitting stages
        needs as many layers; split backwards keep more activations. nanotron: `parallelism.pp_engine` has GPipe and
        1F1B alone; DeepSpeed has 1F1B alone; our trainer: `--schedule`.

    How the gain is predicted
        The order that ran and the other one are both simulated with the measured times (`schedule=`); halves of a
        backward that was not split are taken to be equal. What the simulation of the run's own order misses is the
        error.

    When it is wrong
        When memory does not allow it, and when transfers between more stages are not hidden.
    """

    CODE = "pipeline-schedule"
    TITLE = "Another pipeline schedule has a smaller bubble"

    @staticmethod
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
                tried.append((reschedule(tables, (edit,)), edit))
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


UNEQUAL = 1.05


class StageImbalance:
    """Pipeline stages take unequal time.

    What it finds
        A pipeline whose slowest stage computes at least 5 % longer than the mean stage, where evening it out
        would shorten the step by 2 % or more.

    Why it costs time
        Every stage runs at the pace of the slowest. The last one usually is: it has the head and the loss, and the
        first the embedding.

    What to do
        Give the slow stage fewer layers: Megatron-LM `--decoder-first-pipeline-num-layers` and
        `--decoder-last-pipeline-num-layers` (or account for embedding and loss in the split), torchtitan
        `parallelism.module_fqns_per_model_part`, DeepSpeed `partition_method="parameters"`.
        nanotron cuts by the costs that the model states (`get_block_compute_costs`): state them; our trainer cuts
        evenly, so that `--layers` should be a multiple of the stages.

    How the gain is predicted
        The run's own order of actions is simulated with the measured times of each step, and with every stage at the
        mean of all (`balance_stages`): a bound, since layers cannot be cut at will. Its error is what the simulation
        misses of a step, and how far the steps differ in the share that they save.

    When it is wrong
        When one layer is larger than the difference.
    """

    CODE = "stage-imbalance"
    TITLE = "Pipeline stages take unequal time"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare the stages' compute in a step; of a stage's ranks the fastest, since a slow one is no imbalance."""
        graph = graph_of(tables)
        times_of_stages: dict[tuple[int, ...], list[float]] = {}
        for rank in tables.ranks:
            stages = tables.columns("actions", rank)["stage"]
            held = tuple(sorted({int(stage) for stage in stages.tolist() if stage >= 0}))
            if held:
                times_of_stages.setdefault(held, []).append(compute_per_step(graph, rank))
        times = {held: min(rank_times) for held, rank_times in times_of_stages.items()}
        mean = sum(times.values()) / len(times) if times else 0.0
        slowest = max(sorted(times), key=lambda held: times[held], default=())
        if len(times) > 1 and times[slowest] >= UNEQUAL * mean > 0:
            yield Draft(
                f"stage {slowest[0]} computes {times[slowest] / mean:.2f} times as long as the mean stage",
                {"stage": slowest[0]},
                {"stage_ns": times[slowest], "mean_ns": mean},
                Edit("balance_stages"),
                "move layers off the slow stage",
                basis=Basis.BOUND,
                rows="SELECT stage, rank, step, sum(dur_ns) AS compute_ns "
                "FROM activities JOIN (SELECT DISTINCT rank, stage FROM actions WHERE stage >= 0) USING (rank) "
                "WHERE kind = 'compute' AND step >= 0 GROUP BY stage, rank, step ORDER BY compute_ns DESC, rank, step",
                settings={"Megatron-LM": "--decoder-last-pipeline-num-layers"},
            )
