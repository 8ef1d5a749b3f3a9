"""Mutations of small runs: one to three hostile values where the reader expects other ones.

A seed identifies a mutated run permanently: `mutated(seed)` always returns the same files, so a failure is stored as a
number.
"""

from __future__ import annotations

import gzip
import json
import random
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tiny import Trace, write

from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write as write_synth

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 2**70, 10**17, 10**20,
    10**400, 0.5, -0.0, 1e-320, 1e300, 1e308, float("nan"), float("inf"), float("-inf"), True, False, None,
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", " ", "0", "-1", "9" * 5000, "1e999", "NaN", "null", "[]", "{}", "...", "\x1b[31mred\x1b[0m", "::error::x",
    "=1+1", "<script>alert(1)</script>", "a\nb", "a\0b", "\ud800", "\u202e", "é" * 300, "x" * 70_000, "../../etc",
    "pp::F stage=" + str(2**70) + " mb=0", "pp::F stage=0 mb=" + "9" * 5000, "pp::B stage=-5 mb=-7",
    "ep::load tokens=" + str(10**20) + " experts=9,3", "ep::load tokens=3 experts=,,", "ep::load tokens=x experts=1",
    "train::cut step=" + str(2**65), "cp::ring_send_recv step=" + str(2**64), "ProfilerStep#" + "9" * 30,
    "ProfilerStep#-3", "PP:99999999999999999999F0", "Forward 99999999999999999999", "FSDP::all_gather (" + "a" * 900,
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "gloo:all_reduce", "Memcpy HtoD", "aten::mm", "nccl:recv 0<-1",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    [], {}, [[]], [None], [True, False], [-1], [2**70], [[2**62, 2**62]], [0.5], ["0"], [0, 0, 0], {"0": 0},
    {"a": {"a": {}}}, [[4, 8], [8, 2**40]], list(range(400)), [[[[[[[[1]]]]]]]],
)  # fmt: skip
PHASES = ("X", "B", "E", "i", "s", "f", "M", "C", "N", "", "x", "XX")
CATEGORIES = (
    "kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "user_annotation", "gpu_user_annotation", "cuda_runtime",
    "cuda_driver", "cuda_sync", "python_function", "cpu_instant_event", "overhead", "ac2g", "fwdbwd", "Trace", "other",
)  # fmt: skip


@dataclass(slots=True)
class Files:
    """A run as plain data: the top level of each trace, the manifest, and other inputs of mutations."""

    traces: dict[str, dict[str, Any]]
    manifest: dict[str, Any] | None
    bytes_of: dict[str, bytes] = field(default_factory=dict)
    """Files given as bytes; they replace the trace with the same name."""

    def write(self, folder: Path) -> Path:
        """Write all files."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, top in self.traces.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.bytes_of.get(name) or text_of(top))
        if self.manifest is not None:
            (folder / "run.json").write_bytes(self.bytes_of.get("run.json") or text_of(self.manifest))
        return folder


def text_of(data: Any) -> bytes:
    """Write JSON as Python does, NaN and lone surrogates included."""
    return json.dumps(data).encode("utf-8", "surrogatepass")


@cache
def samples() -> tuple[str, ...]:
    """Return small runs of every kind as JSON texts: GPU and CPU, pipelines, groups, experts, allocations, syncs."""
    with TemporaryDirectory() as name:
        folders = [_synth(Path(name) / style, style) for style in ("nccl", "gloo")]
        folders += [_marked(Path(name) / "marked"), _every_category(Path(name) / "every")]
        return tuple(json.dumps(_read(folder)) for folder in folders)


def _synth(folder: Path, style: str) -> Path:
    declared = {
        "style": style, "seed": 3, "mesh": {"pp": 2} if style == "nccl" else {"dp": 2},
        "shape": {
            "layers": 1 + (style == "nccl"), "hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 128, "vocab": 100,
        },
        "work": {"steps": 2, "micro_batches": 2, "schedule": "1F1B"},
    }  # fmt: skip
    write_synth(Declaration.from_dict(declared), folder)
    return folder


def _marked(folder: Path) -> Path:
    traces = {}
    for rank in (0, 1):
        trace = Trace(rank, 2, device="cpu").group("0", [0, 1], "default_pg").group("1", [0, 1], "mesh_cp")
        for step in range(3):
            at = step * 20_000
            trace.step(step, at, 19_000).mark(f"pp::F stage={rank} mb=0", at + 100, 3000)
            trace.mark(f"pp::B stage={rank} mb=0", at + 9000, 4000).mark("cp::ring_send_recv step=0", at + 4000, 500)
            trace.mark("ep::load tokens=12 experts=9,3", at + 4600, 10).mark("train::optimizer", at + 14_000, 3000)
            trace.op("aten::mm", at + 200, 900, dims=[[4, 8], [8, 2]], types=["float", "float"])
            trace.gloo("all_reduce", at + 6000, 1500, posted_at=at + 5500, group="1", sequence=step)
        traces[rank] = trace
    return write(traces, folder)


def _every_category(folder: Path) -> Path:
    trace = Trace(0, 1).group("1", [0], "mesh_tp").step(1, 0, 9000).step(2, 9000, 9000)
    for at, category in enumerate(CATEGORIES):
        trace.event("aten::mm", category, 100 + at * 900, 700, args={"correlation": at, "External id": at, "bytes": 9})
    trace.kernel("gemm", 2000, 600, launch_at=300)
    trace.collective("all_reduce", 12_000, 900, launch_at=9_500, group="1", nelems=64, sequence=1)
    trace.event("[memory]", "cpu_instant_event", 50, 0, ph="i", args={
        "Total Reserved": 4096, "Total Allocated": 1024, "Bytes": 512, "Addr": 99, "Device Id": 0, "Device Type": 1,
    })  # fmt: skip
    return write({0: trace}, folder)


def _read(folder: Path) -> dict[str, Any]:
    traces = {}
    for path in sorted(folder.glob("*.json*")):
        if path.name not in {"run.json", "truth.json"}:
            text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            traces[path.name.removesuffix(".gz")] = json.loads(text)
    manifest = folder / "run.json"
    return {"traces": traces, "manifest": json.loads(manifest.read_bytes()) if manifest.exists() else None}


def sample(number: int) -> Files:
    """Return one of the samples, for modification."""
    data = json.loads(samples()[number % len(samples())])
    return Files(data["traces"], data["manifest"])


def mutated(seed: int) -> Files:
    """Return a run with one to three errors."""
    rng = random.Random(seed)  # noqa: S311 - a seed to repeat, no secret
    files = sample(rng.randrange(len(samples())))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(MUTATIONS)(rng, files)
    return files


def hostile(rng: random.Random) -> Any:
    """Return an unexpected value: a copy, since the next mutation may modify it."""
    return deepcopy(rng.choice(rng.choice((NUMBERS, TEXTS, SHAPES))))


def _trace(rng: random.Random, files: Files) -> dict[str, Any]:
    return files.traces[rng.choice(sorted(files.traces))]


def _some_events(rng: random.Random, files: Files) -> list[dict[str, Any]]:
    """Choose one event, all events of a kind, or all events of a trace."""
    events = [event for event in _trace(rng, files)["traceEvents"] if isinstance(event, dict)]
    if not events:
        return []
    chosen = rng.choice(events)
    how = rng.randrange(4)
    if how == 0:
        return [event for event in events if event.get("cat") == chosen.get("cat")]
    return events if how == 1 else [chosen]


def event_field(rng: random.Random, files: Files) -> None:
    """Put a hostile value into a field of events, or remove the field."""
    key = rng.choice(("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id"))
    value = {"ph": rng.choice(PHASES), "cat": rng.choice(CATEGORIES)}.get(key, hostile(rng))
    value = hostile(rng) if rng.random() < 0.3 else value
    for event in _some_events(rng, files):
        if rng.random() < 0.1:
            event.pop(key, None)
        else:
            event[key] = value


def event_argument(rng: random.Random, files: Files) -> None:
    """Put a hostile value into an argument of events."""
    chosen = [event for event in _some_events(rng, files) if isinstance(event.get("args"), dict)]
    keys = sorted({key for event in chosen for key in event["args"]})
    if keys:
        key, value = rng.choice(keys), hostile(rng)
        for event in chosen:
            event["args"][key] = value


def event_times(rng: random.Random, files: Files) -> None:
    """Make times equal, huge or negative, or durations zero."""
    key, value = rng.choice(("ts", "dur")), rng.choice((0, 1, -1, 5, 1e12, 2**53, 9.2e18, 1e-9))
    for event in _some_events(rng, files):
        if key in event:
            event[key] = value


def event_order(rng: random.Random, files: Files) -> None:
    """Shuffle, repeat or remove events."""
    trace = _trace(rng, files)
    events = trace["traceEvents"]
    how = rng.randrange(5)
    if how == 0:
        rng.shuffle(events)
    elif how == 1:
        trace["traceEvents"] = events * 2
    elif how == 2:
        trace["traceEvents"] = rng.sample(events, len(events) // 2)
    elif how == 3:
        trace["traceEvents"] = events[:1] if rng.random() < 0.5 else []
    elif events:
        category = rng.choice(CATEGORIES)
        trace["traceEvents"] = [
            event for event in events if not isinstance(event, dict) or event.get("cat") != category
        ]


def odd_event(rng: random.Random, files: Files) -> None:
    """Insert an item that is not an event."""
    events = _trace(rng, files)["traceEvents"]
    events.insert(rng.randrange(len(events) + 1), hostile(rng))


def top_level(rng: random.Random, files: Files) -> None:
    """Insert a hostile value anywhere outside of the events."""
    trace = _trace(rng, files)
    rest = {key: value for key, value in trace.items() if key != "traceEvents"}
    anywhere(rng, rest)
    trace.update(rest)


def manifest_value(rng: random.Random, files: Files) -> None:
    """Put a hostile value anywhere into the manifest."""
    if files.manifest is not None:
        anywhere(rng, files.manifest)


def damaged_bytes(rng: random.Random, files: Files) -> None:
    """Flip, cut, repeat or zero bytes of a file."""
    name = rng.choice([*sorted(files.traces), *(["run.json"] if files.manifest is not None else [])])
    data = bytearray(text_of(files.manifest if name == "run.json" else files.traces[name]))
    at, size = rng.randrange(len(data)), rng.choice((1, 8, 200))
    how = rng.randrange(5)
    if how == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        del data[at:]
    elif how == 2:
        data[at : at + size] = b""
    elif how == 3:
        data[at : at + size] = bytes(len(data[at : at + size]))
    else:
        data[at:at] = data[at : at + size]
    packed = gzip.compress(bytes(data), mtime=0) if rng.random() < 0.3 else bytes(data)
    files.bytes_of[name] = packed[: rng.randrange(len(packed))] if rng.random() < 0.1 else packed


def file_name(rng: random.Random, files: Files) -> None:
    """Rename a trace."""
    name = rng.choice(sorted(files.traces))
    other = rng.choice((
        "rank_9223372036854775808/trace.json", "rank-1.json", "rank0.json", "rank" + "9" * 200 + ".json", "trace.json",
        "rank_٣.json", "a\nb rank7.json", "::error::rank3.json", "=rank2.json", "rank1 \x1b[31m.json", ".json",
    ))  # fmt: skip
    files.traces[other] = files.traces.pop(name)
    if name in files.bytes_of:
        files.bytes_of[other] = files.bytes_of.pop(name)


def anywhere(rng: random.Random, data: Any) -> None:
    """Replace, remove or add one value at any depth."""
    places: list[tuple[Any, Any]] = []
    _collect(data, places)
    if not places:
        return
    holder, key = rng.choice(places)
    if rng.random() < 0.1:
        del holder[key]
    else:
        holder[key] = hostile(rng)


def _collect(data: Any, places: list[tuple[Any, Any]]) -> None:
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in list(keys):
        places.append((data, key))
        _collect(data[key], places)


OF_A_TRACE: tuple[Callable[[random.Random, Files], None], ...] = (
    event_field, event_argument, event_times, event_order, odd_event, top_level,
)  # fmt: skip
MUTATIONS: tuple[Callable[[random.Random, Files], None], ...] = (
    *OF_A_TRACE, manifest_value, damaged_bytes, file_name,
)  # fmt: skip
