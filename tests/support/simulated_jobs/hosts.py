"""Hosts: the calls, ops and annotations of one rank's threads, and the device work that they launch.

Every call takes time of the host and can be recorded. A launch waits while its stream has `QUEUE` launches that have
not ended. A generator yields the work that its host waits for. All times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulated_jobs.devices import Devices, Meeting, Program, Work
from simulated_jobs.options import Fault, Group, Options

QUEUE = 1_000
COMPUTE = 7
"""Stream of compute."""
PAUSE_BETWEEN_CALLS_US, PAUSE_BETWEEN_OPS_US = 0.1, 0.2
FIRST_CORRELATION, CORRELATION_STEP = 7_000, 7
CALL_IDS = {
    "cudaLaunchKernel": 211,
    "cudaStreamWaitEvent": 147,
    "cudaEventRecord": 135,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaGraphLaunch": 311,
    "cudaStreamIsCapturing": 317,
    "cudaMalloc": 20,
    "cudaFree": 22,
    "cudaMemcpyAsync": 41,
}
COPIES = {
    "to device, pinned": "HtoD (Pinned -> Device)",
    "to device, pageable": "HtoD (Pageable -> Device)",
    "to host, pageable": "DtoH (Device -> Pageable)",
    "to host, pinned": "DtoH (Device -> Pinned)",
}


@dataclass(frozen=True, slots=True)
class HostEvent:
    """One recorded call, op or annotation."""

    category: str
    name: str
    thread: int
    start: float
    end: float
    args: dict[str, Any]


class Host:
    """The host of one rank: its time, its threads and what it has launched."""

    def __init__(self, options: Options, rank: int, groups: dict[str, Group], devices: Devices) -> None:
        self.options, self.rank, self.groups, self.devices = options, rank, groups, devices
        self.now = 0.0
        self.main_thread = 1000 + 137 * rank
        self.autograd_thread = self.main_thread + 61
        self.thread = self.main_thread
        self.device_factor = 1.0
        self.is_recording = False
        self.events: list[HostEvent] = []
        self.launched: list[Work] = []
        self.step_bounds: list[tuple[float, float]] = []
        self.sequence: dict[int, int] = defaultdict(int)
        """Number of collectives posted per group."""
        self.loaded_at: list[float] = []
        self.loader_ready = 0.0
        self._streams: dict[int, list[Work]] = defaultdict(list)
        self._awaited_by_stream: dict[int, list[Work]] = defaultdict(list)
        self._open_ops: list[int] = []
        self._external_id = 0
        self._correlation = FIRST_CORRELATION + rank
        self.begin_step(-1)

    def begin_step(self, step: int) -> None:
        """Start a step with its own random draws, so that steps do not depend on earlier draws."""
        self.step = step
        self.usual = np.random.default_rng([self.options.seed, self.rank, step + 1])
        self.of_fault = np.random.default_rng([self.options.seed, self.rank, step + 1, 1])
        self._drawn = self.usual
        fault = self.active_fault()
        self._host_factor = fault.size if fault and fault.kind == "slow_host" else 1.0
        self._kernel_factor = fault.size if fault and fault.kind == "slow_gpu" else 1.0
        self._preempted = fault if fault and fault.kind == "contention" else None

    def active_fault(self, kind: str = "") -> Fault | None:
        """Return the fault of this rank in this step, if it has one (of this kind)."""
        fault = self.options.fault
        if fault is None or self.rank not in fault.ranks or kind not in ("", fault.kind):
            return None
        return fault if fault.is_active(self.step - self.options.warmup) else None

    @contextmanager
    def with_fault_draws(self) -> Iterator[None]:
        """Draw from the fault's random numbers, so that the rest of the step has the draws of a run without it."""
        self._drawn = self.of_fault
        yield
        self._drawn = self.usual

    def spend(self, us: float) -> None:
        """Spend time of the host, with noise, hiccups and faults."""
        drawn = self._drawn
        us *= float(np.exp(drawn.normal(0, self.options.host_noise))) * self._host_factor
        if drawn.random() < self.options.hiccup_probability:
            us += drawn.uniform(50, 250)
        if self._preempted and self.of_fault.random() < self._preempted.probability:
            us += self._preempted.size * self.of_fault.exponential()
        self.now += us

    @contextmanager
    def autograd(self) -> Iterator[None]:
        """Run on the autograd thread."""
        before, self.thread = self.thread, self.autograd_thread
        yield
        self.thread = before

    @contextmanager
    def op(
        self,
        name: str,
        before: float = 3.0,
        after: float = 1.5,
        category: str = "cpu_op",
        args: dict[str, Any] | None = None,
    ) -> Iterator[None]:
        """Run an op or annotation that takes some time before and after its content."""
        self._external_id += 1
        own_id, start = self._external_id, self.now
        self._open_ops.append(own_id)
        self.spend(before)
        yield
        self.spend(after)
        self._open_ops.pop()
        self._record(category, name, start, {"External id": own_id, "Record function id": 0, **(args or {})})
        self.now += PAUSE_BETWEEN_OPS_US

    def annotation(self, name: str, before: float = 2.0, after: float = 1.0) -> AbstractContextManager[None]:
        """Run a user annotation."""
        return self.op(name, before, after, "user_annotation")

    def mark_step(self, start: float) -> None:
        """Record the annotation of the step that began at `start`."""
        self.step_bounds.append((start, self.now))
        self._external_id += 1
        args = {"External id": self._external_id, "Record function id": 0}
        self._record("user_annotation", f"ProfilerStep#{self.step}", start, args)

    def call(self, name: str, us: float = 0.0, start: float | None = None, correlation: int | None = None) -> int:
        """Call the driver or runtime, and return the correlation of the call."""
        start = self.now if start is None else start
        if us:
            self.spend(us)
        correlation = correlation or self._next_correlation()
        args = {"cbid": CALL_IDS.get(name, 0), "correlation": correlation}
        if self._open_ops:
            args = {"External id": self._open_ops[-1], **args}
        self._record("cuda_runtime" if name.startswith("cuda") else "cuda_driver", name, start, args)
        self.now += PAUSE_BETWEEN_CALLS_US
        return correlation

    def _next_correlation(self) -> int:
        self._correlation += CORRELATION_STEP
        return self._correlation

    def _record(self, category: str, name: str, start: float, args: dict[str, Any]) -> None:
        if self.is_recording:
            self.events.append(HostEvent(category, name, self.thread, start, self.now, args))

    def launch(
        self,
        name: str,
        us: float = 0.0,
        stream: int = COMPUTE,
        *,
        category: str = "kernel",
        call: str = "cudaLaunchKernel",
        call_us: float = 4.5,
        correlation: int | None = None,
        meetings: Sequence[Meeting] = (),
        args: dict[str, Any] | None = None,
    ) -> Program[Work]:
        """Launch work and return it. With a `correlation`, an earlier call launches it."""
        start, queue = self.now, self._streams[stream]
        if len(queue) >= QUEUE:
            yield [queue[-QUEUE]]
        if meetings:
            duration = self._drawn.uniform(0.0, 3.0)
        else:
            duration = us * float(np.exp(self._drawn.normal(0, self.options.kernel_noise)))
            duration *= self.device_factor * self._kernel_factor if category == "kernel" else 1.0
        if correlation is None:
            correlation = self.call(call, call_us, start)
        work = Work(
            self.rank,
            stream,
            name,
            duration,
            category,
            meetings,
            step=self.step,
            is_recorded=self.is_recording,
            correlation=correlation,
            external_id=self._open_ops[-1] if self._open_ops else 0,
            args=args or {},
        )
        queue.append(work)
        self.launched.append(work)
        arrival = self.now + 2.0 + self._drawn.exponential()
        self.devices.submit(work, arrival, self._awaited_by_stream.pop(stream, []))
        return work

    def last_work(self, stream: int = COMPUTE) -> list[Work]:
        """Return the last work of a stream, if it has any."""
        return self._streams[stream][-1:]

    def all_last_work(self) -> list[Work]:
        """Return the last work of all streams."""
        return [work for stream in list(self._streams) for work in self.last_work(stream)]

    def order_after(self, works: Sequence[Work], stream: int = COMPUTE, *, calls: bool = True) -> None:
        """Let the next work of a stream wait for `works`; without `calls`, a graph has this order."""
        if calls:
            self.call("cudaStreamWaitEvent", 1.8)
        self._awaited_by_stream[stream].extend(works)

    def record_event(self, stream: int = COMPUTE) -> list[Work]:
        """Record an event, and return the work that it follows."""
        self.call("cudaEventRecord", 1.8)
        return self.last_work(stream)

    def synchronize(self, works: Sequence[Work], name: str = "cudaStreamSynchronize") -> Program[None]:
        """Block until the work has ended."""
        start = self.now
        self.spend(2.0)
        yield works
        self.call(name, 5.0, start)

    def copy(
        self, kind: str, us: float, size_bytes: int, stream: int = COMPUTE, *, blocks: bool = False
    ) -> Program[Work]:
        """Copy between host and device; a copy of pageable memory blocks."""
        start = self.now
        self.spend(6.0)
        correlation = self._next_correlation()
        args = {"bytes": size_bytes, "memory bandwidth (GB/s)": size_bytes / us / 1e3}
        name = "Memcpy " + COPIES[kind]
        work = yield from self.launch(name, us, stream, category="gpu_memcpy", correlation=correlation, args=args)
        if blocks:
            yield [work]
            self.spend(4.0)
        self.call("cudaMemcpyAsync", 0.0, start, correlation)
        return work

    def read_value(self, *, blocks: bool = True) -> Program[None]:
        """Read a value from the device, as `.item()` does."""
        with self.op("aten::item", 2, 1), self.op("aten::_local_scalar_dense", 3, 2):
            yield from self.copy("to host, pageable", 1.4, 4, blocks=blocks)
            yield from self.synchronize(self.last_work() if blocks else [])
