"""Rules on the host: launches that come too slowly, pauses, and batches that are not there in time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.proof import spot
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind
from usp_prof.replay.host_gaps import LOADS_DATA, loading_ns
from usp_prof.tables import clock
from usp_prof.whatif.edits import pauses, think_times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet


class HostBound:
    """The device waits for the host to launch its work.

    What it finds
        Device traces in which kernels that follow each other at once, without waiting for their launches, would shorten
        the step by 5 % or more. Less is ordinary: a few launches are late in every run.

    Why it costs time
        A kernel that is shorter than its launch (about 5 us of host time) leaves the device idle until the next
        arrives.

    What to do
        Make the work larger or the launches fewer: CUDA graphs (`torch.compile(mode="reduce-overhead")`, Megatron-LM
        `--enable-cuda-graph`), `torch.compile`, fused optimizers (`fused=True`), larger micro-batches; no
        synchronisation (`.item()`, printing a loss) inside the step. torchtitan: `compile.enable = true`; nanotron:
        larger `tokens.micro_batch_size`; DeepSpeed: `engine.compile()`; our trainer: `--compile`.

    How the gain is predicted
        The run is replayed with kernels waiting for each other and for communication only, and a host that no longer
        thinks before each launch (`no_launch_gaps`). The stated error reaches to a host whose launches take half as
        long.

    When it is wrong
        When the host waits for data or a value from the device that the graph would need as well.
    """

    CODE = "host-bound"
    TITLE = "The device waits for launches"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Ask what the step would be without waiting for launches."""
        launches = int((graph_of(tables).edges.kind == EdgeKind.LAUNCH).sum())
        if launches:
            yield Draft(
                "the device waits for the host to launch its kernels",
                {},
                {"launches": launches},
                Edit("no_launch_gaps"),
                "use CUDA graphs, torch.compile, fused kernels or a larger micro-batch",
                least_gain=0.05,
                # Work that begins as soon as it is launched: the device had nothing else to do.
                rows=f"SELECT * FROM launches WHERE kernels > 0 AND delay_ns >= 0 ORDER BY delay_ns LIMIT {proof.MOST}",
                covers=("slow-host", "memory-pressure", "unfused-optimizer"),
                settings={"torch": 'torch.compile(mode="reduce-overhead")', "Megatron-LM": "--enable-cuda-graph"},
            )


GARBAGE = re.compile(r"\bcollect\b|gc\.py|garbage", re.IGNORECASE)
"""Python's collector as a stack names it: `<built-in function collect>`."""
HOST_RANGES = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
HELD = 0.8
"""Share of the pause that a range must hold."""
COLLECT = "collect garbage at one moment on all ranks"
UNTOLD = "the trace does not show what ran: record with stacks (with_stack=True)"
SETTINGS = {"torchtitan": "training.gc_freq", "Megatron-LM": "--manual-gc --manual-gc-interval"}


