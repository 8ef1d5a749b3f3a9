"""Worker: one rank's host and device, and its data-parallel communication.

The host runs ahead of the device; on a CPU both are one thread. Gradients are all-reduced, or ZeRO's reduce-scatters
and all-gathers replace that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from usp_prof import limits
from usp_prof.columns.arrays import Ints
from usp_prof.extras.synth.declaration import EVERYWHERE, Declaration, Fault, FaultKind, Style
from usp_prof.extras.synth.history import (
    MAIN,
    WATCHDOG,
    ActionTime,
    Call,
    Copy,
    Exchange,
    KernelBlock,
    Part,
    RankLog,
    Span,
)
from usp_prof.extras.synth.mesh import Group
from usp_prof.extras.synth.ops import Block, Catalog
from usp_prof.model.errors import UsageError
from usp_prof.schedule_orders import Action

_SYNC_RETURN_NS = 3_000
_SHORTEST_NS = 500
_QUERY_NS = 2_000
_OWN_AXES = ("tp", "cp", "ep")
"""Axes whose collectives belong to a pipeline action's own time: not transfers between stages, nor gradients."""


class Worker:
    """One rank's two clocks, in true time, and the log of its work."""

    def __init__(self, run: Declaration, exchange: Exchange, rank: int) -> None:
        self.rank = rank
        self.log = RankLog(rank)
        self.ahead = run.style is Style.NCCL
        self.host = 0
        self.device = 0
        self.step = 0
        self.thread = MAIN
        self.action: ActionTime | None = None
        self._run = run
        self._speed = run.speed
        self._exchange = exchange
        self._random = np.random.default_rng([run.seed, 3, rank])
        self._tails: dict[str, Call] = {}
        self._numbers: dict[str, int] = {}

    def span(self, name: str, category: str, begin: int) -> None:
        """Log a range of the current thread that ends now."""
        self.log.spans.append(Span(name, category, begin, self.host, self.thread))

    def load_input(self, size: int) -> None:
        """Load a batch and copy it to the device."""
        begin = self.host
        self.host += self._speed.input_ns + sum(fault.delay_ns for fault in self._faults(FaultKind.LATE_INPUT))
        self.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", begin)
        self.log.inputs.append((begin, self.host))
        pageable = sum(fault.delay_ns for fault in self._faults(FaultKind.PAGEABLE_COPY))
        if self.ahead and pageable:
            self._copy("HtoD pageable", size, pageable)
            self._wait_for_device("aten::copy_")
        elif self.ahead:
            self._copy("HtoD", size)

    def pause(self) -> None:
        """Pause the host for a fault."""
        for fault in self._faults(FaultKind.GC_PAUSE):
            begin = self.host
            self.host += fault.delay_ns
            self.span("<built-in function collect>", "python_function", begin)
            self.log.pauses.append((begin, self.host))

    def pause_between_launches(self, layer: int, layers: int) -> None:
        """Pause the host before some of a step's layers, without an explanation in the trace."""
        for fault in self._faults(FaultKind.HOST_PAUSE):
            # The layers of a step are divided into `times` equal parts; the host pauses in the middle of each.
            passed = [math.floor(fault.times * place / layers + 0.5) for place in (layer, layer + 1)]
            begin = self.host
            self.host += fault.delay_ns * (passed[1] - passed[0])
            if self.host > begin:
                self.log.pauses.append((begin, self.host))

    def watch(self) -> None:
        """Log a thread that monitors calls in flight: a short call, then sleep."""
        period = self._speed.watchdog_ns
        if self.ahead and period:
            begins = range(self.log.steps[0][1], self.log.steps[-1][2] - _QUERY_NS, period)
            if len(begins) > limits.MAX_WATCHDOG_CALLS:
                raise UsageError(
                    f"speed.watchdog_ns = {period} makes {len(begins)} calls on a rank, at most "
                    f"{limits.MAX_WATCHDOG_CALLS} are simulated",
                    hint='NCCL\'s watchdog sleeps 100 ms: "watchdog_ns": 100000000',
                )
            self.log.spans += [Span("cudaEventQuery", "cuda_runtime", at, at + _QUERY_NS, WATCHDOG) for at in begins]

    def end_action(self) -> None:
        """Run what an inefficient program does after each action: print a device value, run out of memory."""
        for fault in self._faults(FaultKind.DEVICE_ALLOCATION):
            begin = self.host
            self.host += fault.delay_ns
            self.span("cudaMalloc", "cuda_runtime", begin)
        if self.ahead and (self._run.work.host_waits or any(True for _ in self._faults(FaultKind.BLOCKING_SYNC))):
            self._wait_for_device("aten::item")

    def optimizer_kernels(self) -> int:
        """Return the number of kernels of the optimizer."""
        return max([1, *(round(fault.factor) for fault in self._faults(FaultKind.UNFUSED_OPTIMIZER))])

    def _wait_for_device(self, op: str) -> None:
        begin = self.host
        self.host = max(self.host + self._speed.op_gap_ns, self.device + _SYNC_RETURN_NS)
        self.span("cudaStreamSynchronize", "cuda_runtime", begin + self._speed.op_gap_ns // 2)
        self.span(op, "cpu_op", begin)
        self.log.syncs.append((begin, self.host))

    def read_back(self) -> None:
        """Read the loss: the host waits for the device."""
        if not self.ahead:
            self.host = max(self.host, self.device)
            return
        begin = self.host
        self._copy("DtoH", 4)
        self.host = max(self.host, self.device + _SYNC_RETURN_NS)
        self.span("cudaStreamSynchronize", "cuda_runtime", begin + self._speed.op_gap_ns)
        self.span("aten::_local_scalar_dense", "cpu_op", begin)
        self.log.syncs.append((begin, self.host))

    def compute(self, block: Block, length: float) -> None:
        """Run a block's ops on the compute stream, each after its launch and after the previous one."""
        slow = 1.0
        for fault in self._faults(FaultKind.SLOW_RANK):
            slow *= fault.factor
        noise = float(np.exp(self._speed.noise * self._random.standard_normal()))
        weights = np.array([op.weight for op in block.ops])
        durations = np.maximum(np.rint(weights * length * slow * noise).astype(np.int64), _SHORTEST_NS)
        issued = self._issue(len(block.ops))
        launched = issued + (self._speed.launch_latency_ns if self.ahead else 0)
        before = np.cumsum(durations) - durations
        starts = before + np.maximum.accumulate(np.maximum(launched, self.device) - before)
        self.device = int(starts[-1] + durations[-1])
        if not self.ahead:
            self.host = self.device
        host = issued if self.ahead else starts
        self.log.blocks.append(KernelBlock(block.ops, self.thread, host, starts, durations))
        self._note(int(starts[0]), self.device)

    def arrive(self, call: Call, stream: str, part: Part) -> None:
        """Post a call: it takes an op's time on the host, and the device is ready after its earlier work."""
        self.host = part.host_ns + self.host_gap
        posted = part.host_ns + (self._speed.launch_latency_ns if self.ahead else self._speed.op_gap_ns)
        self.log.parts.append(part)
        self._exchange.arrive(call, self.rank, max(posted, self.device), self._tails.get(stream))
        self._tails[stream] = call

    def wait(self, call: Call) -> None:
        """Delay later compute until a call ends."""
        self.device = max(self.device, call.end[self.rank])
        if not self.ahead:
            self.host = max(self.host, self.device)
        if call.group.axis in _OWN_AXES:
            self._note(call.start[self.rank], call.end[self.rank])

    def number(self, group: str) -> int:
        """Return the next sequence number of a group."""
        self._numbers[group] = self._numbers.get(group, -1) + 1
        return self._numbers[group]

    def _copy(self, direction: str, size: int, more_ns: int = 0) -> None:
        start = max(self.host + self._speed.launch_latency_ns, self.device)
        length = 1_000 + size // 20 + more_ns
        self.log.copies.append(Copy(direction, size, self.host, start, length))
        self.device = start + length
        self.host += self._speed.op_gap_ns

    @property
    def host_gap(self) -> int:
        """Host time between ops."""
        slow = 1.0
        for fault in self._faults(FaultKind.SLOW_HOST):
            slow *= fault.factor
        return round(self._speed.op_gap_ns * slow)

    def _issue(self, count: int) -> Ints:
        """Use host time for launches; on CPU the op itself is the work."""
        if not self.ahead:
            return np.full(count, self.host, dtype=np.int64)
        gap = self.host_gap
        issued = self.host + gap * np.arange(count, dtype=np.int64)
        self.host += gap * count
        return issued

    def _note(self, start: int, end: int) -> None:
        if self.action is not None:
            first = self.action.start_ns
            self.action.start_ns = start if first < 0 else min(first, start)
            self.action.end_ns = max(self.action.end_ns, end)

    def _faults(self, kind: FaultKind) -> Iterator[Fault]:
        return (
            f
            for f in self._run.faults
            if f.kind is kind and (f.rank == self.rank or kind in EVERYWHERE) and f.step in (-1, self.step)
        )


_SHARDED_PARAMETERS = 3


class Gradients:
    """One rank's data-parallel communication, one bucket per layer.

    Without ZeRO gradients are all-reduced. With ZeRO they are reduce-scattered, and parameters are gathered after the
    optimizer (stages 1 and 2) or before each layer's forward and backward, one layer ahead (stage 3).
    """

    def __init__(
        self, run: Declaration, catalog: Catalog, worker: Worker, exchange: Exchange, groups: Mapping[str, Group]
    ) -> None:
        self._stage = run.work.zero_stage
        self._overlap = run.work.overlap_dp
        self._size = catalog.layer_parameters * catalog.element_bytes // run.mesh.tp
        self._worker = worker
        self._exchange = exchange
        self._group = groups.get("dp")
        self._pending: list[Call] = []
        self._ahead: Call | None = None
        self._left: dict[int, int] = {}

    def begin(self, order: Sequence[Action]) -> None:
        """Count the weight gradients that each stage expects in this step."""
        self._left = {}
        for action in order:
            if action.kind in "BW":
                self._left[action.stage] = self._left.get(action.stage, 0) + 1

    def count(self, action: Action) -> bool:
        """Count an action; return whether it completes its stage's gradients."""
        if action.kind not in "BW":
            return False
        self._left[action.stage] -= 1
        return self._left[action.stage] == 0

    def gather(self, action: Action, layer: int, layers: int) -> Iterator[Call]:
        """Wait for a layer's parameters before it runs, and request the next layer's."""
        if self._group is None or self._stage < _SHARDED_PARAMETERS or action.kind == "W":
            return
        current = self._ahead or self._post(self._group, "all_gather", self._size, overlapped=False)
        self._ahead = None
        yield current
        self._worker.wait(current)
        if layer + 1 < layers and self._overlap:
            self._ahead = self._post(self._group, "all_gather", self._size, overlapped=True)

    def reduce(self) -> Iterator[Call]:
        """Reduce one layer's gradients; wait immediately unless overlap is allowed."""
        if self._group is None:
            return
        call = self._post(
            self._group, "reduce_scatter" if self._stage else "all_reduce", self._size, overlapped=self._overlap
        )
        self._pending.append(call)
        if not self._overlap:
            yield call
            self._worker.wait(call)

    def finish(self) -> Iterator[Call]:
        """Wait for all gradients."""
        for call in self._pending:
            yield call
            self._worker.wait(call)
        self._pending.clear()

    def share_parameters(self, layers: int) -> Iterator[Call]:
        """Gather the updated shards, unless they are gathered layer by layer."""
        if self._group is not None and 0 < self._stage < _SHARDED_PARAMETERS:
            call = self._post(self._group, "all_gather", self._size * layers, overlapped=False)
            yield call
            self._worker.wait(call)

    def _post(self, group: Group, op: str, size: int, *, overlapped: bool) -> Call:
        number = self._worker.number("dp")
        call = self._exchange.join(op, group, (number,), group.ranks, size)
        part = Part(call, self._worker.thread, self._worker.host, number, blocking=not overlapped)
        self._worker.arrive(call, f"dp {op}", part)
        return call
