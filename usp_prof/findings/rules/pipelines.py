"""Rules on pipelines: too few micro-batches, a schedule with a larger bubble than others, unequal stages."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isfinite

import numpy as np

from usp_prof.analyses import pipeline as pipeline_analysis
from usp_prof.analyses.measures import partition
from usp_prof.analyses.measures.lateness import own_time, work_ratio
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import Basis
from usp_prof.model.rule_code import RuleCode
from usp_prof.replay.build import graph_of
from usp_prof.replay.peers import compute_per_step
from usp_prof.schedule import schedule_by_name
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.pipeline import SAME
from usp_prof.whatif.layout import layout_of
from usp_prof.whatif.recorded_pipeline import pipeline_of
from usp_prof.whatif.rescheduled import guesses_halves, reschedule

ENOUGH = 4
"""Micro-batches per pipeline rank above which the bubble is at most a fifth."""


class FewMicroBatches:
    """A pipeline has too few micro-batches.

    What it finds
        A pipeline with fewer than four micro-batches per rank, if twice as many of half the size would shorten the step
        by at least 3% under the same schedule. With m micro-batches on p ranks, (p-1)/(m+p-1) of the step is bubble, a
        fifth at m = 4p.

    Why it costs time
        At the start and end of each step, stages wait for the first micro-batch to arrive and the last one to leave.

    What to do
        Divide the batch into more micro-batches.
        - torchtitan: smaller `parallelism.pipeline_parallel_microbatch_size`.
        - Megatron-LM: smaller `--micro-batch-size` with the same `--global-batch-size`.
        - nanotron: smaller `tokens.micro_batch_size`, larger `tokens.batch_accumulation_per_replica`.
        - DeepSpeed: smaller `train_micro_batch_size_per_gpu`, larger `gradient_accumulation_steps`.
        - our trainer: `--micro-batches`.

    How the gain is predicted
        The recorded schedule is simulated with its measured actions, and with twice as many of half the length
        (`schedule=same,m=...`): modeled.

    When it is wrong
        If half a micro-batch takes more than half the time, because its products no longer fill the device. A
        micro-batch of one sequence cannot be divided.
    """

    CODE = RuleCode.FEW_MICRO_BATCHES
    TITLE = "A pipeline has too few micro-batches"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding if there are fewer than four micro-batches per pipeline rank."""
        layout = layout_of(tables)
        if (
            layout.pp < 2
            or not 0 < layout.micro_batches < ENOUGH * layout.pp
            or schedule_by_name(layout.schedule) is None
        ):
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
            "Divide the batch into more micro-batches",
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
    """Return a SELECT of the marked actions, or without marks of the pipeline's sends and receives."""
    if any(len(tables.columns("actions", rank)) for rank in tables.ranks):
        return (
            "SELECT rank, step, stage, kind, count(DISTINCT micro_batch) AS micro_batches FROM actions "
            "GROUP BY rank, step, stage, kind ORDER BY rank, step, stage, kind"
        )
    return proof.largest("collectives", "axis = 'pp'", "dur_ns")


CANDIDATES = (Edit("schedule", "interleaved", (("v", "2"),)), Edit("schedule", "zb-h1"), Edit("schedule", "zbv"))