class HostPause:
    """The host stops for a while: garbage collection, preemption, a checkpoint.

    What it finds
        Think times of a host that are far beyond its ordinary ones (20 times the 99th percentile and at least 2 ms),
        outside the data loader, the allocator's calls and waits for the device, whose removal would shorten the mean
        step by 2 % or more. It names the innermost op, annotation or Python frame in which the longest pause lies.

    Why it costs time
        The device runs dry, and since ranks pause at different moments, each pause stops all ranks that communicate
        with it.

    What to do
        Look at what ran in the pause; where nothing tells, record with `with_stack=True`. If it is Python's garbage
        collector, collect at one moment on all ranks: `gc.disable()` and `gc.collect()` every so many steps
        (torchtitan: `training.gc_freq`; Megatron-LM: `--manual-gc --manual-gc-interval 100`), `gc.freeze()` after the
        first step; save checkpoints in the background. nanotron and DeepSpeed have no setting: call `gc` in your own
        loop; our trainer makes it with `--fault pause`.

    How the gain is predicted
        The run is replayed with these pauses removed (`no_pauses`).

    When it is wrong
        When the recording holds a pause that is rare: the mean over few recorded steps overstates it.
    """

    CODE = "host-pause"
    TITLE = "The host stops for a while"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Find pauses of the hosts."""
        graph = graph_of(tables)
        paused_nodes = pauses(graph, tables)
        if not len(paused_nodes):
            return
        think = think_times(graph)[paused_nodes]
        node, length = int(paused_nodes[np.argmax(think)]), int(think.max())
        rank, end = int(graph.nodes.rank[node]), int(graph.nodes.start[node])
        ran = _ran_in(tables, rank, int(clock.of(tables).local(rank, np.array([end]))[0]) - length, length)
        collects = GARBAGE.search(ran) is not None
        times = "once" if len(paused_nodes) == 1 else f"{len(paused_nodes)} times"
        yield Draft(
            f"the host pauses {times}, longest on rank {rank}{f', in {ran}' if ran else ''}",
            {"rank": rank, "step": int(graph.nodes.step[node])},
            {
                "pauses": len(paused_nodes),
                "longest_ns": length,
                "total_ns": int(think.sum()),
                "ran_in_longest": ran,
                **spot(graph, node, end - length, end),
            },
            Edit("no_pauses"),
            COLLECT if collects else f"check what {ran} does there" if ran else UNTOLD,
            settings=SETTINGS if collects else {},
            rows=proof.gaps_before(graph, paused_nodes, think_times(graph)),
        )


def _ran_in(tables: TableSet, rank: int, begin: int, length: int) -> str:
    """Name the shortest range of the host that holds a span of time, on the rank's own clock; empty where none does."""
    events = tables.columns("events", rank)
    codes, names = events.codes("category")
    of_host = lookup([name in HOST_RANGES for name in names], codes, missing=False)
    start, duration = events["start_ns"], events["dur_ns"]
    covered = np.minimum(start + duration, begin + length) - np.maximum(start, begin)
    rows = np.flatnonzero(of_host & (covered >= HELD * length))
    codes, names = events.codes("name")
    # The step holds every pause, and says nothing of it.
    is_step = lookup([name.startswith("ProfilerStep#") for name in names], codes, missing=False)
    rows = rows[~is_step[rows]]
    if not len(rows):
        return ""
    shortest = int(rows[np.argmin(duration[rows])])
    return names[int(codes[shortest])]


class LateInput:
    """The device waits for the next batch.

    What it finds
        Time of the host inside the data loader (`enumerate(DataLoader)`, a `train::input` mark, ...) whose removal
        would shorten the step by 3 % or more. One rank that loads slowly is enough: its peers wait in their
        collectives.

    Why it costs time
        A batch that is not there when the step begins is waited for with nothing on the device's queue.

    What to do
        Load ahead in other processes: `num_workers` and `prefetch_factor` of `torch.utils.data.DataLoader` (torchtitan:
        `training.dataloader.num_workers`; Megatron-LM: `--num-workers`; nanotron: `data_stages.*.num_loading_workers`),
        with `pin_memory=True` and `non_blocking=True` copies; keep tokenised data on local disks.
        DeepSpeed: `num_local_io_workers` of `deepspeed_io`; our trainer makes it with `--fault late-input`.

    How the gain is predicted
        The run is replayed with the host's time in the loader removed (`no_input_wait`), on all ranks.

    When it is wrong
        When the loader's range covers work that has to be done anyway (packing, copies to the device).
    """

    CODE = "late-input"
    TITLE = "The device waits for the next batch"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Measure the host's time in the data loader, per step and rank."""
        loading = {rank: loading_ns(tables, rank) / max(len(tables.columns("steps", rank)), 1) for rank in tables.ranks}
        worst = max(loading, key=lambda rank: (loading[rank], -rank), default=-1)
        if worst < 0 or not loading[worst]:
            return
        yield Draft(
            f"the step waits for data; rank {worst} loads longest",
            {"rank": worst},
            {"loading_ns_per_step": loading[worst], "median_ns_per_step": sorted(loading.values())[len(loading) // 2]},
            Edit("no_input_wait"),
            "load ahead: more workers, prefetching, pinned memory",
            least_gain=0.03,
            rows=_rows(worst),
            settings={"torch": "DataLoader(num_workers=, prefetch_factor=, pin_memory=True)"},
        )


def _rows(rank: int) -> str:
    """Select the ranges in which a rank loads data."""
    ranges = " UNION ALL ".join(
        f"SELECT rank, step, name, start_ns, dur_ns FROM {table} "
        f"WHERE rank = {rank} AND regexp_matches(name, '{LOADS_DATA.pattern}', 'i'){only}"
        for table, only in (("annotations", " AND NOT on_device"), ("ops", ""))
    )
    return f"{ranges} ORDER BY dur_ns DESC LIMIT {proof.MOST}"
