"""Rules on the host: launches that come too slowly, pauses, and batches that are not there in time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.place import of_ranks, outstanding_rank, place_of
from usp_prof.findings.proof import spot
from usp_prof.model.edit import Edit
from usp_prof.model.rule_code import RuleCode
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, Graph
from usp_prof.replay.host_gaps import LOADS_DATA, loading_per_step_ns
from usp_prof.replay.pauses import PausePlace, Pauses, pauses
from usp_prof.replay.rank_clocks import rank_clocks
from usp_prof.tables.table_set import TableSet

FAULTS_OF_HOSTS = (RuleCode.SLOW_HOST, RuleCode.HOST_PAUSE, RuleCode.LATE_RANK, RuleCode.MEMORY_PRESSURE)
"""Findings on single hosts, which are repaired before the launches of all ranks are made fewer."""


class HostBound:
    """The device waits for launches.

    What it finds
        Device traces in which running kernels back to back, without waiting for their launches, would shorten the step
        by at least 5%. A few late launches are normal in every run. Processes that share a device are left out: the
        device idles for one of them while it works for another.

    Why it costs time
        A kernel that is shorter than its launch (about 5 us of host time) leaves the device idle until the next launch
        arrives.

    What to do
        Make the work larger or the launches fewer, and avoid synchronization (`.item()`, printing a loss) inside the
        step.
        - PyTorch: CUDA graphs (`torch.compile(mode="reduce-overhead")`), fused optimizers (`fused=True`), larger
          micro-batches.
        - torchtitan: `compile.enable = true`.
        - Megatron-LM: `--enable-cuda-graph`.
        - nanotron: larger `tokens.micro_batch_size`.
        - DeepSpeed: `engine.compile()`.
        - our trainer: `--compile`.

    How the gain is predicted
        The run is replayed with kernels waiting only for each other and for communication, and without host think time
        before launches (`no_launch_gaps`). The error covers a host whose launches take half as long.

    When it is wrong
        If the host waits for data, or for a device value that a graph would need as well.
    """

    CODE = RuleCode.HOST_BOUND
    TITLE = "The device waits for launches"
    NEEDS = (Input.LAUNCHES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding on waits for launches."""
        launches = int((graph_of(tables).edges.kind == EdgeKind.LAUNCH).sum())
        shares = tables.manifest is not None and tables.manifest.processes_per_device > 1
        if launches and not shares:
            yield Draft(
                "The device waits for the host to launch kernels",
                {},
                {"launches": launches},
                Edit("no_launch_gaps"),
                "Use CUDA graphs, torch.compile, fused kernels or a larger micro-batch",
                least_gain=0.05,
                # Work that begins as soon as it is launched: the device had nothing else to do.
                rows=f"SELECT * FROM launches WHERE kernels > 0 AND delay_ns >= 0 ORDER BY delay_ns LIMIT {proof.MOST}",
                covers=(*FAULTS_OF_HOSTS, RuleCode.LATE_INPUT, RuleCode.UNFUSED_OPTIMIZER),
                settings={"torch": 'torch.compile(mode="reduce-overhead")', "Megatron-LM": "--enable-cuda-graph"},
            )


GARBAGE = re.compile(r"\bcollect\b|gc\.py|garbage", re.IGNORECASE)
"""Python's collector as a stack names it: `<built-in function collect>`."""
HOST_RANGES = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
LEAST_COVERED = 0.8
"""Minimum share of a pause that a range must cover to be its cause."""
COLLECT = "Collect garbage on all ranks at the same time"
MANY = 3
"""Pauses per rank and step from which the host seems to lose its cores."""
NO_CORES = "Check the CPU limit (cgroup quota), pinning and other processes: the hosts stop in many places"
UNTOLD = "The trace does not show what ran: record with stacks (with_stack=True)"
SETTINGS = {"torchtitan": "training.gc_freq", "Megatron-LM": "--manual-gc --manual-gc-interval"}


