"""Rules on exposed communication: gradients, gathers of weights and tensor-parallel calls that no compute hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet


REDUCES = ("all_reduce", "reduce_scatter")
GRADIENT_AXES = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD)


class ExposedGradientSync:
    """Gradients are synchronised while nothing else runs.

    What it finds
        Communication of the data-parallel axes (`dp`, `dp_replicate`, `dp_shard`) that is exposed, so that overlapping
        it with the backward would shorten the step by 4 % or more (a little is left at the end of every backward).

    Why it costs time
        The gradient of a layer is ready long before the backward of all layers has ended; synchronising at the end
        leaves the device idle for as long as that takes.

    What to do
        Overlap it: DDP with buckets (`bucket_cap_mb`), no `no_sync` around the last micro-batch; Megatron-LM
        `--overlap-grad-reduce` and `--overlap-param-gather`; DeepSpeed `overlap_comm: true`; FSDP2 overlaps by itself
        unless a reshard or an explicit wait stands in the way; nanotron overlaps with its bucketed gradient
        accumulator. torchtitan has FSDP2's overlap; our trainer overlaps unless `--fault unoverlapped` forbids it
        (`--bucket-mb`).

    How the gain is predicted
        The run is replayed with each reduction beginning when its share of the last backward is done, and the optimizer
        alone waiting for it (`sync_overlapped`): what backward cannot cover stays exposed.

    When it is wrong
        When communication slows the compute that it would run beside (shared links, few SMs); when gradients are needed
        early (clipping by global norm is before the optimizer and stays).
    """

    CODE = "exposed-gradient-sync"
    TITLE = "Gradients are synchronised while nothing else runs"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Ask of each data-parallel axis what hiding its reductions would save; gathers of weights are a rule below."""
        graph = graph_of(tables)
        for axis in GRADIENT_AXES:
            rows = graph.on_axis(str(axis))
            if not rows.any():
                continue
            if not _reductions(tables, str(axis)):
                continue
            yield Draft(
                f"gradient synchronisation on {axis} is exposed: no compute runs beside it",
                {"axis": str(axis)},
                {"parts": int(rows.sum()), "transfer_ns": int(graph.transfer[rows & graph.tied].sum())}
                | dict(longest(graph, rows, graph.transfer)),
                Edit("sync_overlapped", places=(("axis", str(axis)),)),
                "overlap gradient synchronisation with backward",
                least_gain=0.04,
                covers=("slow-link",),
                rows=proof.largest("collectives", f"{proof.equals('axis', axis)} AND op IN {REDUCES}", "dur_ns"),
                settings={
                    "Megatron-LM": "--overlap-grad-reduce",
                    "DeepSpeed": "overlap_comm",
                    "DDP": "bucket_cap_mb",
                },
            )


def _reductions(tables: TableSet, axis: str) -> int:
    """Count the operations that reduce gradients on an axis; without one there is nothing to overlap."""
    collectives = (tables.columns("collectives", rank) for rank in tables.ranks)
    return sum(int((of_rank.matches("axis", axis) & of_rank.matches("op", *REDUCES)).sum()) for of_rank in collectives)


GATHER_AXES = (Axis.DP, Axis.DP_SHARD)
FEWEST_GATHERS = 2


