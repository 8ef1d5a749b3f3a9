"""A run on which HTA is correct: whole microseconds, old NCCL names, work from edge to edge of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tiny
from tiny import Trace

if TYPE_CHECKING:
    from pathlib import Path

US = 1000
STEP_US = 1000
STEPS = (1, 2, 3)
ALL_REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"


class Work:
    """Device work with its launch, all in microseconds."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.count = trace, 0

    def add(self, name: str, at: int, dur: int, launch_at: int, *, stream: int = 7, category: str = "kernel") -> None:
        """Launch work; the call takes 5 us."""
        self.count += 1
        call = {"gpu_memcpy": "cudaMemcpyAsync"}.get(category, "cudaLaunchKernel")
        self.trace.launch(self.count, launch_at * US, 5 * US, name=call)
        args = {"bytes": 2_000_000, "memory bandwidth (GB/s)": 2000 / dur} if category == "gpu_memcpy" else {}
        self.trace.kernel(name, at * US, dur * US, stream=stream, correlation=self.count, category=category, args=args)


def rank(number: int, late_us: int = 0) -> Trace:
    """Build one of two ranks: per step of 1 ms, 600 us of compute, a partly hidden all-reduce, and a copy."""
    trace = Trace(number, 2, base=0).group("1", [0, 1], "mesh_dp")
    work = Work(trace)
    for place, step in enumerate(STEPS):
        at = 10_000 + place * STEP_US
        trace.step(step, at * US, STEP_US * US)
        trace.op("aten::mm", (at + 10) * US, 100 * US)
        trace.op("aten::copy_", (at + 120) * US, 50 * US)
        trace.event("forward", "gpu_user_annotation", (at + 10) * US, 700 * US, pid=0, tid=7)
        trace.event("inner", "gpu_user_annotation", (at + 210) * US, 400 * US, pid=0, tid=7)
        work.add("gemm", at + 10, 190, at + 2)
        work.add("gemm_two", at + 210 + late_us, 400, at + 40)
        work.add(ALL_REDUCE, at + 410 + late_us, 400 - late_us, at + 60, stream=20)
        work.add("Memcpy HtoD (Pinned -> Device)", at + 700, 50, at + 125, stream=9, category="gpu_memcpy")
        work.add("relu", at + 850, 160, at + 840)
    return trace


def write(folder: Path) -> Path:
    """Write both ranks; the second is late by 100 us."""
    return tiny.write({0: rank(0), 1: rank(1, late_us=100)}, folder, None)
