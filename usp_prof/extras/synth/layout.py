"""Kineto files: header, metadata events, host ranges and footer, and templates for many JSON events at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.contract import TRACE_METADATA_KEY, Manifest
from usp_prof.extras.synth.declaration import Style
from usp_prof.extras.synth.history import BACKWARD, WATCHDOG, KernelBlock, Part, RankLog
from usp_prof.extras.synth.mesh import BASE_NS, HostClock
from usp_prof.extras.synth.ops import Op
from usp_prof.extras.synth.simulation import Simulation

# Templates: many events of one form become JSON text at once, from one repeated line and all its numbers.


TIME = "%d.%03d"
"""Placeholder for a time: Kineto writes microseconds with three decimals."""

_CHUNK = 4096


def literal(text: str) -> str:
    """Return fixed text for a template."""
    return text.replace("%", "%%")


def micro(nanoseconds: Ints) -> tuple[Ints, Ints]:
    """Split nanoseconds into the two numbers of a `TIME`."""
    return nanoseconds // 1000, nanoseconds % 1000


def fill(template: str, *columns: Ints | int) -> Iterator[str]:
    """Yield one copy of the template for each row, in chunks; every `%d` gets its column's number."""
    rows = max((len(column) for column in columns if isinstance(column, np.ndarray)), default=1)
    table = np.empty((rows, len(columns)), dtype=np.int64)
    for number, column in enumerate(columns):
        table[:, number] = column
    for first in range(0, rows, _CHUNK):
        part = table[first : first + _CHUNK]
        yield (template * len(part)) % tuple(part.ravel().tolist())


def complete_event(category: str, name: str, process: int, thread: int | str, args: str) -> str:
    """Return the template of an event with a duration; `args` is a template, and the thread may be a placeholder."""
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {literal(json.dumps(name))}, "pid": {process}, "tid": {thread}, '
        f'"ts": {TIME}, "dur": {TIME}, "args": {{{args}}}}},\n'
    )


def op_event(category: str, name: str, process: int, thread: int | str, args: str) -> str:
    """Return the template of an op or annotation of the host, with its external id."""
    return complete_event(category, name, process, thread, f'"External id": %d, "Record function id": 0, {args}')


def rows_by_op(blocks: Sequence[KernelBlock]) -> Iterator[tuple[Op, Flags, Ints]]:
    """Yield each op of the blocks, the mask of its rows among all rows of the blocks, and their external ids."""
    ops: dict[Op, int] = {}
    codes = np.array([ops.setdefault(op, len(ops)) for block in blocks for op in block.ops])
    identity = np.arange(1, len(codes) + 1)
    for op, code in ops.items():
        yield op, codes == code, identity[codes == code]


def group_arguments(part: Part) -> dict[str, Any]:
    """Return a part's group and, of a send or receive, its peer, as PyTorch names them among an event's arguments."""
    group = part.call.group
    arguments: dict[str, Any] = {
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": json.dumps(list(group.ranks)),
    }
    if part.direction:
        arguments["Dst Rank" if part.direction == "send" else "Src Rank"] = part.peer
    return arguments


FIRST_PID = 20_000
_PID_STRIDE = 64
_OTHER_THREADS = {BACKWARD: 27, WATCHDOG: 31}
_DEVICE = {"id": 0, "name": "", "totalGlobalMem": 85_899_345_920, "warpSize": 32}


@dataclass(frozen=True, slots=True)
class Sheet:
    """Data for writing one rank's file."""

    simulation: Simulation
    log: RankLog
    clock: HostClock
    manifest: Manifest | None

    @property
    def pid(self) -> int:
        """The rank's process, and its main thread."""
        return FIRST_PID + _PID_STRIDE * self.log.rank

    def thread(self, number: int) -> int:
        """Return the system's number of a host thread."""
        return self.pid + _OTHER_THREADS.get(number, 0)

    def span(self, start_ns: Any, end_ns: Any) -> tuple[Any, ...]:  # noqa: ANN401 - numbers or arrays
        """Return the four numbers of `ts` and `dur` on this rank's clock."""
        begin, end = self.clock.local(np.atleast_1d(start_ns)), self.clock.local(np.atleast_1d(end_ns))
        return (*micro(begin), *micro(end - begin))


def header(sheet: Sheet) -> Iterator[str]:
    """Yield the start of the file: schema, devices, distributed description, the manifest as metadata."""
    run, rank = sheet.simulation.run, sheet.log.rank
    gpu = run.style is Style.NCCL
    groups = [group for group in sheet.simulation.topology.groups if rank in group.ranks]
    fields: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [_DEVICE | {"name": run.speed.device}] if gpu else [],
        "distributedInfo": {
            "backend": str(run.style),
            "rank": rank,
            "world_size": run.mesh.world,
            "pg_count": len(groups),
            "pg_config": [
                {
                    "pg_name": group.name, "pg_desc": group.description,
                    "backend_config": "cuda:nccl" if gpu else "cpu:gloo", "pg_size": len(group.ranks),
                    "ranks": list(group.ranks),
                }
                for group in groups
            ],
            **({"nccl_version": "2.27.5"} if gpu else {}),
        },
        "record_shapes": 1,
        "trace_id": f"{run.seed:016X}{rank:016X}",
    }  # fmt: skip
    if sheet.manifest is not None:
        fields[TRACE_METADATA_KEY] = sheet.manifest.to_dict()
    fields |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    yield json.dumps(fields)[:-1] + ', "traceEvents": [\n'


def spans(sheet: Sheet) -> Iterator[str]:
    """Write the ranges of the host's threads."""
    by_name: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for span in sheet.log.spans:
        by_name.setdefault((span.name, span.category, span.thread), []).append((span.start_ns, span.end_ns))
    for (name, category, thread), pairs in by_name.items():
        template = complete_event(category, name, sheet.pid, sheet.thread(thread), '"External id": 0')
        bounds = np.array(pairs, dtype=np.int64)
        yield from fill(template, *sheet.span(bounds[:, 0], bounds[:, 1]))


def names(sheet: Sheet, process: str, labels: str, threads: dict[int, str], pid: int) -> Iterator[str]:
    """Name a process and its threads or streams."""
    rows = [("process_name", 0, {"name": process}), ("process_labels", 0, {"labels": labels})]
    rows += [("thread_name", tid, {"name": name}) for tid, name in threads.items()]
    at = int(sheet.clock.local(np.array(0)))
    for name, tid, args in rows:
        yield (
            f'{{"name": "{name}", "ph": "M", "ts": {at // 1000}.{at % 1000:03d}, "pid": {pid}, "tid": {tid}, '
            f'"args": {json.dumps(args)}}},\n'
        )


def footer(sheet: Sheet) -> Iterator[str]:
    """Yield the end of the file with the recorded window."""
    yield from fill(
        '{"ph": "X", "cat": "Trace", "ts": ' + TIME + ', "dur": ' + TIME + ', "pid": "Spans", '
        '"tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}}\n',
        *sheet.span(sheet.log.steps[0][1], sheet.log.steps[-1][2]),
    )
    yield f'], "traceName": "rank{sheet.log.rank}.pt.trace.json"}}\n'