class ExposedGathers:
    """Sharded weights are gathered while nothing else runs.

    What it finds
        ZeRO-3 (FSDP) runs whose all-gathers in forward and backward are waited for, so that asking for each one while
        the layer before computes would shorten the step by 4 % or more (the first gather of a pass cannot be hidden).

    Why it costs time
        A layer cannot begin before its weights are there. Asked for at that moment, the gather takes its whole time
        from the step, once in forward and, where weights are freed in between, once more in backward.

    What to do
        Gather ahead, and free weights later. torchtitan: FSDP2 prefetches forward by itself; set
        `parallelism.fsdp_reshard_after_forward = "never"` where memory allows, which drops the second gather;
        Megatron-LM: `--overlap-param-gather` with `--use-distributed-optimizer`; nanotron: has no ZeRO-3, use
        `optimizer.zero_stage: 1`; DeepSpeed: `overlap_comm: true`, a larger `stage3_prefetch_bucket_size` and
        `stage3_max_reuse_distance`; our trainer: `--prefetch`, or `--zero 2`.

    How the gain is predicted
        The run is replayed with each gather asked for when the layer before begins (`prefetch=on`).

    When it is wrong
        When weights of two layers at once do not fit in memory, and when gathers slow the compute that they run beside.
    """

    CODE = "exposed-gathers"
    TITLE = "Sharded weights are gathered while nothing else runs"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Look for weights that are gathered inside forward and backward."""
        gathers = {axis: sum(_inside(tables, rank, str(axis)) for rank in tables.ranks) for axis in GATHER_AXES}
        axis = max(GATHER_AXES, key=lambda candidate: gathers[candidate])
        if gathers[axis] < FEWEST_GATHERS * len(tables.ranks):
            return
        graph = graph_of(tables)
        steps = max(len(tables.columns("steps", rank)) for rank in tables.ranks)
        yield Draft(
            f"weight gathers on {axis} are exposed: no compute runs beside them",
            {"axis": str(axis)},
            {
                "gathers_per_rank_and_step": gathers[axis] / steps / len(tables.ranks),
                **longest(graph, graph.on_axis(str(axis)), graph.transfer),
            },
            Edit("prefetch", "on"),
            "gather each layer's weights while the layer before computes",
            least_gain=0.04,
            covers=("slow-link",),
            rows=proof.largest("collectives", f"{proof.equals('axis', axis)} AND op = 'all_gather'", "dur_ns"),
            settings={
                "torchtitan": "parallelism.fsdp_reshard_after_forward",
                "DeepSpeed": "stage3_prefetch_bucket_size",
                "Megatron-LM": "--overlap-param-gather",
            },
        )


def _inside(tables: TableSet, rank: int, axis: str) -> int:
    """Count a rank's gathers in forward and backward; those after the optimizer are of ZeRO-1 and -2."""
    parts = tables.columns("collectives", rank)
    rows = parts.matches("axis", axis) & parts.matches("op", "all_gather")
    return int((rows & parts.matches("phase", "forward", "backward")).sum())


class ExposedTensorParallel:
    """Tensor-parallel communication runs while nothing else does.

    What it finds
        Communication of the axis `tp` (sequence parallelism included) whose hiding behind compute would shorten the
        step by 5 % or more. It is an opportunity: most implementations leave these collectives exposed.

    Why it costs time
        Every layer needs two collectives forward and two backward whose result the next product waits for.

    What to do
        Split products and collectives into pieces that overlap, or use fewer tensor-parallel ranks. torchtitan:
        `parallelism.enable_async_tensor_parallel = true` with `compile.enable = true`; Megatron-LM: `--tp-comm-overlap`
        with `--sequence-parallel` (needs Transformer Engine); nanotron: `parallelism.tp_linear_async_communication:
        true` with `tp_mode: REDUCE_SCATTER`; DeepSpeed: has none of its own, lower the degree of the model it is given;
        our trainer: lower `--tp`.

    How the gain is predicted
        The run is replayed with nothing but the next step waiting for this axis (`comm_hidden`): a bound, since the
        first and last piece of every collective stay exposed.

    When it is wrong
        When pieces of the products are too small to fill the device, which is soon so.
    """

    CODE = "exposed-tensor-parallel"
    TITLE = "Tensor-parallel communication runs while nothing else does"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Ask what hiding the axis would save."""
        graph = graph_of(tables)
        rows = graph.on_axis(Axis.TP)
        if rows.any():
            yield Draft(
                "tensor-parallel communication is exposed: no compute runs beside it",
                {"axis": str(Axis.TP)},
                {"parts": int(rows.sum()), "transfer_ns": int(graph.transfer[rows & graph.tied].sum())}
                | dict(longest(graph, rows, graph.transfer)),
                Edit("comm_hidden", places=(("axis", str(Axis.TP)),)),
                "overlap pieces of products and collectives, or lower the tensor-parallel degree",
                least_gain=0.05,
                rows=proof.heaviest(graph, rows, graph.transfer),
                opportunity=True,
                basis=Basis.BOUND,
                settings={
                    "torchtitan": "parallelism.enable_async_tensor_parallel",
                    "Megatron-LM": "--tp-comm-overlap",
                    "nanotron": "parallelism.tp_linear_async_communication",
                },
            )