class HostPause:
    """The host pauses.

    What it finds
        Times in which a host does nothing for far longer than usual, if removing them would shorten the mean step by at
        least 2%. Data loading, allocator calls, waits for the device, and work that recurs at its place on all ranks
        are no pauses.
        - Before a call: at least 2 ms, and 20 times the 99th percentile or 3 times as long as all shorter gaps.
        - Before a call: at least 1 ms, and 3 times as long as at the same place in other steps and on other ranks.
        - Within a launch whose queue is not full: at least 2 ms and 20 times the 99th percentile.
        - Before the first call: at least 2 ms, and 3 times as long as on the peers.

        The title names a rank if its pauses alone cost as much as those of all ranks, or are much longer than all
        others. It also names the innermost op, annotation or Python frame of the longest pause.

    Why it costs time
        The device runs out of work. Ranks pause at different times, so each pause stops all ranks that communicate with
        it.

    What to do
        Check what ran in the pause; record with `with_stack=True` if nothing is named. If it is Python's garbage
        collector, collect on all ranks at the same time: `gc.disable()`, `gc.freeze()` after the first step, and
        `gc.collect()` every few steps. Save checkpoints in the background. Many pauses in each step, at different
        places, mean that the process loses its cores: check its CPU limit, pinning and other processes.
        - torchtitan: `training.gc_freq`.
        - Megatron-LM: `--manual-gc --manual-gc-interval 100`.
        - nanotron, DeepSpeed: no setting; call `gc` in your own loop.
        - our trainer: `--fault pause` reproduces it.

    How the gain is predicted
        The run is replayed without these pauses (`no_pauses`), or only without those of the rank that costs the step
        (`no_pauses,rank=3`).

    When it is wrong
        If the recording contains a rare pause: the mean over few recorded steps overstates it.
    """

    CODE = RuleCode.HOST_PAUSE
    TITLE = "The host pauses"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Find pauses of the hosts."""
        graph = graph_of(tables)
        host_pauses = pauses(graph, tables)
        if len(host_pauses.node):
            of_rank = graph.nodes.rank[host_pauses.node]
            paused_ns = {rank: float(host_pauses.excess_ns[of_rank == rank].sum()) for rank in tables.ranks}
            yield of_ranks(partial(_pausing, tables, graph), paused_ns, Edit("no_pauses"))


def _pausing(tables: TableSet, graph: Graph, paused_ns: Mapping[int, float], edit: Edit) -> Draft:
    """Draft the finding on the ranks that pause in `paused_ns`."""
    host_pauses = pauses(graph, tables).of_ranks(graph, [rank for rank, ns in paused_ns.items() if ns])
    worst = outstanding_rank(paused_ns)
    of_rank = graph.nodes.rank[host_pauses.node]
    longest = np.argmax(
        np.where(of_rank == worst, host_pauses.excess_ns, 0) if worst is not None else host_pauses.excess_ns
    )
    node, length = int(host_pauses.node[longest]), int(host_pauses.excess_ns[longest])
    is_within = host_pauses.place[longest] == PausePlace.WITHIN_CALL
    rank, end = int(of_rank[longest]), int((graph.nodes.end if is_within else graph.nodes.start)[node])
    ran = _ran_in(tables, rank, int(rank_clocks(tables).local_host(rank, np.array([end]))[0]) - length, length)
    collects = GARBAGE.search(ran) is not None
    in_steps = np.unique(np.stack([of_rank, graph.nodes.step[host_pauses.node]]), axis=1).shape[1]
    is_everywhere = len(host_pauses.node) >= MANY * in_steps
    return Draft(
        f"{_who_pauses(paused_ns, worst, len(host_pauses.node))}{_where_in(ran, len(host_pauses.node))}",
        {**place_of(paused_ns), **({} if worst is None else {"step": int(graph.nodes.step[node])})},
        {
            "pauses": len(host_pauses.node),
            "longest_ns": length,
            "total_ns": int(host_pauses.excess_ns.sum()),
            "ran_in_longest": ran,
            **spot(graph, node, end - length, end),
        },
        edit,
        COLLECT if collects else NO_CORES if is_everywhere else f"Check what {ran} does" if ran else UNTOLD,
        settings=SETTINGS if collects else {},
        rows=_proof(graph, host_pauses),
    )


def _proof(graph: Graph, host_pauses: Pauses) -> str:
    """Return a SELECT of the longest gaps before calls, or of the longest calls if all pauses are within some."""
    before = host_pauses.by_node(graph, PausePlace.BEFORE_CALL) + host_pauses.by_node(
        graph, PausePlace.BEFORE_FIRST_CALL
    )
    if before.any():
        return proof.gaps_before(graph, np.flatnonzero(before), before)
    return proof.heaviest(graph, host_pauses.by_node(graph, PausePlace.WITHIN_CALL) > 0)


def _who_pauses(paused_ns: Mapping[int, float], worst: int | None, count: int) -> str:
    """Return which hosts pause, and how often."""
    times = "once" if count == 1 else f"{count} times"
    ranks = [rank for rank, paused in paused_ns.items() if paused]
    if len(ranks) == 1:
        return f"The host of rank {ranks[0]} pauses {times}"
    return f"The hosts of {len(ranks)} ranks pause {times}{'' if worst is None else f', most on rank {worst}'}"


def _where_in(ran: str, count: int) -> str:
    return f", {'' if count == 1 else 'longest '}in {ran}" if ran else ""


def _ran_in(tables: TableSet, rank: int, begin: int, length: int) -> str:
    """Return the shortest host range around a span of time, on the rank's own clock; empty if there is none."""
    events = tables.columns("events", rank)
    codes, names = events.codes("category")
    of_host = lookup([name in HOST_RANGES for name in names], codes, missing=False)
    start, duration = events["start_ns"], events["dur_ns"]
    covered = np.minimum(start + duration, begin + length) - np.maximum(start, begin)
    rows = np.flatnonzero(of_host & (covered >= LEAST_COVERED * length))
    codes, names = events.codes("name")
    # The range of a step covers every pause, so it explains none.
    is_step = lookup([name.startswith("ProfilerStep#") for name in names], codes, missing=False)
    rows = rows[~is_step[rows]]
    if not len(rows):
        return ""
    shortest = int(rows[np.argmin(duration[rows])])
    return names[int(codes[shortest])]


