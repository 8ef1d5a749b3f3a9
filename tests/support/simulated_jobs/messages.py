"""Messages: collectives, and sends and receives of pipelines, as PyTorch records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulated_jobs.devices import Meeting, Program, Work
from simulated_jobs.hosts import COMPUTE, Host
from simulated_jobs.options import Group

ELEMENTS_PER_US = 120_000
SMALL_US = 20.0
"""Messages of at most this length carry `SMALL_ELEMENTS`: latency determines their length."""
SMALL_ELEMENTS = 64
ACTIVATION_ELEMENTS = 4_000_000
KERNEL_SUFFIX = "(ncclDevKernelArgsStorage<4096ul>)"
COLLECTIVES = {
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base", "ncclDevKernel_AllGather_RING_LL"),
    "_reduce_scatter_base": (
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    ),
    "all_to_allv": ("c10d::alltoall_base_", "nccl:all_to_all", "ncclDevKernel_SendRecv"),
}
"""Per collective: op, annotation and kernel."""


def collective(
    host: Host, group: Group, name: str, us: float, *, after_stream: int = COMPUTE, extra_stream: int = 0
) -> Program[Work]:
    """Post a collective after the work of a stream, and return its kernel."""
    op, annotation, kernel = COLLECTIVES[name]
    sequence, meeting, described = _next(host, group, name, us)
    kernel_args = _shown(host, described)
    inputs = ["", str(sequence), f"['{group.number}', '{group.axis}']", "0", name, "[]", "[]", "0", "1"]
    op_args = {**described, "Concrete Inputs": [*inputs, str(len(group.ranks))]}
    if kernel_args and host.options.has_sequence_numbers and host.options.names == "full":
        kernel_args["Seq"] = sequence
    stream = group.stream(extra_stream)
    with (
        host.op(op, 4, 3),
        host.op("record_param_comms", 4, 2, args=op_args if host.options.names == "full" else {}),
        host.annotation(annotation, 3, 2),
    ):
        host.call("cudaStreamIsCapturing", 0.8)
        host.order_after(host.record_event(after_stream), stream)
        work = yield from host.launch(
            kernel + KERNEL_SUFFIX,
            stream=stream,
            call="cuLaunchKernelEx",
            call_us=6,
            meetings=[meeting],
            args={"grid": [24, 1, 1], "block": [544, 1, 1], **kernel_args},
        )
        host.call("cudaEventRecord", 1.8)
    return work


def awaited_collective(host: Host, group: Group, name: str, us: float) -> Program[None]:
    """Post a collective that the next compute waits for."""
    work = yield from collective(host, group, name, us)
    host.order_after([work])


def collective_in_graph(host: Host, group: Group, name: str, us: float, correlation: int) -> Program[Work]:
    """Return the kernel of a collective that a graph launches, without calls of the host."""
    _, meeting, described = _next(host, group, name, us)
    host.order_after(host.last_work(), group.stream(), calls=False)
    work = yield from host.launch(
        COLLECTIVES[name][2] + KERNEL_SUFFIX,
        stream=group.stream(),
        correlation=correlation,
        meetings=[meeting],
        args=_shown(host, described),
    )
    return work


def _next(host: Host, group: Group, name: str, us: float) -> tuple[int, Meeting, dict[str, Any]]:
    """Return number, meeting and arguments of the group's next collective, the same on all its ranks."""
    host.sequence[group.number] += 1
    sequence, members = host.sequence[group.number], len(group.ranks)
    elements = round(us) * ELEMENTS_PER_US // members * members if us > SMALL_US else SMALL_ELEMENTS
    into = elements // members if name == "_allgather_base" else elements
    out = elements // members if name == "_reduce_scatter_base" else elements
    us *= _noise(host, [group.number, sequence])
    fault = host.options.fault
    if fault and fault.kind == "slow_link" and fault.axis == group.axis and set(fault.ranks) <= set(group.ranks):
        us *= fault.size if fault.is_active(host.step - host.options.warmup) else 1.0
    meeting = host.devices.meeting((group.number, sequence), members, us)
    return sequence, meeting, _args(group, name, into, out)


def _noise(host: Host, place: Sequence[int]) -> float:
    drawn = np.random.default_rng([host.options.seed, 2, *place])
    return float(np.exp(drawn.normal(0, host.options.message_noise)))


