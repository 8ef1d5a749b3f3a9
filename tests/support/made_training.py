"""Made training runs: traces of GPU jobs from a small separate simulator, with delays of known size on one rank.

Each rank runs a program of host calls, device work and communication. The simulator has four rules and shares no code
with the replay:

  host       calls run one after the other, each after some time of the host's own; a call that waits for work returns
             when the work has ended
  device     work starts after its launch, the previous work of its stream, and the events that its stream waits for
  members    communication ends a fixed time after the last of its members has started; in a ring, these are the two
             neighbors and the rank itself
  queue      a launch waits while its stream has `CAPACITY` launches that have not started

Layers, lengths, syncs and recorded data of a job follow from its seed. The same seeds with and without a delay give the
true cost of the delay. All times are microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COMPUTE, FIRST_P2P = 7, 30
"""Stream of compute, and the first of those for sends and receives."""
CAPACITY = 1_022
STEPS = 4
LATENCY = 6.0
BASE = 1_700_000_000_000_000_000
KERNELS = {
    "all_reduce": ("AllReduce_Sum_f32_RING_LL", "allreduce", "c10d::allreduce_"),
    "all_gather": ("AllGather_RING_LL", "_allgather_base", "c10d::_allgather_base_"),
    "reduce_scatter": ("ReduceScatter_Sum_f32_RING_LL", "_reduce_scatter_base", "c10d::_reduce_scatter_base_"),
    "all_to_all": ("SendRecv", "all_to_allv", "c10d::alltoall_base_"),
    "send": ("SendRecv", "send", "c10d::send"),
    "recv": ("SendRecv", "recv", "c10d::recv_"),
}
DELAYS = ("pause", "late_input", "late_messages", "slow_host", "slow_kernels", "slow_products")


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay of one rank in every step: microseconds, or a factor for the slow ones."""

    kind: str
    rank: int
    size: float
    place: float = 0.5
    """Where in the step a pause is, as a share of its launches."""
    only_in: int | None = None
    """The only step with the delay; `None` for all steps."""


@dataclass(slots=True, eq=False)
class Call:
    """One host call, and the time of the host before it."""

    name: str
    before: float
    duration: float
    thread: int
    step: int
    op: str
    launched: list[Work] = field(default_factory=list)
    awaited: list[Work] = field(default_factory=list)
    held_up: int = -1
    """The stream that waits for `ordered_after`, in a call that orders two streams."""
    ordered_after: Work | None = None
    start: float = 0.0
    end: float = 0.0


@dataclass(slots=True, eq=False)
class Message:
    """What communication tells about itself."""

    kind: str
    group: tuple[int, ...]
    members: list[tuple[Any, ...]]
    """Keys of the work that must have started before it ends."""
    peers: tuple[tuple[str, int], ...] = ()
    """Sends and receives: direction and rank."""


@dataclass(slots=True, eq=False)
class Work:
    """One piece of device work."""

    name: str
    duration: float
    stream: int
    call: Call
    after: list[Work]
    category: str = "kernel"
    message: Message | None = None
    start: float = 0.0
    end: float = 0.0