class PipelineSchedule:
    """Another pipeline schedule has a smaller bubble.

    What it finds
        A pipeline for which one of the schedules interleaved (two stages per rank), ZB-H1 or ZBV would shorten the step
        by at least 3% with the measured times of its actions. This is an opportunity, not a fault. ZB-H1 and ZBV are
        tried only if the recorded schedule splits backward too, because a split backward costs more than its halves.

    Why it costs time
        At the start and end of each step, stages have nothing to run. More and smaller actions, or a split backward,
        fill that time.

    What to do
        Change the schedule, or use more micro-batches. More stages need enough layers, and a split backward keeps more
        activations.
        - torchtitan: `parallelism.pipeline_parallel_schedule` (`Interleaved1F1B`, `InterleavedZeroBubble`,
          `ZBVZeroBubble`).
        - Megatron-LM: `--num-layers-per-virtual-pipeline-stage`.
        - nanotron: `parallelism.pp_engine` has GPipe and 1F1B only.
        - DeepSpeed: 1F1B only.
        - our trainer: `--schedule`.

    How the gain is predicted
        Both the recorded order and the other one are simulated with the measured times (`schedule=`). The error is the
        error of simulating the recorded order.

    When it is wrong
        If memory does not allow it, or if transfers between more stages are exposed.
    """

    CODE = RuleCode.PIPELINE_SCHEDULE
    TITLE = "Another pipeline schedule has a smaller bubble"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding for the best of the other schedules."""
        try:
            pipeline = pipeline_of(tables)
        except UsageError:  # no pipeline
            return
        if len(pipeline.order) < 2:
            return
        tried = []
        for edit in CANDIDATES:
            try:
                if not guesses_halves(tables, (edit,)):
                    tried.append((reschedule(tables, (edit,)), edit))
            except UsageError:  # this schedule does not fit the pipeline
                continue
        if not tried:
            return
        best, edit = max(tried, key=lambda pair: pair[0].saved_ns)
        measured = pipeline_analysis.compute(tables).bubble_fraction()
        bubble = f"The pipeline bubble is {100 * measured:.1f}%" if isfinite(measured) else "The pipeline has a bubble"
        yield Draft(
            f"{bubble}; the {edit.value} schedule would have {100 * best.bubble_fraction:.1f}%",
            {"stages": pipeline.stages},
            {"window_ns": best.measured_ns, "simulated_ns": best.simulated_ns, "other_ns": best.other_ns},
            edit,
            f"Use the {edit.value} schedule",
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
        A pipeline whose slowest stage computes at least 5% longer than the mean stage, if balancing the stages would
        shorten the step by at least 2%.

    Why it costs time
        Every stage runs at the pace of the slowest. That is often the last one, which has the head and the loss.

    What to do
        Move layers from the slow stage to others.
        - torchtitan: `parallelism.module_fqns_per_model_part`.
        - Megatron-LM: `--decoder-first-pipeline-num-layers`, `--decoder-last-pipeline-num-layers`, or account for
          embedding and loss in the split.
        - nanotron: splits by the costs of the model (`get_block_compute_costs`); define them.
        - DeepSpeed: `partition_method="parameters"`.
        - our trainer: splits evenly; make `--layers` a multiple of the stages.

    How the gain is predicted
        If the slowest stage has more work (kernels, or FLOPs if shapes were recorded), the recorded order of actions
        is simulated with the measured times of each step, and with every stage at the mean of all (`balance_stages`).
        If it takes longer without more work, its ranks may be slow, and the run is replayed with its compute as long as
        that of the fastest stage (`compute_faster`). Both are upper limits: layers cannot be divided.

    When it is wrong
        If one layer is larger than the difference, or if a stage has more work that neither kernels nor shapes show.
    """

    CODE = RuleCode.STAGE_IMBALANCE
    TITLE = "Pipeline stages take unequal time"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare the compute of stages, each by its fastest rank: a slow rank is not an imbalance."""
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
            stage, fastest_ns = slowest[0], min(times.values())
            ratio = times[slowest] / fastest_ns if fastest_ns > 0 else inf
            is_slow = len(slowest) == 1 and ratio < inf and not _has_more_work(tables, stage, ratio)
            slow_advice = f"Check clocks and other processes of the ranks of stage {stage}, or move layers from it"
            yield Draft(
                f"Stage {stage} computes {times[slowest] / mean:.2f}x as long as the mean stage"
                f"{', for no more work' if is_slow else ''}",
                {"stage": stage},
                {"stage_ns": times[slowest], "mean_ns": mean},
                Edit("compute_faster", f"{ratio:.4g}", (("stage", str(stage)),)) if is_slow else Edit("balance_stages"),
                slow_advice if is_slow else f"Move layers from stage {stage} to other stages",
                basis=Basis.BOUND,
                rows="SELECT stage, rank, step, sum(dur_ns) AS compute_ns "
                "FROM activities JOIN (SELECT DISTINCT rank, stage FROM actions WHERE stage >= 0) USING (rank) "
                "WHERE kind = 'compute' AND step >= 0 GROUP BY stage, rank, step ORDER BY compute_ns DESC, rank, step",
                settings={"Megatron-LM": "--decoder-last-pipeline-num-layers"},
            )


def _has_more_work(tables: TableSet, stage: int, ratio: float) -> bool:
    """Return whether a stage that takes `ratio` times as long as the others has more work by at least half of that.

    Work is counted in kernels and, where shapes were recorded, in FLOP.
    """
    stages_of_rank = {rank: set(tables.columns("actions", rank)["stage"].tolist()) - {-1} for rank in tables.ranks}
    ranks = [rank for rank, own_stages in stages_of_rank.items() if own_stages == {stage}]
    other_ranks = tuple(rank for rank, own_stages in stages_of_rank.items() if own_stages and stage not in own_stages)
    parts = partition.divide_run(tables)
    own, steps = own_time(tables, parts), np.unique(parts.step)
    return any(work_ratio(own, rank, other_ranks, steps) >= 1 + (ratio - 1) / 2 for rank in ranks)