def _args(group: Group, name: str, into: int, out: int) -> dict[str, Any]:
    return {
        "Collective name": name,
        "In msg nelems": into,
        "Out msg nelems": out,
        "Group size": len(group.ranks),
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": str(group.number),
        "Process Group Description": group.axis,
        "Process Group Ranks": str(list(group.ranks)),
    }


def _shown(host: Host, args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the trace has."""
    match host.options.names:
        case "full":
            return dict(args)
        case "no_groups":
            return {key: value for key, value in args.items() if not key.startswith("Process")}
        case _:
            return {}


@dataclass(frozen=True, slots=True)
class Message:
    """One send or receive: the peer, and the action that the receiver starts with it."""

    is_send: bool
    peer: int
    is_backward: bool
    chunk: int
    micro_batch: int


def exchange(host: Host, messages: Sequence[Message]) -> Program[None]:
    """Post sends and receives, which the next compute waits for, in one batch or one by one."""
    group = host.groups["pp"]
    works = yield from (_batch if host.options.is_batched else _one_by_one)(host, group, messages)
    if works and (host.options.is_batched or not messages[0].is_send):
        host.order_after(works)
    if works and host.options.has_device_syncs and host.options.is_batched:
        yield from host.synchronize(host.all_last_work(), "cudaDeviceSynchronize")


def _batch(host: Host, group: Group, messages: Sequence[Message]) -> Program[list[Work]]:
    if not messages:
        return []
    for message in messages:
        op, annotation, args = _described(host, group, message)
        with host.op(op, 3, 2), host.op("record_param_comms", 3, 1, args=args), host.annotation(annotation, 2, 1):
            host.call("cudaStreamIsCapturing", 0.8)
    with host.annotation("nccl:coalesced", 2, 2):
        host.order_after(host.record_event(), group.stream())
        work = yield from _launch(host, group, messages, group.stream(), {})
        host.call("cudaEventRecord", 1.8)
    return [work]


def _one_by_one(host: Host, group: Group, messages: Sequence[Message]) -> Program[list[Work]]:
    works = []
    for message in messages:
        op, annotation, args = _described(host, group, message)
        stream = 60 + 8 * message.is_backward + 2 * group.ranks.index(message.peer) + message.is_send
        with host.op(op, 3, 2), host.op("record_param_comms", 3, 1, args=args), host.annotation(annotation, 2, 1):
            host.order_after(host.record_event(), stream)
            works.append((yield from _launch(host, group, [message], stream, args)))
    return works


def _launch(host: Host, group: Group, messages: Sequence[Message], stream: int, args: dict[str, Any]) -> Program[Work]:
    work = yield from host.launch(
        "ncclDevKernel_SendRecv" + KERNEL_SUFFIX,
        stream=stream,
        call="cuLaunchKernelEx",
        call_us=6,
        meetings=[_meeting_of(host, group, message) for message in messages],
        args={"grid": [2, 1, 1], "block": [640, 1, 1], **args},
    )
    return work


def _meeting_of(host: Host, group: Group, message: Message) -> Meeting:
    sender, receiver = (host.rank, message.peer) if message.is_send else (message.peer, host.rank)
    place = [sender, receiver, host.step + 1, int(message.is_backward), message.chunk, message.micro_batch]
    us = host.options.message_us * _noise(host, place)
    fault = host.options.fault
    if fault and fault.kind == "slow_link" and fault.axis == group.axis and set(fault.ranks) <= {sender, receiver}:
        us *= fault.size
    return host.devices.meeting(("message", *place), 2, us)


def _described(host: Host, group: Group, message: Message) -> tuple[str, str, dict[str, Any]]:
    """Return op, annotation and arguments of one send or receive."""
    name = "send" if message.is_send else "recv"
    args = _shown(host, _args(group, name, ACTIVATION_ELEMENTS, ACTIVATION_ELEMENTS))
    if args:
        args["Dst Rank" if message.is_send else "Src Rank"] = message.peer
    arrow = "->" if message.is_send else "<-"
    ends = f"{group.ranks.index(host.rank)}{arrow}{group.ranks.index(message.peer)}"
    return ("c10d::send" if message.is_send else "c10d::recv_"), f"nccl:{name} {ends}", args
