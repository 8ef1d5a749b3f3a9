"""Traces of a simulated job: one Kineto file per rank, of CUDA or ROCm, with the clocks of its nodes and devices."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from simulated_jobs.devices import Work
from simulated_jobs.hosts import Host
from simulated_jobs.job import Job

Event = dict[str, Any]
BASE_NS = 1_790_857_026_000_000_000
START_US = 4_890_565_539_439.0
DEVICES_PER_NODE = 8
DEVICE = {
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 84_942_979_072,
    "computeMajor": 9,
    "computeMinor": 0,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65_536,
    "warpSize": 32,
    "sharedMemPerBlock": 49_152,
    "numSms": 132,
    "regsPerMultiprocessor": 65_536,
    "sharedMemPerBlockOptin": 232_448,
    "sharedMemPerMultiprocessor": 233_472,
}
ROCM_CALLS = {
    "cudaLaunchKernel": "hipLaunchKernel",
    "cuLaunchKernelEx": "hipExtLaunchKernel",
    "cuLaunchKernel": "hipModuleLaunchKernel",
}
ROCM_GEMM = "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_LDSB0_AFC1_"


def write(job: Job, folder: Path) -> None:
    """Write the trace of every rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for host in job.hosts:
        document = _Trace(job, host).document()
        node = host.rank // job.options.ranks_per_node
        name = f"node{node}_{host.main_thread}.{BASE_NS + host.rank}.pt.trace.json.gz"
        with gzip.open(folder / name, "wt", compresslevel=1) as file:
            json.dump(document, file)


class _Trace:
    """The trace of one rank."""

    def __init__(self, job: Job, host: Host) -> None:
        self.job, self.host, self.options = job, host, job.options
        self.device = host.rank % DEVICES_PER_NODE
        self.process = host.main_thread
        node = host.rank // job.options.ranks_per_node
        self._offset, self._rate = job.node_offset[node], 1 + job.node_drift[node]
        self._window_start = host.step_bounds[job.options.warmup][0]

    def document(self) -> Event:
        """Return the whole file."""
        options = self.options
        information: Event = {"backend": "nccl", "rank": self.host.rank, "world_size": options.ranks}
        if options.names == "full":
            information.update(self._groups())
        versions = {"cuda_runtime_version": 12040, "cuda_driver_version": 12040}
        if options.is_rocm:
            versions = {"roctracer_version": 4, "hip_runtime_version": 60_443_483}
        name = {"name": "AMD Instinct MI300X"} if options.is_rocm else {}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self.device, **DEVICE, **name}],
            "record_shapes": 0,
            "distributedInfo": information,
            **versions,
            "with_stack": 0,
            "trace_id": f"{options.seed:08X}{self.host.rank:024X}",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
            "traceName": f"/logs/rank{self.host.rank}.pt.trace.json",
            "traceEvents": [*self._metadata(), *self._host_events(), *self._device_events(), *self._ends()],
        }

    def _groups(self) -> Event:
        every = {group for groups in self.job.groups for group in groups.values() if self.host.rank in group.ranks}
        described = [
            {
                "pg_name": str(group.number),
                "pg_desc": group.axis,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in sorted(every, key=lambda group: group.number)
        ]
        return {"pg_count": len(described), "pg_config": described, "nccl_version": "2.27.3"}

    def _time(self, us: float) -> float:
        return round(START_US + us * self._rate + self._offset, 3)

    def _device_time(self, us: float) -> float:
        return self._time(us + self.job.device_offset[self.host.rank])

    def _metadata(self) -> list[Event]:
        events: list[Event] = []

        def add(name: str, process: int, thread: int, args: Event) -> None:
            events.append({"name": name, "ph": "M", "ts": self._time(0), "pid": process, "tid": thread, "args": args})

        for process, label, order in (
            (self.process, "CPU", self.process),
            (self.device, f"GPU {self.device}", 5_000_000 + self.device),
        ):
            add("process_name", process, 0, {"name": "python3"})
            add("process_labels", process, 0, {"labels": label})
            add("process_sort_index", process, 0, {"sort_index": order})
        for thread, name in ((self.host.main_thread, "python3"), (self.host.autograd_thread, "pt_autograd_0")):
            add("thread_name", self.process, thread, {"name": f"thread {thread} ({name})"})
        for stream in dict.fromkeys(work.stream for work in self.host.launched):
            add("thread_name", self.device, stream, {"name": f"stream {stream} "})
        return events

    def _host_events(self) -> list[Event]:
        return [
            {
                "ph": "X",
                "cat": "cuda_runtime" if self.options.is_rocm and event.category == "cuda_driver" else event.category,
                "name": _rocm_call(event.name) if self.options.is_rocm else event.name,
                "pid": self.process,
                "tid": event.thread,
                "ts": self._time(event.start),
                "dur": round(event.end - event.start, 3),
                "args": event.args,
            }
            for event in self.host.events
        ]

    def _device_events(self) -> list[Event]:
        events: list[Event] = []
        calls = {event.args["correlation"]: event for event in self.host.events if "correlation" in event.args}
        has_flow: set[int] = set()
        for work in self.host.launched:
            if not self._is_in_trace(work):
                continue
            events.append(self._device_event(work))
            call = calls.get(work.correlation)
            if call is None:
                continue
            flow: Event = {"id": work.correlation, "cat": "ac2g", "name": "ac2g"}
            if work.correlation not in has_flow:
                start = {"ph": "s", "pid": self.process, "tid": call.thread, "ts": self._time(call.start)}
                events.append({**flow, **start})
                has_flow.add(work.correlation)
            end = {"ph": "f", "pid": self.device, "tid": work.stream, "ts": events[-1]["ts"], "bp": "e"}
            events.append({**flow, **end, "ts": self._device_time(work.start or 0.0)})
        return events

    def _is_in_trace(self, work: Work) -> bool:
        """Return whether work is in the trace; what was launched earlier is there if it starts in the window."""
        return work.is_recorded or (work.start or 0.0) >= self._window_start

    def _device_event(self, work: Work) -> Event:
        start, end, name = work.start or 0.0, work.end or 0.0, work.name
        args: Event = {"device": self.device, "stream": work.stream, "correlation": work.correlation}
        if self.options.is_rocm:
            name, args["kind"] = _rocm_kernel(name), "Dispatch Kernel"
        else:
            args |= {"context": 1, **work.args}
            if work.is_recorded:
                args["External id"] = work.external_id
        return {
            "ph": "X",
            "cat": work.category,
            "name": name,
            "pid": self.device,
            "tid": work.stream,
            "ts": self._device_time(start),
            "dur": round(end - start, 3),
            "args": args,
        }

    def _ends(self) -> list[Event]:
        profiler = "PyTorch Profiler"
        length = round(self.host.now - self._window_start + 50, 3)
        span = {"ph": "X", "cat": "Trace", "ts": self._time(self._window_start - 50), "dur": length}
        end = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": self._time(self.host.now)}
        return [{**span, "pid": "Spans", "tid": profiler, "name": f"{profiler} (0)", "args": {"Op count": 0}}, end]


def _rocm_call(name: str) -> str:
    if name in ROCM_CALLS:
        return ROCM_CALLS[name]
    return "hip" + name.removeprefix("cuda") if name.startswith("cuda") else name


def _rocm_kernel(name: str) -> str:
    """Return the name on ROCm, where all communication has the same."""
    if name.startswith("nccl"):
        return "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    if name.startswith(("sm90", "nvjet")):
        return ROCM_GEMM + ("A" if name.startswith("sm90") else "B")
    return name
