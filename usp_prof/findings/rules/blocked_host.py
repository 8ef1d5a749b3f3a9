"""Rules on a blocked host: waits for the device, copies from pageable memory, the allocator's own calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import host, memory
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.host_gaps import TAKES_MEMORY, allocating
from usp_prof.tables import clock
from usp_prof.whatif.edits.host import blocks, pageable, read_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.analyses.measures.ranges import SyncStat
    from usp_prof.columns.arrays import Flags
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet


class BlockingSync:
    """The host waits for the device, or for a value of all ranks, within the step.

    What it finds
        Device traces with calls inside the step in which the host waits for the device (`cudaStreamSynchronize`,
        `cudaDeviceSynchronize`, a copy to the host), more than one a step, whose absence would shorten the step by 2 %
        or more. The source is named: the op, mark or function around the call that costs most. One wait a step is left:
        a loss has to be read some time.
        Without a device: small collectives whose result the host reads at once (`.item()` is the next op after the
        post), more than one a step, whose absence would shorten the step by 1 % or more.

    Why it costs time
        While the host waits it launches nothing; when the device is done it stands idle until the next launch arrives.
        Without a device all ranks stop for the slowest, time and again.

    What to do
        Take the call out of the step: no `.item()`, `print(loss)`, `.cpu()`, boolean tests or `nonzero` on device
        tensors. torchtitan: raise `metrics.log_freq`; Megatron-LM: `--log-interval` larger,
        `--no-check-for-nan-in-loss-and-grad`, `--timing-log-level 0`; nanotron: `logging.iteration_step_info_interval`
        larger; DeepSpeed: `steps_per_print` larger, `wall_clock_breakdown: false`; our trainer: it has none unless
        `--fault blocking-sync` puts one there. `torch.cuda.set_sync_debug_mode("warn")` shows each.

    How the gain is predicted
        The run is replayed with the host going on at once after all such calls, or collectives, but the last of each
        step (`no_blocking`).

    When it is wrong
        When the value decides what is launched next (routing without padding, early stopping).
    """

    CODE = "blocking-sync"
    TITLE = "The host waits for the device, or for a value of all ranks, within the step"
    NEEDS = (Input.LAUNCHES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Count the waits beyond one a step, and name the costliest source."""
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
    syncs = host.compute(tables).syncs
    worst = max(_by_cause(syncs).items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return Draft(
        f"the host waits for the device {_per_step(graph, rows):.0f} times a step, "
        f"most in {worst[0] or 'an unknown op'}",
        {},
        {
            "waits_per_step": _per_step(graph, rows),
            "source": worst[0],
            "source_ns": worst[1],
            **longest(graph, rows, np.maximum(graph.gap, 0)),
        },
        Edit("no_blocking"),
        f"take the wait in {worst[0] or 'it'} out of the step",
        rows=proof.heaviest(graph, rows, np.maximum(graph.gap, 0)),
        settings=_LOGGING,
    )


def _value_waits(graph: Graph, rows: Flags) -> Draft:
    waits = _per_step(graph, rows)
    return Draft(
        f"the host waits for a reduced value {waits:.0f} times a step, besides the last one",
        {},
        {"waits_per_step": waits, **longest(graph, rows, graph.duration)},
        Edit("no_blocking"),
        "read losses and norms once a step, after the update",
        least_gain=0.01,
        rows=proof.heaviest(graph, rows, graph.duration),
        settings=_LOGGING,
    )


def _per_step(graph: Graph, rows: Flags) -> float:
    """Give the mean number of marked nodes in a rank's step that has any."""
    places = np.unique(np.stack([graph.nodes.rank[rows], graph.nodes.step[rows]]), axis=1)
    return float(rows.sum() / places.shape[1])


def _by_cause(syncs: Iterable[SyncStat]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for sync in syncs:
        sums[sync.cause] = sums.get(sync.cause, 0) + sync.time_ns
    return sums


class BlockingCopies:
    """Copies from pageable memory hold up the host.

    What it finds
        Copies between the device and pageable host memory (Kineto names them `Pageable`), where pinned memory would
        shorten the step by 1 % or more. A copy of a loss takes a few microseconds: less than that is one of those.

    Why it costs time
        A copy from pageable memory goes through a staging buffer: it is slower, and the call returns only when it is
        done, so that nothing is launched meanwhile.

    What to do
        Pin the memory and copy without blocking: `DataLoader(pin_memory=True)`, `tensor.to(device, non_blocking=True)`.
        torchtitan: `training.dataloader.pin_memory = true`; Megatron-LM: its loaders pin, look at your own; nanotron:
        its loader pins, look at what the collator adds; DeepSpeed: `deepspeed_io(pin_memory=True)`, and
        `offload_optimizer.pin_memory: true`; our trainer: pins by itself.

    How the gain is predicted
        The run is replayed with the host going on at once after these copies, and each at 20 GB/s, which pinned memory
        reaches over PCIe 4 (`pinned_copies`): modelled.

    When it is wrong
        When the host needs what it copied back.
    """

    CODE = "blocking-copies"
    TITLE = "Copies from pageable memory hold up the host"
    NEEDS = (Input.LAUNCHES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Count pageable copies, and the calls in which the host waits for copies."""
        graph = graph_of(tables)
        copies = pageable(graph)
        waits = blocks(graph, tables, copies_only=True)
        if copies.any():
            yield Draft(
                f"{int(copies.sum())} copies from or to pageable memory block the host",
                {},
                {
                    "copies": int(copies.sum()),
                    "copy_ns": int(graph.nodes.duration[copies].sum()),
                    "host_waits": int(waits.sum()),
                    **longest(graph, copies),
                },
                Edit("pinned_copies"),
                "pin the host memory and copy without blocking",
                least_gain=0.01,
                rows=proof.heaviest(graph, copies),
                settings={"torch": "pin_memory=True, non_blocking=True", "DeepSpeed": "offload_optimizer.pin_memory"},
            )


class MemoryPressure:
    """The allocator takes and gives back device memory within the step.

    What it finds
        Runs in which `cudaMalloc`, `cudaFree` and their like are called inside the recorded steps, after warm-up, and
        whose absence would shorten the step by 1 % or more. How full the device is stands beside it: retries happen
        when the cache is full or broken into pieces.

    Why it costs time
        A device allocation stalls the host, and freeing waits for all work on the device: the caching allocator does
        both when it finds no fitting block, and a retry does it for the whole cache.

    What to do
        Leave more room or break memory less: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, smaller micro-batches,
        no `empty_cache()` inside the step. torchtitan: sets expandable segments in its scripts,
        `training.local_batch_size` smaller; Megatron-LM: `--empty-unused-memory-level 0`, `--micro-batch-size` smaller
        or `--recompute-activations`; nanotron: `tokens.micro_batch_size` smaller; DeepSpeed: `contiguous_gradients:
        true`, smaller `stage3_max_live_parameters`; our trainer: `--micro-batch` smaller or `--recompute selective`.

    How the gain is predicted
        The run is replayed without the host's time in these calls (`no_allocator_calls`).

    When it is wrong
        When the recorded steps are warm-up, in which every run allocates.
    """

    CODE = "memory-pressure"
    TITLE = "The allocator takes and gives back device memory within the step"
    NEEDS = (Input.LAUNCHES,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Add up the host's time in device allocations."""
        spent, place = {}, {}
        for rank in tables.ranks:
            begin, end = allocating(tables.columns("launches", rank))
            if len(begin):
                most = int(np.argmax(end - begin))
                spent[rank], place[rank] = int((end - begin).sum()), (begin[most], end[most])
        if not spent:
            return
        worst = max(spent, key=lambda rank: (spent[rank], -rank))
        usage = memory.compute(tables)
        full = {peak.rank: 1 - usage.headroom(peak) for peak in usage.peaks}.get(worst, float("nan"))
        first, last = (int(clock.of(tables).align(worst, when)) for when in place[worst])
        yield Draft(
            f"device memory is allocated within the step, most on rank {worst}",
            {"rank": worst},
            {
                "calls_per_step": usage.allocator_calls.get(worst, 0.0),
                "host_ns": spent[worst],
                "memory_in_use": full if np.isfinite(full) else "not known: record memory",
                "at_rank": worst,
                "start_ns": first,
                "end_ns": last,
            },
            Edit("no_allocator_calls"),
            "leave memory free; set expandable_segments:True",
            least_gain=0.01,
            rows=proof.largest(
                "launches", f"rank = {worst} AND regexp_matches(name, '{TAKES_MEMORY.pattern}')", "dur_ns"
            ),
            settings={"torch": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
        )