class LateInput:
    """The step waits for input data.

    What it finds
        Host time in the data loader (`enumerate(DataLoader)`, a `train::input` mark, ...), if removing it would shorten
        the step by at least 3%. One slow rank is enough, because its peers wait in their collectives.

    Why it costs time
        If the batch is missing when the step starts, the device has nothing to run.

    What to do
        Load ahead in other processes with `num_workers`, `prefetch_factor`, `pin_memory=True` and `non_blocking=True`
        copies. Keep tokenized data on local disks.
        - torchtitan: `training.dataloader.num_workers`.
        - Megatron-LM: `--num-workers`.
        - nanotron: `data_stages.*.num_loading_workers`.
        - DeepSpeed: `num_local_io_workers` of `deepspeed_io`.
        - our trainer: `--fault late-input` reproduces it.

    How the gain is predicted
        The run is replayed without the host's time in the loader (`no_input_wait`), on all ranks, or only on the rank
        that costs the step (`no_input_wait,rank=3`).

    When it is wrong
        If the loader's range includes work that is needed anyway, such as packing or copies to the device.
    """

    CODE = RuleCode.LATE_INPUT
    TITLE = "The step waits for input data"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Measure the host's time in the data loader, per step and rank."""
        loading = {rank: loading_per_step_ns(tables, rank) for rank in tables.ranks}
        if any(loading.values()):
            yield of_ranks(partial(_loading, loading), loading, Edit("no_input_wait"))


def _loading(of_all: Mapping[int, float], loading: Mapping[int, float], edit: Edit) -> Draft:
    """Draft the finding on the ranks that load data in `loading`; `of_all` is the time of all ranks."""
    outstanding = outstanding_rank(loading)
    return Draft(
        f"The step waits for input data{'' if outstanding is None else f', longest on rank {outstanding}'}",
        place_of(loading),
        {
            "loading_ns_per_step": max(loading.values()),
            "median_ns_per_step": sorted(of_all.values())[len(of_all) // 2],
        },
        edit,
        "Load ahead: more workers, prefetching, pinned memory",
        least_gain=0.03,
        rows=_rows(max(loading, key=lambda rank: (loading[rank], -rank))),
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
