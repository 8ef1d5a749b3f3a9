"""Kineto events of a CPU run over gloo: ops on the main thread, collectives on gloo's own threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from usp_prof.extras.synth import layout
from usp_prof.extras.synth.history import Part
from usp_prof.extras.synth.layout import Sheet, fill, literal, op_event, rows_by_op

_C10D = {
    "all_reduce": "c10d::allreduce_",
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_to_all": "c10d::alltoall_base_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
}
_FIRST_WORKER = 1
_POST_SHARE = 0.8


def events(sheet: Sheet) -> Iterator[str]:
    """Write all events of one rank."""
    groups = sorted({part.call.group.name for part in sheet.log.parts if not part.direction})
    workers = {name: sheet.pid + _FIRST_WORKER + number for number, name in enumerate(groups)}
    threads = {sheet.pid: f"thread {sheet.pid} (python3)"}
    threads |= {tid: f"thread {tid} (pt_gloo_runloop)" for tid in workers.values()}
    yield from layout.names(sheet, "python3", "CPU", threads, sheet.pid)
    yield from layout.spans(sheet)
    yield from _ops(sheet)
    yield from _communication(sheet, workers)


def _ops(sheet: Sheet) -> Iterator[str]:
    blocks = sheet.log.blocks
    start = np.concatenate([block.start_ns for block in blocks])
    end = start + np.concatenate([block.dur_ns for block in blocks])
    for op, rows, identity in rows_by_op(blocks):
        args = f'"Concrete Inputs": {op.concrete}, "Input type": {op.types}, "Input Dims": {op.dims}'
        template = op_event("cpu_op", op.name, sheet.pid, sheet.pid, literal(args))
        yield from fill(template, *sheet.span(start[rows], end[rows]), identity)


def _communication(sheet: Sheet, workers: dict[str, int]) -> Iterator[str]:
    kinds: dict[tuple[Any, ...], list[Part]] = {}
    for part in sheet.log.parts:
        kinds.setdefault((part.call.group.name, part.call.op, part.call.bytes, part.direction, part.peer), []).append(
            part
        )
    rank, post = sheet.log.rank, round(sheet.simulation.run.speed.op_gap_ns * _POST_SHARE)
    for parts in kinds.values():
        head = parts[0]
        name = head.direction or head.call.op
        thread = workers.get(head.call.group.name, sheet.pid) if not head.direction else sheet.pid
        host = np.array([part.host_ns for part in parts])
        start = np.array([part.call.start[rank] for part in parts])
        end = np.array([part.call.end[rank] for part in parts])
        sequence = np.array([part.sequence for part in parts])
        dims = json.dumps([[head.call.bytes // sheet.simulation.catalog.element_bytes]])
        args = f'"Input type": ["float"], "Input Dims": {dims}'
        posted = op_event("cpu_op", _C10D[name], sheet.pid, sheet.pid, args)
        yield from fill(posted, *sheet.span(host, host + post), np.zeros_like(host))
        args = f'{args}, {literal(_metadata(sheet, head))}, "Seq": %d'
        template = op_event("user_annotation", f"gloo:{name}", sheet.pid, thread, args)
        yield from fill(template, *sheet.span(start, end), np.zeros_like(host), sequence)


def _metadata(sheet: Sheet, part: Part) -> str:
    """Write what the recorder restores onto gloo's ranges: the group in NCCL's words."""
    group = part.call.group
    elements = part.call.bytes // sheet.simulation.catalog.element_bytes
    fields: dict[str, Any] = {
        "Collective name": part.direction or part.call.op,
        "In msg nelems": elements // len(group.ranks) if part.call.op == "all_gather" else elements,
        "Out msg nelems": elements,
        "Group size": len(group.ranks),
        "dtype": "Float",
    }
    return json.dumps(fields | layout.group_arguments(part))[1:-1]