@dataclass(slots=True, eq=False)
class Rank:
    """The program of one rank, as it is built."""

    job: Job
    number: int
    calls: list[Call] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """First call of each step, and the first one after it."""
    step: int = 0
    thread: int = 1
    _own: float = 0.0
    _last: dict[int, Work] = field(default_factory=dict)
    _awaited: dict[int, list[Work]] = field(default_factory=lambda: defaultdict(list))
    _counts: dict[Any, int] = field(default_factory=lambda: defaultdict(int))

    def think(self, time: float) -> None:
        """Spend host time before the next call."""
        self._own += time

    def call(self, name: str, op: str, *, before: float | None = None, duration: float = 2.0) -> Call:
        """Make a host call."""
        own = self.job.gap if before is None else before
        self.calls.append(Call(name, own + self._own, duration, self.thread, self.step, op))
        self._own = 0.0
        return self.calls[-1]

    def launch(self, name: str, duration: float, op: str, *, stream: int = COMPUTE, category: str = "kernel") -> Work:
        """Launch device work."""
        call = self.call("cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel", op, duration=4.0)
        return self._queue(call, name, duration, stream, category)

    def _queue(self, call: Call, name: str, duration: float, stream: int, category: str = "kernel") -> Work:
        after = self._awaited.pop(stream, [])
        after += [self._last[stream]] if stream in self._last else []
        work = self._last[stream] = Work(name, duration * self.job.lengths[self.step], stream, call, after, category)
        call.launched.append(work)
        self.work.append(work)
        return work

    def order(self, stream: int, after: Work | None) -> None:
        """Let a stream wait for work, as an event does."""
        self.call("cudaEventRecord", "", before=0.5, duration=1.0)
        call = self.call("cudaStreamWaitEvent", "", before=0.5, duration=1.0)
        if after is not None:
            call.held_up, call.ordered_after = stream, after
            self._awaited[stream].append(after)

    def wait(self, work: Work, name: str) -> None:
        """Let the host wait for work."""
        self.call(name, "aten::item").awaited = [work]

    def drain(self) -> None:
        """Let the host wait for all work."""
        self.call("cudaDeviceSynchronize", "").awaited = list(self._last.values())

    def compute(self, phase: str, scale: float = 1.0) -> None:
        """Launch the kernels of a part of the model: matrix products, and smaller kernels after each."""
        op, kernels = {
            "forward": ("aten::linear", 6),
            "backward": ("autograd::engine::evaluate_function: AddmmBackward0", 9),
            "optimizer": ("aten::_foreach_add_", 1),
        }[phase]
        graph = self.call("cudaGraphLaunch", "", duration=8.0) if self.job.has_graphs and phase == "forward" else None
        for number in range(kernels):
            is_product = number % 3 == 0
            name = f"ampere_bf16_gemm_{phase}{number}" if is_product else f"elementwise_{phase}{number}"
            duration = self.job.kernel * scale * (60 if is_product else 8)
            if graph is None:
                self.launch(name, duration, op)
            else:
                self._queue(graph, name, duration, COMPUTE)

    def communicate(
        self, kind: str, group: Sequence[int], duration: float, stream: int, peers: Sequence[tuple[str, int]] = (),
        key: tuple[Any, ...] | None = None, members: Sequence[tuple[Any, ...]] | None = None,
    ) -> Work:  # fmt: skip
        """Launch communication on its own stream, after the compute so far; `key` is that of all its members."""
        self.order(stream, self._last.get(COMPUTE))
        if key is None:
            self._counts[kind, stream] += 1
            key = (kind, tuple(group), stream, self._counts[kind, stream])
            members = [(*key, rank) for rank in group]
        kernel, _, op = KERNELS[kind]
        work = self.launch(f"ncclDevKernel_{kernel}(ncclDevKernelArgs)", duration * self.job.link, op, stream=stream)
        work.message = Message(kind, tuple(group), list(members or ()), tuple(peers))
        self.job.of_key[*key, self.number] = work
        return work


