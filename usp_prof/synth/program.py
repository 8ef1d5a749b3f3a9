"""What does one rank do, in order? A generator that stops wherever the rank needs the end of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof import contract
from usp_prof.synth.declaration import FaultKind, Style
from usp_prof.synth.log import BACKWARD, MAIN, ActionTime, Copy, KernelBlock, Part, RankLog, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.algebra.schedules.action import Action
    from usp_prof.synth.calls import Call
    from usp_prof.synth.declaration import Fault
    from usp_prof.synth.ops import Block
    from usp_prof.synth.simulation import Simulation

_SYNC_RETURN_NS = 3_000
_INPUT_BYTES = 8


class Program:
    """One rank: a host that issues work ahead of its device, the compute stream, and a stream for each group."""

    def __init__(self, simulation: Simulation, rank: int) -> None:
        self.rank = rank
        self.log = RankLog(rank)
        self._run = simulation.run
        self._topology = simulation.topology
        self._groups = simulation.topology.by_rank[rank]
        self._catalogue = simulation.catalogue
        self._stage_of = simulation.stage_of
        self._exchange = simulation.exchange
        self._place = simulation.topology.coordinates(rank)["pp"]
        self._order = simulation.orders[self._place]
        self._last_stage = max(simulation.stage_of)
        self._layers = self._run.shape.layers // len(simulation.stage_of)
        self._random = np.random.default_rng([self._run.seed, 3, rank])
        self._ahead = self._run.style is Style.NCCL
        self._host = 0
        self._device = 0
        self._step = 0
        self._thread = MAIN
        self._tails: dict[str, Call] = {}
        self._numbers: dict[str, int] = {}
        self._action: ActionTime | None = None
        self._pending: list[Call] = []

    def steps(self) -> Iterator[Call]:
        """Run all steps."""
        for number in range(self._run.work.steps):
            self._step = self._run.work.first_step + number
            begin = self._host
            self._input()
            left = self._weight_actions()
            for place, action in enumerate(self._order):
                if place == len(self._order) // 2:
                    self._pause()
                yield from self._act(action, left)
            yield from self._optimize()
            self._synchronise()
            self._span(f"ProfilerStep#{self._step}", "user_annotation", begin)
            self.log.steps.append((self._step, begin, self._host))

    def _input(self) -> None:
        """Load a batch and copy it to the device."""
        begin = self._host
        late = sum(fault.delay_ns for fault in self._faults(FaultKind.LATE_INPUT))
        self._host += self._run.speed.input_ns + late
        self._span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", begin)
        self.log.inputs.append((begin, self._host))
        if self._ahead:
            self._copy("HtoD", self._run.shape.sequence * _INPUT_BYTES)

    def _copy(self, direction: str, size: int) -> None:
        start = max(self._host + self._run.speed.launch_latency_ns, self._device)
        length = 1_000 + size // 20
        self.log.copies.append(Copy(direction, size, self._host, start, length))
        self._device = start + length
        self._host += self._run.speed.op_gap_ns

    def _pause(self) -> None:
        """Stop the host where a fault says so."""
        for fault in self._faults(FaultKind.GC_PAUSE):
            begin = self._host
            self._host += fault.delay_ns
            self._span("<built-in function collect>", "python_function", begin)
            self.log.pauses.append((begin, self._host))

    def _weight_actions(self) -> dict[int, int]:
        """Count for each stage how many weight gradients are still to come in this step."""
        counts: dict[int, int] = {}
        for action in self._order:
            if action.kind in "BW":
                counts[action.stage] = counts.get(action.stage, 0) + 1
        return counts

    def _act(self, action: Action, left: dict[int, int]) -> Iterator[Call]:
        """Do one action: receive, compute with its collectives, send."""
        forward = action.kind == "F"
        source = action.stage - 1 if forward else action.stage + 1
        target = action.stage + 1 if forward else action.stage - 1
        if action.kind != "W" and source in self._stage_of:
            yield from self._transfer("recv", action, source)
        begin = self._host
        self._action = ActionTime(self._step, action.kind, action.stage, action.micro_batch)
        self._thread = MAIN if forward or not self._ahead else BACKWARD
        if action.kind in "BW":
            left[action.stage] -= 1
        self._head(action, "IW")
        for _ in range(self._layers):
            yield from self._layer(action)
            if action.kind in "BW" and left[action.stage] == 0:
                yield from self._reduce_gradients()
        self._head(action, "F")
        self.log.actions.append(self._action)
        self._action, self._thread = None, MAIN
        mark = contract.format_mark("pp", action.kind, stage=action.stage, mb=action.micro_batch)
        self._span(mark, "user_annotation", begin)
        if action.kind != "W" and target in self._stage_of:
            yield from self._transfer("send", action, target)

    def _layer(self, action: Action) -> Iterator[Call]:
        """One layer of an action: its blocks, each closed by the axis that splits it."""
        speed, names = self._run.speed, {"F": "forward", "B": "input_gradient", "I": "input_gradient"}
        kinds = {"F": ("F",), "B": ("I", "W"), "I": ("I",), "W": ("W",)}[action.kind]
        factor = speed.last_stage_factor if action.stage == self._last_stage else 1.0
        if action.kind in names and "cp" in self._groups:
            yield from self._collective("all_gather", "cp", self._catalogue.key_value_bytes * self._run.mesh.cp)
        for kind in kinds:
            blocks, length = {
                "F": (self._catalogue.forward, speed.forward_ns),
                "I": (self._catalogue.input_gradient, speed.input_gradient_ns),
                "W": (self._catalogue.weight_gradient, speed.weight_gradient_ns),
            }[kind]
            for number, block in enumerate(blocks):
                feed = number == (1 if kind == "F" else 0)
                routed = kind != "W" and feed and "ep" in self._groups
                if routed:
                    yield from self._route()
                self._compute(block, length * factor * block.share)
                if routed:
                    yield from self._route()
                if kind != "W" and "tp" in self._groups:
                    yield from self._collective("all_reduce", "tp", self._catalogue.activation_bytes)

    def _head(self, action: Action, parts: str) -> None:
        """Multiply with the vocabulary: after the last layer forward, before it backward."""
        if action.stage == self._last_stage and self._run.speed.head_ns:
            for kind in {"F": "F", "B": "IW", "I": "I", "W": "W"}[action.kind]:
                if kind in parts:
                    self._compute(self._catalogue.head(kind), float(self._run.speed.head_ns))

    def _route(self) -> Iterator[Call]:
        """Send tokens to their experts, or bring them back."""
        size = self._catalogue.activation_bytes * self._run.shape.experts_per_token
        return self._collective("all_to_all", "ep", size)

    def _reduce_gradients(self) -> Iterator[Call]:
        """Start the reduction of one layer's gradients; wait at once unless it may overlap."""
        if "dp" not in self._groups:
            return
        size = self._catalogue.layer_parameters * self._catalogue.element_bytes // self._run.mesh.tp
        overlap = self._run.work.overlap_dp
        for call in self._collective("all_reduce", "dp", size):
            self._pending.append(call)
            if not overlap:
                yield call

    def _optimize(self) -> Iterator[Call]:
        """Wait for all gradients and step."""
        for call in self._pending:
            yield call
            self._device = max(self._device, call.end[self.rank])
        self._pending.clear()
        begin = self._host
        for block in self._catalogue.optimizer:
            self._compute(block, float(self._run.speed.optimizer_ns))
        self._span("Optimizer.step#AdamW.step", "user_annotation", begin)

    def _synchronise(self) -> None:
        """Read the loss back: the host waits for the device."""
        if not self._ahead:
            self._host = self._device
            return
        begin = self._host
        self._copy("DtoH", 4)
        self._host = max(self._host, self._device + _SYNC_RETURN_NS)
        self._span("cudaStreamSynchronize", "cuda_runtime", begin + self._run.speed.op_gap_ns)
        self._span("aten::_local_scalar_dense", "cpu_op", begin)
        self.log.syncs.append((begin, self._host))

    def _compute(self, block: Block, length: float) -> None:
        """Run a block's ops on the compute stream, each after its launch and after the one before it."""
        slow = 1.0
        for fault in self._faults(FaultKind.SLOW_RANK):
            slow *= fault.factor
        noise = float(np.exp(self._run.speed.noise * self._random.standard_normal()))
        weights = np.array([op.weight for op in block.ops])
        durations = np.maximum(np.rint(weights * length * slow * noise).astype(np.int64), 500)
        issued = self._issue(len(block.ops))
        launched = issued + (self._run.speed.launch_latency_ns if self._ahead else 0)
        before = np.cumsum(durations) - durations
        starts = before + np.maximum.accumulate(np.maximum(launched, self._device) - before)
        self._device = int(starts[-1] + durations[-1])
        if not self._ahead:
            self._host = self._device
        self.log.blocks.append(
            KernelBlock(block.ops, self._thread, issued if self._ahead else starts, starts, durations)
        )
        self._note(int(starts[0]), self._device)

    def _issue(self, count: int) -> np.ndarray:
        """Take host time for launches; on CPU the op itself is the work."""
        if not self._ahead:
            return np.full(count, self._host, dtype=np.int64)
        gap = self._run.speed.op_gap_ns
        issued = self._host + gap * np.arange(count, dtype=np.int64)
        self._host += gap * count
        return issued

    def _collective(self, op: str, axis: str, size: int) -> Iterator[Call]:
        """Take part in a collective; who iterates waits for its end, who does not lets it overlap."""
        group = self._groups[axis]
        number = self._number(axis)
        call = self._exchange.join(op, group, (number,), group.ranks, size)
        overlapped = axis == "dp" and self._run.work.overlap_dp
        self._arrive(call, axis, Part(call, self._thread, self._host, number, blocking=not overlapped))
        yield call
        if not overlapped:
            self._wait(call)

    def _transfer(self, direction: str, action: Action, other: int) -> Iterator[Call]:
        """Send to or receive from the stage beside; nothing to do where this rank has both stages."""
        peer_place = self._stage_of[other]
        if peer_place == self._place:
            return
        begin = self._host
        peer = self._topology.stage_peer(self.rank, peer_place)
        members = (self.rank, peer) if direction == "send" else (peer, self.rank)
        letter = "f" if action.kind == "F" else "b"
        name = f"send_recv_{letter}"
        origin = action.stage if direction == "send" else other
        key = (self._step, origin, action.micro_batch)
        call = self._exchange.join(name, self._groups["pp"], key, members, self._catalogue.activation_bytes)
        part = Part(call, MAIN, self._host, self._number("pp"), peer, direction)
        self._arrive(call, f"pp {direction} {letter} {peer}", part)
        mark = contract.format_mark(
            "pp", f"{direction}_{letter}", stage=action.stage, mb=action.micro_batch, peer=peer
        )  # fmt: skip
        if direction == "recv":
            yield call
            self._wait(call)
        self._span(mark, "user_annotation", begin)

    def _arrive(self, call: Call, stream: str, part: Part) -> None:
        """Post a call: the host spends an op's time on it, the device is ready when its earlier work is done."""
        gap = self._run.speed.op_gap_ns
        self._host = part.host_ns + gap
        posted = part.host_ns + (self._run.speed.launch_latency_ns if self._ahead else gap)
        ready = max(posted, self._device)
        self.log.parts.append(part)
        self._exchange.arrive(call, self.rank, ready, self._tails.get(stream))
        self._tails[stream] = call

    def _wait(self, call: Call) -> None:
        self._device = max(self._device, call.end[self.rank])
        if not self._ahead:
            self._host = max(self._host, self._device)
        if part_of_action(call):
            self._note(call.start[self.rank], call.end[self.rank])

    def _note(self, start: int, end: int) -> None:
        if self._action is not None:
            first = self._action.start_ns
            self._action.start_ns = start if first < 0 else min(first, start)
            self._action.end_ns = max(self._action.end_ns, end)

    def _number(self, stream: str) -> int:
        self._numbers[stream] = self._numbers.get(stream, -1) + 1
        return self._numbers[stream]

    def _faults(self, kind: FaultKind) -> Iterator[Fault]:
        return (f for f in self._run.faults if f.kind is kind and f.rank == self.rank and f.step in (-1, self._step))

    def _span(self, name: str, category: str, begin: int) -> None:
        self.log.spans.append(Span(name, category, begin, self._host))


def part_of_action(call: Call) -> bool:
    """Say whether a call belongs to an action's own time: transfers between stages and gradients do not."""
    return call.group.axis in ("tp", "cp", "ep")
