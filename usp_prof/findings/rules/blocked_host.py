"""Rules on a blocked host: waits for the device, copies from pageable memory, the allocator's own calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from usp_prof.analyses import host, memory
from usp_prof.analyses.measures.ranges import SyncStat
from usp_prof.analyses.step_time import is_window
from usp_prof.columns.arrays import Flags
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.place import of_ranks, outstanding_rank, place_of
from usp_prof.findings.proof import longest
from usp_prof.findings.rules.hosts import FAULTS_OF_HOSTS
from usp_prof.model.edit import Edit
from usp_prof.model.printable import counted
from usp_prof.model.rule_code import RuleCode
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph
from usp_prof.replay.host_gaps import TAKES_MEMORY, allocating
from usp_prof.tables import clock
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.host import blocks, pageable, read_values


class BlockingSync:
    """The host waits for the device, or for a value of all ranks, within the step.

    What it finds
        Device traces with calls in which the host waits for the device (`cudaStreamSynchronize`,
        `cudaDeviceSynchronize`, a copy to the host), if removing them would shorten the step by at least 2%. The title
        names the op, mark or function around the most expensive call, and the rank if one has far more waits. One wait
        per step is accepted if it is in an op that copies or reads a value, because a loss must be read some time.
        Calls that free device memory belong to `memory-pressure`. Without a device: small collectives whose result the
        host reads immediately (`.item()` is the next op), more than one per step, if removing them would shorten the
        step by at least 1%.

    Why it costs time
        While the host waits, it launches nothing, and the device is idle until the next launch. Without a device, all
        ranks stop for the slowest one each time.

    What to do
        Move the call out of the step: no `.item()`, `print(loss)`, `.cpu()`, boolean tests or `nonzero` on device
        tensors. `torch.cuda.set_sync_debug_mode("warn")` shows each one.
        - torchtitan: larger `metrics.log_freq`.
        - Megatron-LM: larger `--log-interval`, `--no-check-for-nan-in-loss-and-grad`, `--timing-log-level 0`.
        - nanotron: larger `logging.iteration_step_info_interval`.
        - DeepSpeed: larger `steps_per_print`, `wall_clock_breakdown: false`.
        - our trainer: only with `--fault blocking-sync`.

    How the gain is predicted
        The run is replayed with the host continuing immediately after all such calls or collectives except the last
        read of each step (`no_blocking`).

    When it is wrong
        If the value decides what is launched next, as in routing without padding or early stopping.
    """

    CODE = RuleCode.BLOCKING_SYNC
    TITLE = "The host waits for the device, or for a value of all ranks, within the step"
    NEEDS = (Input.LAUNCHES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft findings for waits beyond one per step, with the most expensive source."""
        graph = graph_of(tables)
        for_device, for_ranks = blocks(graph, tables, copies_only=False), read_values(graph, tables)
        if for_device.any():
            yield _device_waits(tables, graph, for_device)
        if for_ranks.any():
            yield _value_waits(graph, for_ranks)


_LOGGING = {
    "Megatron-LM": "--no-check-for-nan-in-loss-and-grad",
    "DeepSpeed": "wall_clock_breakdown",
    "torchtitan": "metrics.log_freq",
}


def _device_waits(tables: TableSet, graph: Graph, rows: Flags) -> Draft:
    rank = _rank_with_most(tables, graph, rows)
    if rank is not None:
        rows = rows & (graph.nodes.rank == rank)
    syncs = [sync for sync in host.compute(tables).syncs if rank in (None, sync.rank)]
    worst = max(_by_cause(syncs).items(), key=lambda item: (item[1], item[0]), default=("", 0))
    # Without ops, as in light mode, the calls are known, but not who makes them.
    call = max((sync.time_ns, sync.name) for sync in syncs)[1] if syncs and not worst[0] else ""
    advice = f"Record CPU ops to see where {call} is called" if call else "Move this wait out of the step"
    waits = _per_step(graph, rows)
    count = "once" if round(waits) == 1 else f"{waits:.0f} times"
    whose = "" if rank is None else f" of rank {rank}"
    return Draft(
        f"The host{whose} waits for the device {count} per step, longest in {worst[0] or call or 'an unknown call'}",
        {} if rank is None else {"rank": rank},
        {
            "waits_per_step": waits,
            "source": worst[0],
            "source_ns": worst[1],
            **longest(graph, rows, np.maximum(graph.gap, 0)),
        },
        Edit("no_blocking"),
        f"Move the wait in {worst[0]} out of the step" if worst[0] else advice,
        covers=FAULTS_OF_HOSTS if rank is None else (),
        rows=proof.heaviest(graph, rows, np.maximum(graph.gap, 0)),
        settings=_LOGGING,
    )


