"""Kineto events of a GPU run: CPU ops, launches, kernels on streams, flows between them, NCCL's arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.extras.synth import layout
from usp_prof.extras.synth.history import BACKWARD, WATCHDOG, Part
from usp_prof.extras.synth.layout import TIME, Sheet, complete_event, fill, literal, micro, op_event, rows_by_op

COMPUTE_STREAM = 7
_FIRST_STREAM = 20
_HOST_OP = 0.85
_LAUNCH_AT = 0.35
_LAUNCH = 0.4
_NCCL = {
    "all_reduce": ("allreduce", "c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    "all_gather": ("_allgather_base", "c10d::_allgather_base_", "ncclDevKernel_AllGather_RING_LL"),
    "reduce_scatter": (
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    ),
    "all_to_all": ("all_to_allv", "c10d::alltoall_base_", "ncclDevKernel_SendRecv"),
    "send": ("send", "c10d::send", "ncclDevKernel_SendRecv"),
    "recv": ("recv", "c10d::recv_", "ncclDevKernel_SendRecv"),
}  # fmt: skip
_COPIES = {
    "HtoD": "HtoD (Pinned -> Device)",
    "HtoD pageable": "HtoD (Pageable -> Device)",
    "DtoH": "DtoH (Device -> Pinned)",
}
_ARGUMENTS = "(ncclDevKernelArgsStorage<4096ul>)"


def events(sheet: Sheet) -> Iterator[str]:
    """Write all events of one rank."""
    backward = sheet.thread(BACKWARD)
    threads = {sheet.pid: f"thread {sheet.pid} (python3)", backward: f"thread {backward} (pt_autograd_0)"}
    if sheet.simulation.run.speed.watchdog_ns:
        threads[sheet.thread(WATCHDOG)] = f"thread {sheet.thread(WATCHDOG)} (pt_nccl_watchdg)"
    yield from layout.names(sheet, "python3", "CPU", threads, sheet.pid)
    keys = sorted({_stream_key(part) for part in sheet.log.parts}, key=str)
    streams = {key: _FIRST_STREAM + 4 * number for number, key in enumerate(keys)}
    stream_names = {COMPUTE_STREAM: f"stream {COMPUTE_STREAM} "} | {
        number: f"stream {number} " for number in streams.values()
    }
    yield from layout.names(sheet, "python3", "GPU 0", stream_names, 0)
    yield from layout.spans(sheet)
    kernels = sum(len(block.ops) for block in sheet.log.blocks)
    yield from _kernels(sheet)
    yield from _communication(sheet, streams, kernels)
    yield from _copies(sheet, kernels + len(sheet.log.parts))


def _kernels(sheet: Sheet) -> Iterator[str]:
    blocks = sheet.log.blocks
    host = np.concatenate([block.host_ns for block in blocks])
    start = np.concatenate([block.start_ns for block in blocks])
    duration = np.concatenate([block.dur_ns for block in blocks])
    thread = np.repeat([sheet.thread(block.thread) for block in blocks], [len(block.ops) for block in blocks])
    for op, rows, identity in rows_by_op(blocks):
        args = f'"Concrete Inputs": {op.concrete}, "Input type": {op.types}, "Input Dims": {op.dims}, "Ev Idx": 0'
        template = _op(sheet, op.name, literal(args)) + _launch(sheet, "cudaLaunchKernel", 211)
        template += _kernel(op.kernel, COMPUTE_STREAM, "")
        yield from fill(template, *_numbers(sheet, host[rows], start[rows], duration[rows], thread[rows], identity))


def _communication(sheet: Sheet, streams: dict[tuple[Any, ...], int], first: int) -> Iterator[str]:
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for number, part in enumerate(sheet.log.parts):
        kinds.setdefault((*_stream_key(part), part.call.op, part.call.bytes), []).append(number)
    parts, rank = sheet.log.parts, sheet.log.rank
    for numbers in kinds.values():
        call_parts = [parts[number] for number in numbers]
        host = np.array([part.host_ns for part in call_parts])
        start = np.array([part.call.start[rank] for part in call_parts])
        duration = np.array([part.call.end[rank] for part in call_parts]) - start
        thread = np.array([sheet.thread(part.thread) for part in call_parts])
        identity = np.array(numbers) + first + 1
        sequence = np.array([part.sequence for part in call_parts])
        head = call_parts[0]
        _, op, kernel = _NCCL[head.direction or head.call.op]
        meta = literal(_metadata(sheet, head)) + ', "Seq": %d'
        template = _op(sheet, op, '"Ev Idx": 0') + _op(sheet, "record_param_comms", meta)
        template += _launch(sheet, "cudaLaunchKernelExC", 430)
        template += _kernel(kernel + _ARGUMENTS, streams[_stream_key(head)], f"{meta}, ")
        columns = _numbers(sheet, host, start, duration, thread, identity)
        again = (*columns[:6], sequence)
        yield from fill(template, *columns[:6], *again, *columns[6:-3], sequence, *columns[-3:])


def _numbers(sheet: Sheet, host: Ints, start: Ints, duration: Ints, thread: Ints, identity: Ints) -> tuple[Ints, ...]:
    """Return the numbers of op, launch, flow out, kernel and flow in, in the order of the templates."""
    gap = sheet.simulation.run.speed.op_gap_ns
    call = host + round(gap * _LAUNCH_AT)
    op = (thread, *sheet.span(host, host + round(gap * _HOST_OP)), identity)
    launch = (thread, *sheet.span(call, call + round(gap * _LAUNCH)), identity, identity)
    out = (identity, thread, *micro(sheet.clock.local(call)))
    kernel = (*sheet.span(start, start + duration), identity, identity)
    return (*op, *launch, *out, *kernel, identity, *micro(sheet.clock.local(start)))


def _op(sheet: Sheet, name: str, args: str) -> str:
    return op_event("cpu_op", name, sheet.pid, "%d", args)


def _launch(sheet: Sheet, name: str, cbid: int) -> str:
    args = f'"External id": %d, "cbid": {cbid}, "correlation": %d'
    return complete_event("cuda_runtime", name, sheet.pid, "%d", args) + (
        f'{{"ph": "s", "id": %d, "pid": {sheet.pid}, "tid": %d, "ts": {TIME}, "cat": "ac2g", "name": "ac2g"}},\n'
    )


def _kernel(name: str, stream: int, meta: str, category: str = "kernel") -> str:
    args = (
        f'"External id": %d, "queued": 0, "device": 0, "context": 1, "stream": {stream}, "correlation": %d, '
        f'{meta}"registers per thread": 96, "shared memory": 0, "blocks per SM": 4.0, "warps per SM": 32.0, '
        '"grid": [528, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %%": 50'
    )
    return complete_event(category, name, 0, stream, args) + (
        f'{{"ph": "f", "id": %d, "pid": 0, "tid": {stream}, "ts": {TIME}, "cat": "ac2g", "name": "ac2g", "bp": "e"}},\n'
    )


def _metadata(sheet: Sheet, part: Part) -> str:
    """Write NCCL's arguments like PyTorch, except the sequence number."""
    group, catalog = part.call.group, sheet.simulation.catalog
    elements = part.call.bytes // catalog.element_bytes
    share = elements // len(part.call.members)
    fields: dict[str, Any] = {
        "Collective name": _NCCL[part.direction or part.call.op][0],
        "In msg nelems": share if part.call.op == "all_gather" else elements,
        "Out msg nelems": share if part.call.op == "reduce_scatter" else elements,
        "Group size": len(group.ranks),
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
    }
    return json.dumps(fields | layout.group_arguments(part))[1:-1]


def _stream_key(part: Part) -> tuple[Any, ...]:
    own = part.direction or part.call.group.axis == "dp"
    return (part.call.group.axis, part.direction, part.peer, part.call.op if own else "")


def _copies(sheet: Sheet, first: int) -> Iterator[str]:
    for number, copy in enumerate(sheet.log.copies):
        kind = _COPIES[copy.direction]
        args = f'"bytes": {copy.bytes}, "memory bandwidth (GB/s)": {copy.bytes / copy.dur_ns:.6f}, '
        memcpy = _kernel(f"Memcpy {kind}", COMPUTE_STREAM, args, "gpu_memcpy")
        template = _op(sheet, "aten::copy_", '"Ev Idx": 0') + _launch(sheet, "cudaMemcpyAsync", 41) + memcpy
        columns = [
            np.array([value]) for value in (copy.host_ns, copy.start_ns, copy.dur_ns, sheet.pid, first + number + 1)
        ]
        yield from fill(template, *_numbers(sheet, *columns))
