"""Extra waits: a rank whose host waits for its device more often than its peers is repaired by waiting as they do."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.columns.arrays import Flags
from usp_prof.findings.rules.slow_ranks import LateRank
from usp_prof.model.edit import parse_edit
from usp_prof.replay.build import graph_of
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.extra_waits import extra_waits
from usp_prof.whatif.host_steps import host_steps
from usp_prof.whatif.predict import predict

US = 1_000
STEPS, KERNELS = 4, 5
KERNEL_US, THINK_US, TRANSFER_US = 300, 100, 200


def _host(rank: int, call: str, waits: int) -> Trace:
    """Launch kernels and a reduction in each step; the host thinks after each kernel, and waits after the first ones.

    Hosts run ahead of their devices, so thinking costs time only after a wait. All ranks begin each step together.
    """
    trace = Trace(rank, 3).group("0", [0, 1, 2], "dp")
    slowest_us = KERNELS * KERNEL_US + 2 * THINK_US  # of the rank with two waits
    for step in range(STEPS):
        start = step * (slowest_us + TRANSFER_US + THINK_US)
        now, device = start, start
        for kernel in range(KERNELS):
            trace.kernel("work", (device := max(now + 5, device)) * US, KERNEL_US * US, launch_at=now * US)
            device, now = device + KERNEL_US, now + 10
            if kernel < waits:
                trace.launch(now * US, now * US, (device - now) * US, name=call)
                now = device
            now += THINK_US
        ends = start + slowest_us + TRANSFER_US + 20
        trace.collective("all_reduce", device * US, (ends - device) * US, group="0", sequence=step, launch_at=now * US)
        now += 10
        trace.launch(now * US, now * US, (ends - now) * US, name="cudaStreamSynchronize")
        trace.step(step, start * US, (ends - start) * US)
    return trace


def _gain_us(tables: TableSet, edit: str) -> float:
    prediction = predict(tables, [parse_edit(edit)])
    return (prediction.before_ns - prediction.after_ns) / US


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaFree"])
def test_a_rank_that_waits_more_often_than_its_peers_is_repaired(call: str) -> None:
    tables = table_set({rank: _host(rank, call, 2 if rank == 1 else 0) for rank in range(3)})
    for edit in ("rank_as_peers=1", "host_as_peers=1"):
        assert _gain_us(tables, edit) == pytest.approx(2 * THINK_US, abs=40)


def test_waits_that_all_ranks_have_stay() -> None:
    tables = table_set({rank: _host(rank, "cudaDeviceSynchronize", 2) for rank in range(3)})
    assert _gain_us(tables, "rank_as_peers=1") == pytest.approx(0, abs=1)


def test_the_wait_that_its_peers_have_stays() -> None:
    """All ranks wait after the last kernel; rank 1 also waits, for less time, after the first one."""
    tables = table_set({rank: _reads(rank, (0, 3) if rank == 1 else (3,)) for rank in range(3)})
    (extra,) = np.flatnonzero(_extra(tables, 1))
    start = graph_of(tables).nodes.start
    assert start[extra] - start.min() < 2 * KERNEL_US * US


def _reads(rank: int, after: tuple[int, ...]) -> Trace:
    """Launch four kernels; the host, far ahead, waits after some of them. Waiting once makes the later waits short."""
    trace, now, device = Trace(rank, 3).step(0, 0, 4_000 * US), 0, 0
    for kernel in range(4):
        device = max(device, now + 5)
        trace.kernel(f"work{kernel}", device * US, KERNEL_US * US, launch_at=now * US)
        device, now = device + KERNEL_US, now + 10
        if kernel in after:
            trace.launch(100 + kernel, now * US, (device - now) * US, name="cudaStreamSynchronize")
            now = device
    return trace


def _extra(tables: TableSet, rank: int) -> Flags:
    graph = graph_of(tables)
    return extra_waits(graph, tables, host_steps(graph, tables), {rank})


def test_late_rank_says_that_the_rank_waits_more_often() -> None:
    tables = table_set({rank: _host(rank, "cudaDeviceSynchronize", 2 if rank == 1 else 0) for rank in range(3)})
    (draft,) = LateRank.look(tables)
    assert draft.title.endswith("its host waits for the device more often than its peers")