def _rank_with_most(tables: TableSet, graph: Graph, rows: Flags) -> int | None:
    """Return the rank that has far more of the marked nodes than every other rank, at least one more in each step.

    Numbers are compared, not times: the others wait longer, because they wait for this rank.
    """
    if len(tables.ranks) < 2:
        return None
    number = {rank: float((rows & (graph.nodes.rank == rank)).sum()) for rank in tables.ranks}
    rank = outstanding_rank(number)
    if rank is None:
        return None
    of_others = max(count for other, count in number.items() if other != rank)
    steps = np.unique(graph.nodes.step[rows & (graph.nodes.rank == rank)])
    return rank if number[rank] - of_others >= len(steps) else None


def _value_waits(graph: Graph, rows: Flags) -> Draft:
    waits = _per_step(graph, rows)
    return Draft(
        f"The host waits for a reduced value {waits:.0f} times per step, not counting the last one",
        {},
        {"waits_per_step": waits, **longest(graph, rows, graph.duration)},
        Edit("no_blocking"),
        "Read losses and norms once per step, after the update",
        least_gain=0.01,
        rows=proof.heaviest(graph, rows, graph.duration),
        settings=_LOGGING,
    )


def _per_step(graph: Graph, rows: Flags) -> float:
    """Return the mean number of marked nodes per rank and step, over those with any."""
    places = np.unique(np.stack([graph.nodes.rank[rows], graph.nodes.step[rows]]), axis=1)
    return float(rows.sum() / places.shape[1])