class Job:
    """One job: its programs, its simulation and its traces."""

    def __init__(self, layout: str, seed: int) -> None:
        chosen = np.random.default_rng(seed)
        self.layout, self.seed = layout, seed
        self.gap = float(chosen.choice((8.0, 15.0, 30.0)))
        self.kernel = float(chosen.choice((0.5, 2.0, 6.0)))
        self.link = float(chosen.choice((0.5, 1.0, 2.0)))
        self.layers = int(chosen.choice((4, 6, 8)))
        self.waits_for_loss, self.waits_for_norm = chosen.random() < 0.6, chosen.random() < 0.3
        self.loading = float(chosen.choice((50.0, 500.0, 3_000.0)))
        self.noise = float(chosen.choice((0.02, 0.05)))
        self.describes_groups, self.is_batched = chosen.random() < 0.5, chosen.random() < 0.7
        self.clock_error = float(chosen.choice((0.0, 15.0)))
        self.has_graphs, self.copies_pageable = chosen.random() < 0.25, chosen.random() < 0.3
        self.drains, self.has_records = chosen.random() < 0.15, chosen.random() < 0.85
        self.polls = chosen.random() < 0.5
        self.names_waits = False
        """Whether the traces name the waits, as with PyTorch's `enable_cuda_sync_events`."""
        self.host_offset = float(chosen.choice((0.0, 0.0, 5_000.0)))
        """Difference between the clocks of the first and second half of the ranks."""
        self.lengths = chosen.uniform(0.75, 1.25, STEPS) if chosen.random() < 0.25 else np.ones(STEPS)
        """Work of each step, such as that of sequences of unequal length."""
        program, self.world = LAYOUTS[layout]
        self.of_key: dict[tuple[Any, ...], Work] = {}
        self.ranks = [Rank(self, number) for number in range(self.world)]
        for rank in self.ranks:
            for rank.step in range(STEPS):
                self._run_step(rank, program)

    def _run_step(self, rank: Rank, program: Any) -> None:
        first = len(rank.calls)
        rank.think(self.loading)
        memory = "Pageable" if self.copies_pageable else "Pinned"
        copy = rank.launch(f"Memcpy HtoD ({memory} -> Device)", 20, "aten::copy_", category="gpu_memcpy")
        if self.copies_pageable:
            copy.call.awaited = [copy]
        program(rank)
        rank.thread = 1
        if self.waits_for_norm:
            self._read_scalar(rank)
        for _ in range(self.layers):
            rank.compute("optimizer", 0.5)
        if self.waits_for_loss:
            self._read_scalar(rank)
        if self.drains:
            rank.drain()
        rank.steps.append((first, len(rank.calls)))

    @staticmethod
    def _read_scalar(rank: Rank) -> None:
        copy = rank.launch("Memcpy DtoH (Device -> Pageable)", 2, "aten::item", category="gpu_memcpy")
        rank.wait(copy, "cudaStreamSynchronize")

    def simulate(self, delay: Delay | None, seed: int) -> None:
        """Compute all times; the seed determines how much calls and work vary."""
        varied = np.random.default_rng(seed)
        own: dict[int, float] = {}
        for rank in self.ranks:
            for item in (*rank.calls, *rank.work):
                base = item.before if isinstance(item, Call) else item.duration
                noise = float(np.exp(self.noise * varied.standard_normal()))
                own[id(item)] = base * noise * self.factor(rank, item)
        if delay is not None:
            self._add(delay, own)
        needs = self._needs()
        left = {moment: len(needed) for moment, (_, needed) in needs.items()}
        behind: dict[Any, list[Any]] = defaultdict(list)
        for moment, (_, needed) in needs.items():
            for before in needed:
                behind[before].append(moment)
        ready, when = deque(moment for moment, count in left.items() if not count), {}
        while ready:
            moment = ready.popleft()
            item, needed = needs[moment]
            at = max((when[before] for before in needed), default=0.0)
            when[moment] = self._moment(item, moment[1], at, own[id(item)])
            for following in behind[moment]:
                left[following] -= 1
                if not left[following]:
                    ready.append(following)
        if len(when) != len(needs):
            raise ValueError("the job waits for itself")

    def factor(self, _rank: Rank, _item: Call | Work) -> float:
        """Return by how much a change of the job multiplies the own time of an item; see `changed_training`."""
        return 1.0

    def members(self, work: Work) -> list[Work]:
        """Return the work that must have started before this work ends."""
        return [self.of_key[key] for key in work.message.members] if work.message else [work]

    def awaited(self, _rank: Rank, call: Call) -> list[Work]:
        """Return the work that a call waits for."""
        return call.awaited

    @staticmethod
    def _moment(item: Call | Work, which: str, at: float, own: float) -> float:
        if which == "start":
            item.start = at + own if isinstance(item, Call) else max(at, item.call.start + LATENCY)
            return item.start
        if isinstance(item, Call):
            item.end = max(item.start + item.duration, at)
        else:
            item.end = at + own
        return item.end

    def _needs(self) -> dict[Any, tuple[Call | Work, list[Any]]]:
        """Return for the start and end of everything what must come first."""
        needs: dict[Any, tuple[Call | Work, list[Any]]] = {}
        for rank in self.ranks:
            previous: Call | None = None
            queues: dict[int, list[Work]] = defaultdict(list)
            for call in rank.calls:
                needs[id(call), "start"] = (call, [(id(previous), "end")] if previous else [])
                ends = [(id(call), "start"), *((id(work), "end") for work in self.awaited(rank, call))]
                if call.launched:
                    queue = queues[call.launched[0].stream]
                    queue.append(call.launched[0])
                    ends += [(id(queue[-1 - CAPACITY]), "start")] if len(queue) > CAPACITY else []
                needs[id(call), "end"] = (call, ends)
                previous = call
            for work in rank.work:
                starts = [(id(work.call), "start"), *((id(before), "end") for before in work.after)]
                needs[id(work), "start"] = (work, starts)
                needs[id(work), "end"] = (work, [(id(member), "start") for member in self.members(work)])
        return needs

    def _add(self, delay: Delay, own: dict[int, float]) -> None:
        rank = self.ranks[delay.rank]
        steps = range(STEPS) if delay.only_in is None else (delay.only_in,)
        if delay.kind == "slow_host":
            for call in rank.calls:
                own[id(call)] *= delay.size if call.step in steps else 1.0
        elif delay.kind in ("slow_kernels", "slow_products"):
            for work in rank.work:
                if work.call.step in steps and work.stream == COMPUTE and work.category == "kernel":
                    own[id(work)] *= delay.size if delay.kind == "slow_kernels" or "gemm" in work.name else 1.0
        else:
            for first, after in (rank.steps[step] for step in steps):
                launches = [call for call in rank.calls[first:after] if call.launched]
                messages = [call for call in launches if call.launched and call.launched[0].message]
                chosen = {
                    "late_input": launches[:1],
                    "pause": [launches[int(delay.place * len(launches))]],
                    "late_messages": messages,
                }[delay.kind]
                for call in chosen:
                    own[id(call)] += delay.size / len(chosen)

    def write(self, folder: Path) -> None:
        """Write one trace per rank."""
        folder.mkdir(parents=True)
        for rank in self.ranks:
            with gzip.open(folder / f"rank{rank.number}.json.gz", "wt", compresslevel=1, encoding="utf-8") as file:
                json.dump(self._trace(rank), file)

    def _trace(self, rank: Rank) -> dict[str, Any]:
        groups = sorted({work.message.group for own in self.ranks for work in own.work if work.message})
        shift = float(np.random.default_rng((self.seed, rank.number)).uniform(-1, 1)) * self.clock_error
        offset = self.host_offset if rank.number >= self.world // 2 else 0.0
        events = [event for number, call in enumerate(rank.calls) for event in self._events(rank, call, number, shift)]
        events += self._named_waits(rank) if self.names_waits else []
        for number, (first, after) in enumerate(rank.steps):
            start = rank.calls[first - 1].end + 0.5 if first else 0.0
            length = rank.calls[after - 1].end + 0.4 - start
            events.append(_range(f"ProfilerStep#{number}", "user_annotation", rank.number, 1, start, length))
            loaded = rank.calls[first].start - 1 - start
            events.append(_range("enumerate(DataLoader)#next", "user_annotation", rank.number, 1, start + 0.1, loaded))
        polled = np.arange(0.0, rank.calls[-1].end, 1_000.0).tolist() if self.polls else []
        events += [_range("cudaEventQuery", "cuda_runtime", rank.number, 9, at, 1.5) for at in polled]
        for event in events:
            event["ts"] += offset
        information = {
            "backend": "nccl",
            "rank": rank.number,
            "world_size": self.world,
            "pg_config": [self._group(group) | {"backend_config": "cuda:nccl"} for group in groups],
        }
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
            **({"distributedInfo": information} if self.has_records else {}),
            "baseTimeNanoseconds": BASE,
            "traceEvents": events,
        }

    def _group(self, group: tuple[int, ...]) -> dict[str, Any]:
        axis = AXES[self.layout](group) if self.describes_groups else ""
        name = "-".join(map(str, group))
        return {"pg_name": name, "pg_desc": axis or "undefined", "pg_size": len(group), "ranks": list(group)}

    def _events(self, rank: Rank, call: Call, number: int, shift: float) -> list[dict[str, Any]]:
        events = []
        message = call.launched[0].message if call.launched and self.has_records else None
        arguments = {}
        begin = call.start - 0.4
        if message is not None and (len(message.peers) > 1 or (message.peers and self.is_batched)):
            # Each send and receive of a batch is recorded before its launch; the kernel names none.
            for place, peer in enumerate(message.peers):
                record = self._described(message, peer)
                at = call.start - 3 + 0.5 * place
                events.append(_range(KERNELS[peer[0]][2], "cpu_op", rank.number, call.thread, at, 0.4))
                events.append(
                    _range("record_param_comms", "cpu_op", rank.number, call.thread, at + 0.1, 0.2, args=record)
                )
        else:
            if call.op:
                events.append(_range(call.op, "cpu_op", rank.number, call.thread, begin, call.end - begin))
            if message is not None:
                arguments = self._described(message, message.peers[0] if message.peers else None)
                events.append(
                    _range(
                        "record_param_comms", "cpu_op", rank.number, call.thread, begin + 0.1, call.end - begin - 0.1,
                        args=arguments,
                    )
                )  # fmt: skip
        launch = {"correlation": number + 1}
        duration = call.end - call.start
        events.append(_range(call.name, "cuda_runtime", rank.number, call.thread, call.start, duration, args=launch))
        for work in call.launched:
            described = arguments | launch | {"stream": work.stream, "device": rank.number}
            start, length = work.start + shift, work.end - work.start
            events.append(_range(work.name, work.category, rank.number, work.stream, start, length, args=described))
        return events

    @staticmethod
    def _named_waits(rank: Rank) -> list[dict[str, Any]]:
        """Return Kineto's synchronization events, and the calls that record each CUDA event right after its work."""
        number_of_call = {id(call): number + 1 for number, call in enumerate(rank.calls)}
        marked: dict[int, dict[str, Any]] = {}
        events = []

        def name(kind: str, call: Call, stream: int, work: Work | None) -> None:
            arguments = {"correlation": number_of_call[id(call)], "stream": stream, "device": rank.number}
            if work is not None:
                record = {"correlation": len(rank.calls) + number_of_call[id(work.call)]}
                marked[record["correlation"]] = _range(
                    "cudaEventRecord", "cuda_runtime", rank.number, work.call.thread, work.call.end + 0.05, 0.1,
                    args=record,
                )  # fmt: skip
                arguments |= {
                    "wait_on_stream": work.stream,
                    "wait_on_cuda_event_record_corr_id": record["correlation"],
                }
            events.append(_range(kind, "cuda_sync", rank.number, stream, call.start, 1.0, args=arguments))

        for call in rank.calls:
            if call.ordered_after is not None:
                name("Stream Wait Event", call, call.held_up, call.ordered_after)
            elif call.name == "cudaEventSynchronize":
                name("Event Sync", call, -1, call.awaited[0])
            elif call.name == "cudaStreamSynchronize":
                name("Stream Sync", call, call.awaited[0].stream, None)
        return [*events, *marked.values()]

    def _described(self, message: Message, peer: tuple[str, int] | None) -> dict[str, Any]:
        group = self._group(message.group)
        described = {
            "Collective name": KERNELS[peer[0] if peer else message.kind][1],
            "Process Group Name": group["pg_name"],
            "Process Group Description": group["pg_desc"],
            "Process Group Ranks": str(group["ranks"]),
            "Group size": group["pg_size"],
            "dtype": "BFloat16",
            "In msg nelems": 1_000_000,
            "Out msg nelems": 1_000_000,
        }
        return described | ({"Dst Rank" if peer[0] == "send" else "Src Rank": peer[1]} if peer else {})


