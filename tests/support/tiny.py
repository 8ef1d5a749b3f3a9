"""Tiny Kineto traces for tests, built event by event; all times are integer nanoseconds.

    trace = Trace(rank=0, world=2).group("1", [0, 1], "mesh_tp")
    trace.step(3, at=0, dur=10_000)
    trace.op("aten::mm", at=100, dur=500, dims=[[4, 8], [8, 2]])
    trace.kernel("gemm", at=1_000, dur=2_000, launch_at=200)
    trace.collective("all_reduce", at=3_000, dur=1_000, launch_at=700, group="1", nelems=64)
    tables = table_set({0: trace, 1: other})

`table_set` uses the production path (reader, builders, topology); `write` writes files for tests that start from a
path. `Trace(device="cpu")` makes a gloo trace: `gloo` adds the worker's range and the c10d op that posted it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from usp_prof.contract import MANIFEST_NAME, Manifest
from usp_prof.inputs.kineto.reader import read
from usp_prof.tables.catalog import assemble, build_rank
from usp_prof.tables.table_set import MemorySource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.inputs.trace_record import TraceRecord
    from usp_prof.tables.table_set import TableSet

MAIN = 100
BASE = 1_700_000_000_000_000_000
NCCL = {
    "all_reduce": ("AllReduce_Sum_f32_RING_LL", "allreduce"),
    "all_gather": ("AllGather_RING_LL", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter_Sum_f32_RING_LL", "_reduce_scatter_base"),
    "all_to_all": ("SendRecv", "all_to_allv"),
    "broadcast": ("Broadcast_RING_LL", "broadcast"),
    "send": ("SendRecv", "send"),
    "recv": ("SendRecv", "recv"),
}
BOTH = ("all_gather", "reduce_scatter", "all_to_all")
C10D = {
    "all_reduce": "c10d::allreduce_",
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_to_all": "c10d::alltoall_base_",
    "broadcast": "c10d::broadcast_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
    "barrier": "c10d::barrier",
}


class Trace:
    """One rank's trace under construction; every method returns the trace."""

    def __init__(self, rank: int = 0, world: int = 1, *, device: str = "cuda", base: int = BASE) -> None:
        self.rank, self.world, self.device, self.base = rank, world, device, base
        self.events: list[dict[str, Any]] = []
        self.groups: dict[str, dict[str, Any]] = {}
        self.metadata: dict[str, Any] = {"schemaVersion": 1, "trace_id": f"tiny{rank}"}
        if device == "cuda":
            self.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA Tiny"}]
        backend = "nccl" if device == "cuda" else "gloo"
        self.distributed: dict[str, Any] | None = {"backend": backend, "rank": rank, "world_size": world}
        self._correlation = 1000

    # -- the file ---------------------------------------------------------------------------------------------------

    def meta(self, **fields: Any) -> Self:
        """Set top-level fields of the file."""
        self.metadata.update(fields)
        return self

    def group(self, name: str, ranks: Sequence[int], description: str = "undefined") -> Self:
        """Declare a process group in `pg_config`."""
        backend = "cuda:nccl" if self.device == "cuda" else "cpu:gloo"
        self.groups[name] = {
            "pg_name": name, "pg_desc": description, "backend_config": backend,
            "pg_size": len(ranks), "ranks": list(ranks),
        }  # fmt: skip
        return self

    def event(self, name: str, category: str, at: int, dur: int, **fields: Any) -> Self:
        """Add any complete event; `pid`, `tid` and `args` come from `fields`."""
        entry = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": MAIN, "ts": at, "dur": dur}
        entry.update(fields)
        self.events.append(entry)
        return self

    # -- the host ---------------------------------------------------------------------------------------------------

    def step(self, number: int, at: int, dur: int) -> Self:
        """Mark a profiler step."""
        return self.mark(f"ProfilerStep#{number}", at, dur)

    def mark(self, name: str, at: int, dur: int, *, thread: int = MAIN, args: Mapping[str, Any] | None = None) -> Self:
        """Mark a range (user_annotation)."""
        return self.event(name, "user_annotation", at, dur, tid=thread, args=dict(args or {}))

    def op(
        self, name: str, at: int, dur: int, *, dims: Any = None, types: Any = None, inputs: Any = None,
        thread: int = MAIN, external_id: int | None = None, sequence: int | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        """Add a CPU op."""
        fields = {
            "External id": external_id, "Sequence number": sequence,
            "Input Dims": dims, "Input type": types, "Concrete Inputs": inputs,
        }  # fmt: skip
        arguments = {key: value for key, value in fields.items() if value is not None}
        return self.event(name, "cpu_op", at, dur, tid=thread, args=arguments | dict(args or {}))

    def launch(
        self, correlation: int, at: int, dur: int = 10, *, name: str = "cudaLaunchKernel", thread: int = MAIN,
        category: str = "cuda_runtime",
    ) -> Self:  # fmt: skip
        """Add a runtime or driver call."""
        return self.event(name, category, at, dur, tid=thread, args={"correlation": correlation})

    def memory(
        self, at: int, size: int, total: int, *, address: int = 1, thread: int = MAIN, reserved: int = -1
    ) -> Self:
        """Add an allocator event; reserved equals allocated bytes unless given."""
        args = {
            "Bytes": size, "Addr": address, "Total Allocated": total,
            "Total Reserved": total if reserved < 0 else reserved,
            "Device Type": 1 if self.device == "cuda" else 0, "Device Id": 0 if self.device == "cuda" else -1,
        }  # fmt: skip
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": thread, "ts": at,
             "args": args}
        )  # fmt: skip
        return self

    # -- the device -------------------------------------------------------------------------------------------------

    def kernel(
        self, name: str, at: int, dur: int, *, stream: int = 7, correlation: int | None = None,
        launch_at: int | None = None, thread: int = MAIN, category: str = "kernel", device: int = 0,
        args: Mapping[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        """Add device work; `launch_at` adds the host call that launches it."""
        if launch_at is not None:
            if correlation is None:
                self._correlation += 1
                correlation = self._correlation
            call = {"gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}.get(category, "cudaLaunchKernel")
            self.launch(correlation, launch_at, name=call, thread=thread)
        arguments: dict[str, Any] = {"device": device, "stream": stream}
        if correlation is not None:
            arguments["correlation"] = correlation
        return self.event(name, category, at, dur, pid=device, tid=stream, args=arguments | dict(args or {}))

    def memcpy(
        self, at: int, dur: int, *, size: int = 4096, kind: str = "HtoD (Pinned -> Device)", **rest: Any
    ) -> Self:
        """Add a copy."""
        return self.kernel(f"Memcpy {kind}", at, dur, category="gpu_memcpy", args={"bytes": size}, **rest)

    def memset(self, at: int, dur: int, *, size: int = 4096, **rest: Any) -> Self:
        """Add a memset."""
        return self.kernel("Memset (Device)", at, dur, category="gpu_memset", args={"bytes": size}, **rest)

    def collective(
        self, op: str, at: int, dur: int, *, group: str = "", nelems: int = 0, out_nelems: int | None = None,
        dtype: str = "Float", sequence: int | None = None, stream: int = 20, launch_at: int | None = None,
        peer: int | None = None, thread: int = MAIN, described: bool = True,
    ) -> Self:  # fmt: skip
        """Add an NCCL kernel with its arguments and, when launched here, its record_param_comms.

        `described=False` leaves every argument out, as old traces and batched sends do.
        """
        kernel, collective = NCCL[op]
        entry = self.groups.get(group, {"pg_size": self.world, "pg_desc": "undefined", "ranks": []})
        args = {
            "Collective name": collective, "In msg nelems": nelems,
            "Out msg nelems": nelems if out_nelems is None else out_nelems, "Group size": entry["pg_size"],
            "dtype": dtype, "In split size": "[]", "Out split size": "[]", "Process Group Name": group,
            "Process Group Description": entry["pg_desc"], "Process Group Ranks": json.dumps(entry["ranks"]),
        }  # fmt: skip
        if sequence is not None:
            args["Seq"] = sequence
        if peer is not None:
            args["Dst Rank" if op == "send" else "Src Rank"] = peer
        args = args if described else {}
        if launch_at is not None:
            self.op("record_param_comms", launch_at - 5, 30, thread=thread, args=args)
        name = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
        return self.kernel(name, at, dur, stream=stream, launch_at=launch_at, thread=thread, args=args)

    def gloo(
        self, op: str, at: int, dur: int, *, dims: Sequence[int] = (4,), dtype: str = "float", thread: int = 200,
        posted_at: int | None = None, posted_by: int = MAIN, group: str | None = None, sequence: int | None = None,
        peer: int | None = None,
    ) -> Self:  # fmt: skip
        """Add gloo's range. `posted_at` adds the c10d op that posted it; `group` adds the recorder's arguments.

        As gloo does, a reduce_scatter's range is named all_reduce.
        """
        args: dict[str, Any] = {"Input Dims": [list(dims)], "Input type": [dtype]}
        size = self.groups[group]["pg_size"] if group is not None else self.world
        if posted_at is not None:
            output = {"all_gather": dims[0] * size, "reduce_scatter": dims[0] // size}.get(op, dims[0])
            tensors = [[output, *dims[1:]], list(dims)] if op in BOTH else [[list(dims)], []]
            self.op(C10D[op], posted_at, 20, dims=tensors, types=["TensorList", ""], thread=posted_by)
        if group is not None:
            entry = self.groups[group]
            nelems = 1
            for size in dims:
                nelems *= size
            factor = entry["pg_size"] if op == "all_gather" else 1
            divisor = entry["pg_size"] if op == "reduce_scatter" else 1
            args |= {
                "Collective name": op, "In msg nelems": nelems, "Out msg nelems": nelems * factor // divisor,
                "Group size": entry["pg_size"], "dtype": {"float": "Float", "double": "Double"}.get(dtype, dtype),
                "Process Group Name": group, "Process Group Description": entry["pg_desc"],
                "Process Group Ranks": json.dumps(entry["ranks"]),
            }  # fmt: skip
            if sequence is not None:
                args["Seq"] = sequence
        if peer is not None:
            args["Dst Rank" if op == "send" else "Src Rank"] = peer
        name = "all_reduce" if op == "reduce_scatter" else op
        return self.event(f"gloo:{name}", "user_annotation", at, dur, tid=thread, args=args)

    # -- out --------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the file's top level, with times still in nanoseconds."""
        distributed = dict(self.distributed) if self.distributed is not None else None
        if distributed is not None and self.groups:
            distributed |= {"pg_count": len(self.groups), "pg_config": list(self.groups.values())}
        top = dict(self.metadata)
        if distributed is not None:
            top["distributedInfo"] = distributed
        if self.base:
            top["baseTimeNanoseconds"] = self.base
        top["traceEvents"] = self.events
        return top

    def to_json(self, **options: Any) -> bytes:
        """Return the file as Kineto writes it: microseconds with three decimals."""
        top = self.to_dict()
        top["traceEvents"] = [_in_microseconds(event) for event in self.events]
        text = json.dumps(top, **options)
        return text.replace('"\\u0001', "").replace('\\u0001"', "").encode()

    def write(self, path: Path, **options: Any) -> Path:
        """Write the file, compressed when its name ends in .gz."""
        data = self.to_json(**options)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path


def write(traces: Mapping[int, Trace], folder: Path, manifest: Manifest | None = None) -> Path:
    """Write a run (one file per rank and the manifest), and return its folder."""
    for rank, trace in traces.items():
        trace.write(folder / f"rank{rank}.json.gz")
    if manifest is not None:
        (folder / MANIFEST_NAME).write_text(json.dumps(manifest.to_dict()))
    return folder


def _in_microseconds(event: dict[str, Any]) -> dict[str, Any]:
    # Control characters mark the numbers so that they lose their quotes afterwards: floats would round large times.
    times = {key: f"\x01{_decimal(event[key])}\x01" for key in ("ts", "dur") if isinstance(event.get(key), int)}
    return event | times


def _decimal(nanoseconds: int) -> str:
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{rest // 1000}.{rest % 1000:03d}"


def raw_trace(trace: Trace) -> TraceRecord:
    """Read the trace with the real reader."""
    with TemporaryDirectory() as folder:
        return read(trace.write(Path(folder) / f"rank{trace.rank}.json"))


def table_set(traces: Mapping[int, Trace] | Trace, manifest: Manifest | None = None) -> TableSet:
    """Build all tables of a run with the real reader."""
    ranks = {traces.rank: traces} if isinstance(traces, Trace) else traces
    sources = {rank: MemorySource(build_rank(raw_trace(trace), rank, manifest)) for rank, trace in ranks.items()}
    return assemble(sources, manifest=manifest)
