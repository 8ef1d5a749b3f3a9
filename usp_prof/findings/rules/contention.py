"""Rules on contention: ranks that share a host's cores, and communication that slows concurrent compute."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import group_codes, middles
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.rule_code import RuleCode
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.compute import interference

UNEVEN = 0.25
"""Share of the compute beyond the medians of its ops; paced runs on shared cores reach 0.16."""
LEAST_TIMES = 8
"""An op that ran less often has no median to speak of."""
EFFECTS = (
    RuleCode.SLOW_RANK,
    RuleCode.SLOW_HOST,
    RuleCode.SLOW_LINK,
    RuleCode.SLOW_OP,
    RuleCode.HOST_PAUSE,
    RuleCode.SLOWED_COMPUTE,
)
"""Findings that shared cores can cause. Each may also be a fault of its own, which comes first if it costs more."""


class SharedCores:
    """Ranks share the cores of a host.

    What it finds
        Several ranks without devices on one host (the recorder's `processes_per_device`) whose ops take irregular
        times: at least 25% of the compute is time beyond the median of the same op with the same shapes on the same
        rank. Paced runs are excluded, because they wait by the clock and not for a core.

    Why it costs time
        The operating system interrupts a rank in the middle of an op, a transfer or a post. Each time another rank is
        affected, and all others wait for it.

    What to do
        Give each rank its own cores: fewer ranks per host, `OMP_NUM_THREADS` of at most cores / ranks, and pinning
        (`torchrun --numa-binding`, `taskset`). Until then, treat late ranks, slow ranks and slow links below this
        finding as its effects.
        - torchtitan, Megatron-LM, nanotron, DeepSpeed: run on devices.
        - our trainer: `--pace` takes compute off the cores.

    How the gain is predicted
        The run is replayed with all ranks performing like their peers (`ideal`): mean compute, median transfers and
        hosts. Separate cores would save more, but this run cannot show how much.

    When it is wrong
        If ops differ in something that shapes do not show, such as sparse data. Shared cores do not explain a rank that
        is slow in everything it does: it is a finding of its own, and comes first if it costs more.
    """

    CODE = RuleCode.SHARED_CORES
    TITLE = "Ranks share the cores of a host"
    NEEDS = (Input.ALL_RANKS, Input.ONE_CLOCK)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare how long each op takes on one rank with its own median there."""
        manifest = tables.manifest
        if manifest is None or manifest.device != "cpu" or manifest.paced or manifest.processes_per_device < 2:
            return
        graph = graph_of(tables)
        beyond_ns, whole_ns = _beyond_median(tables, graph)
        uneven = beyond_ns.sum() / max(whole_ns, 1)
        if uneven < UNEVEN:
            return
        yield Draft(
            f"{manifest.processes_per_device} ranks share the cores of one host, so times of the same op vary widely",
            {},
            {
                "processes_per_host": manifest.processes_per_device,
                "beyond_median_fraction": float(uneven),
                **longest(graph, beyond_ns > 0, beyond_ns),
            },
            Edit("ideal"),
            "Give each rank its own cores: fewer ranks per host, fewer threads, pinning",
            covers=EFFECTS,
            rows=proof.heaviest(graph, beyond_ns > 0, beyond_ns),
        )


def _beyond_median(tables: TableSet, graph: Graph) -> tuple[Ints, int]:
    """Return each node's time above the median of its op and shapes on its rank, and the total time compared."""
    nodes, work = graph.nodes, work_of(tables)
    rows = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.step >= 0) & (work.shape >= 0))
    beyond = np.zeros(len(nodes), np.int64)
    if not len(rows):
        return beyond, 0
    own_ns = nodes.duration[rows]
    op_group = group_codes(nodes.rank[rows], nodes.name[rows], work.shape[rows])
    times = np.bincount(op_group)
    often = times[op_group] >= LEAST_TIMES
    beyond[rows[often]] = np.maximum(own_ns - middles(op_group, own_ns)[1][op_group], 0)[often]
    return beyond, int(own_ns[often].sum())


SLOWED = 1.1


class SlowedCompute:
    """Communication slows the compute that it overlaps with.

    What it finds
        Kernels (same name, grid and shapes) that take at least 1.1 times as long during communication as alone, if
        running as fast as alone would shorten the step by at least 2%.

    Why it costs time
        Communication kernels occupy multiprocessors and memory bandwidth. Products that fill whole waves of the device
        then need one wave more.

    What to do
        Give communication fewer multiprocessors, or use copy engines: `NCCL_MAX_CTAS`, `NCCL_MAX_NCHANNELS`,
        user-buffer registration, `CUDA_DEVICE_MAX_CONNECTIONS`.
        - torchtitan: `compile.enable`; symmetric memory with `parallelism.enable_async_tensor_parallel`.
        - Megatron-LM: `--nccl-ub` with `--ddp-bucket-size`; `--tp-comm-overlap` with user buffers.
        - DeepSpeed: `overlap_comm: false` if the slowdown costs more than the overlap saves.
        - nanotron, our trainer: NCCL's environment variables.

    How the gain is predicted
        The run is replayed with these kernels as fast as alone and communication unchanged (`no_interference`): an
        upper limit, because communication with fewer resources takes longer.

    When it is wrong
        If the kernels differ in something that name, grid and shapes do not show.
    """

    CODE = RuleCode.SLOWED_COMPUTE
    TITLE = "Communication slows the compute that it overlaps with"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare kernels during communication with the same kernels alone."""
        graph = graph_of(tables)
        slowdown = interference(graph, tables)
        rows = slowdown.ratio > 1
        if not rows.any():
            return
        duration = graph.nodes.duration
        slowed = float(duration[rows].sum() / (duration[rows] / slowdown.ratio[rows]).sum())
        if slowed >= SLOWED:
            yield Draft(
                f"Compute takes {slowed:.2f}x as long during communication as alone",
                {},
                {"kernels": int(rows.sum()), "kinds_compared": slowdown.kinds, "ratio": slowed}
                | dict(longest(graph, rows, np.asarray(duration))),
                Edit("no_interference"),
                "Give communication kernels fewer SMs",
                basis=Basis.BOUND,
                rows=proof.heaviest(graph, rows),
                settings={"NCCL": "NCCL_MAX_CTAS", "Megatron-LM": "--nccl-ub"},
            )