def _range(
    name: str,
    category: str,
    rank: int,
    track: int,
    start: float,
    duration: float,
    *,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    start_ns = round(1_000 * (10_000 + start))
    duration_ns = max(round(1_000 * (10_000 + start + duration)) - start_ns, 0)
    process = rank if category in ("kernel", "gpu_memcpy", "cuda_sync") else 100 + rank
    return {
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": track, "ts": start_ns / 1_000,
        "dur": duration_ns / 1_000, "args": args or {},
    }  # fmt: skip


# Layouts: the program of one step between input and optimizer.


def _replicas(rank: Rank) -> None:
    for _ in range(rank.job.layers):
        rank.compute("forward")
    rank.thread, reduced = 2, None
    for layer in range(rank.job.layers):
        rank.compute("backward")
        if layer % 2:
            reduced = rank.communicate("all_reduce", range(rank.job.world), 180, 20)
    rank.order(COMPUTE, reduced)


def _sharded(rank: Rank) -> None:
    everyone = range(rank.job.world)
    reduced: deque[Work] = deque()
    for phase in ("forward", "backward"):
        rank.thread = 2 if phase == "backward" else 1
        following = rank.communicate("all_gather", everyone, 90, 20)
        for layer in range(rank.job.layers):
            gathered = following
            if layer + 1 < rank.job.layers:
                following = rank.communicate("all_gather", everyone, 90, 20)
            rank.order(COMPUTE, gathered)
            rank.compute(phase)
            if phase == "backward":
                reduced.append(rank.communicate("reduce_scatter", everyone, 110, 22))
                if len(reduced) > 2:
                    rank.wait(reduced.popleft(), "cudaEventSynchronize")
    rank.order(COMPUTE, reduced[-1])


def _in_turn(rank: Rank, kind: str, duration: float) -> None:
    for phase in ("forward", "backward"):
        rank.thread = 2 if phase == "backward" else 1
        for _ in range(2 * rank.job.layers):
            rank.compute(phase, 0.5)
            rank.order(COMPUTE, rank.communicate(kind, range(rank.job.world), duration, 20))


def _tensor_parallel(rank: Rank) -> None:
    _in_turn(rank, "all_reduce", 60)


def _sharded_tensors(rank: Rank) -> None:
    """Run sharded weights over two ranks, and tensor parallelism over two others."""
    first, odd = rank.number // 2 * 2, rank.number % 2
    tensor, data = (first, first + 1), (odd, odd + 2)
    for phase in ("forward", "backward"):
        rank.thread = 2 if phase == "backward" else 1
        for _ in range(rank.job.layers):
            rank.order(COMPUTE, rank.communicate("all_gather", data, 90, 20))
            for _ in range(2):
                rank.compute(phase, 0.5)
                rank.order(COMPUTE, rank.communicate("all_reduce", tensor, 40, 24))
            if phase == "backward":
                reduced = rank.communicate("reduce_scatter", data, 110, 22)
    rank.order(COMPUTE, reduced)


def _experts(rank: Rank) -> None:
    _in_turn(rank, "all_to_all", 80)
    rank.order(COMPUTE, rank.communicate("all_reduce", range(rank.job.world), 150, 24))


def _ring(rank: Rank) -> None:
    world, own = rank.job.world, rank.number
    peers = (("send", (own + 1) % world), ("recv", (own - 1) % world))
    for phase in ("forward", "backward"):
        rank.thread = 2 if phase == "backward" else 1
        for layer in range(rank.job.layers):
            for hop in range(world):
                received = None
                if hop + 1 < world:
                    key = ("ring", phase, rank.step, layer, hop)
                    around = [(*key, (own + offset) % world) for offset in (-1, 0, 1)]
                    received = rank.communicate("send", range(world), 40, 20, peers, key, around)
                rank.compute(phase, 0.3)
                if received is not None:
                    rank.order(COMPUTE, received)
    rank.order(COMPUTE, rank.communicate("all_reduce", range(world), 150, 24))


def _pipeline(rank: Rank) -> None:
    """Run 1F1B on two stages of two replicas; activations and gradients are sent in both directions."""
    replicas = 2
    stages = rank.job.world // replicas
    stage, replica = divmod(rank.number, replicas)
    chain = [other for other in range(rank.job.world) if other % replicas == replica]
    micro_batches, ahead = 2 * stages, stages - 1 - stage
    passes = ["forward"] * ahead + ["forward", "backward"] * (micro_batches - ahead) + ["backward"] * ahead

    def message(sender: int, receiver: int, phase: str, number: int) -> Work:
        key = ("pipeline", sender, receiver, phase, number, rank.step)
        is_sender = rank.number == sender
        kind, peer = ("send", receiver) if is_sender else ("recv", sender)
        stream = FIRST_P2P + 2 * (sender < receiver) + is_sender
        members = [(*key, sender), (*key, receiver)]
        return rank.communicate(kind, chain, 50, stream, [(kind, peer)], key, members)

    done = {"forward": 0, "backward": 0}
    before, behind = rank.number - replicas, rank.number + replicas
    for phase in passes:
        number = done[phase]
        done[phase] += 1
        rank.thread = 1
        if phase == "forward" and stage:
            rank.order(COMPUTE, message(before, rank.number, phase, number))
        if phase == "backward" and stage < stages - 1:
            rank.order(COMPUTE, message(behind, rank.number, phase, number))
        rank.thread = 2 if phase == "backward" else 1
        for _ in range(max(1, rank.job.layers // 2)):
            rank.compute(phase)
        rank.thread = 1
        if phase == "forward" and stage < stages - 1:
            message(rank.number, behind, phase, number)
        if phase == "backward" and stage:
            message(rank.number, before, phase, number)
    same_stage = [stage * replicas + other for other in range(replicas)]
    rank.order(COMPUTE, rank.communicate("all_reduce", same_stage, 300, 20))


LAYOUTS: dict[str, tuple[Any, int]] = {
    "replicas": (_replicas, 4),
    "sharded": (_sharded, 4),
    "tensor-parallel": (_tensor_parallel, 4),
    "sharded-tensors": (_sharded_tensors, 4),
    "experts": (_experts, 4),
    "ring": (_ring, 4),
    "pipeline": (_pipeline, 4),
    "long pipeline": (_pipeline, 8),
}
"""Program and number of ranks of each layout."""
AXES: dict[str, Any] = {
    "replicas": lambda _: "mesh_dp",
    "sharded": lambda _: "mesh_dp",
    "tensor-parallel": lambda _: "mesh_tp",
    "sharded-tensors": lambda group: "mesh_dp" if group[1] - group[0] > 1 else "mesh_tp",
    "experts": lambda _: "mesh_ep",
    "ring": lambda _: "mesh_cp",
    "pipeline": lambda group: "mesh_pp" if group[1] - group[0] > 1 else "mesh_dp",
    "long pipeline": lambda group: "mesh_pp" if group[1] - group[0] > 1 else "mesh_dp",
}
"""Description of a group in each layout."""