def _by_cause(syncs: Iterable[SyncStat]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for sync in syncs:
        sums[sync.cause] = sums.get(sync.cause, 0) + sync.time_ns
    return sums


class BlockingCopies:
    """Copies from pageable memory block the host.

    What it finds
        Copies between the device and pageable host memory (named `Pageable` by Kineto), if pinned memory would shorten
        the step by at least 1%. Copies of single values such as a loss are shorter than that.

    Why it costs time
        A copy from pageable memory uses a staging buffer. It is slower, and the call returns only when it is done, so
        nothing is launched meanwhile.

    What to do
        Pin the memory and copy without blocking: `DataLoader(pin_memory=True)`, `tensor.to(device, non_blocking=True)`.
        - torchtitan: `training.dataloader.pin_memory = true`.
        - Megatron-LM: its loaders pin; check your own.
        - nanotron: its loader pins; check the collator.
        - DeepSpeed: `deepspeed_io(pin_memory=True)`, `offload_optimizer.pin_memory: true`.
        - our trainer: pins by default.

    How the gain is predicted
        The run is replayed with the host continuing immediately after these copies, and each copy at 20 GB/s, which
        pinned memory reaches over PCIe 4 (`pinned_copies`): modeled.

    When it is wrong
        If the host needs what it copied back.
    """

    CODE = RuleCode.BLOCKING_COPIES
    TITLE = "Copies from pageable memory block the host"
    NEEDS = (Input.LAUNCHES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding if pageable copies block the host."""
        graph = graph_of(tables)
        copies = pageable(graph) & (graph.nodes.step >= 0)
        waits = blocks(graph, tables, copies_only=True)
        if number := int(copies.sum()):
            rank = _rank_with_most(tables, graph, copies)
            steps = counted(len(np.unique(graph.nodes.step[copies])), "step")
            title = (
                "1 copy from or to pageable memory blocks the host"
                if number == 1
                else f"{number:,} copies from or to pageable memory block the host in {steps}"
            )
            yield Draft(
                title if rank is None else f"{title}, most on rank {rank}",
                {} if rank is None else {"rank": rank},
                {
                    "copies": number,
                    "copy_ns": int(graph.nodes.duration[copies].sum()),
                    "host_waits": int(waits.sum()),
                    **longest(graph, copies),
                },
                Edit("pinned_copies"),
                "Pin the host memory and copy without blocking",
                least_gain=0.01,
                covers=FAULTS_OF_HOSTS if rank is None else (),
                rows=proof.heaviest(graph, copies),
                settings={"torch": "pin_memory=True, non_blocking=True", "DeepSpeed": "offload_optimizer.pin_memory"},
            )


class MemoryPressure:
    """The allocator requests and frees device memory within the step.

    What it finds
        Runs that call `cudaMalloc`, `cudaFree` and similar functions within the recorded steps, if removing the calls
        would shorten the step by at least 1%. Without known steps the rule does not look, because the start of a
        program also allocates (creating a context can take seconds). The evidence shows how full the device is: retries
        happen if the cache is full or fragmented.

    Why it costs time
        A device allocation stalls the host, and freeing waits for all work on the device. The caching allocator does
        both if it finds no suitable block, and a retry does it for the whole cache.

    What to do
        Free or defragment memory: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, smaller micro-batches, no
        `empty_cache()` within the step.
        - torchtitan: its scripts set expandable segments; smaller `training.local_batch_size`.
        - Megatron-LM: `--empty-unused-memory-level 0`, smaller `--micro-batch-size`, `--recompute-activations`.
        - nanotron: smaller `tokens.micro_batch_size`.
        - DeepSpeed: `contiguous_gradients: true`, smaller `stage3_max_live_parameters`.
        - our trainer: smaller `--micro-batch`, or `--recompute selective`.

    How the gain is predicted
        The run is replayed without the host's time in these calls, including waits for the device
        (`no_allocator_calls`), or only without that of the rank that costs the step (`no_allocator_calls,rank=3`).

    When it is wrong
        If the recorded steps are warm-up, in which every run allocates.
    """

    CODE = RuleCode.MEMORY_PRESSURE
    TITLE = "The allocator requests and frees device memory within the step"
    NEEDS = (Input.LAUNCHES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft a finding for the rank whose host spends most time in device allocations."""
        spent, place = {}, {}
        for rank in tables.ranks:
            if is_window(tables, rank):
                continue  # without steps, allocations of the start and of the steps look alike
            launches = tables.columns("launches", rank)
            begin, end = allocating(launches.take(launches["step"] >= 0))
            if len(begin):
                most = int(np.argmax(end - begin))
                spent[rank], place[rank] = int((end - begin).sum()), (begin[most], end[most])
        if not spent:
            return
        of_all = {rank: float(spent.get(rank, 0)) for rank in tables.ranks}
        yield of_ranks(partial(_allocating, tables, place), of_all, Edit("no_allocator_calls"))


def _allocating(
    tables: TableSet, place: Mapping[int, tuple[int, int]], spent: Mapping[int, float], edit: Edit
) -> Draft:
    """Draft the finding on the ranks that allocate in `spent`; `place` is the longest call of each of them."""
    worst = max(spent, key=lambda rank: (spent[rank], -rank))
    usage = memory.compute(tables)
    full = {peak.rank: 1 - usage.headroom(peak) for peak in usage.peaks}.get(worst, float("nan"))
    first, last = (int(clock.fit_clocks(tables).align(worst, when)) for when in place[worst])
    outstanding = outstanding_rank(spent)
    whose = "" if outstanding is None else f", most on rank {outstanding}"
    return Draft(
        f"Device memory is allocated within the step{whose}",
        place_of(spent),
        {
            "calls_per_step": usage.allocator_calls.get(worst, 0.0),
            "host_ns": int(spent[worst]),
            "memory_in_use": full if np.isfinite(full) else "unknown: record memory",
            "at_rank": worst,
            "start_ns": first,
            "end_ns": last,
        },
        edit,
        "Leave memory free; set expandable_segments:True",
        least_gain=0.01,
        rows=proof.largest("launches", f"rank = {worst} AND regexp_matches(name, '{TAKES_MEMORY.pattern}')", "dur_ns"),
        settings={"torch": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
    )
