"""Run the trainer on simulated GPUs: one rank of a mesh of any size, without a device and without peers.

Tensors of torch's `FakeTensorMode` have a device, a type, a shape and strides, and no values. So what mixes devices or
types, what a kernel's own check of its arguments refuses, and what would wait for the device to see a value all fail
here as they would on a GPU. Backward runs in a thread of its own, as on a GPU. What kernels compute, how streams
overlap and whether NCCL connects is not seen.

`torch` builds for CPUs let nothing of autograd work on such tensors; `paper_gpu.cpp` answers what it asks. Being
loaded before torch, and for good, it needs a process of its own: ``python paper_gpu.py LIBRARY CASES ANSWERS``.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import sys
import traceback
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
NAME = "NVIDIA H100 80GB HBM3"


class Stream:
    """A stream on which nothing runs; waiting for it on the host is refused."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)

    def wait_stream(self, other: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def synchronize(self) -> None:
        raise AssertionError("the host waits for a stream")


class Event:
    """A point on such a stream."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None:
        raise AssertionError("the host waits for an event")


@contextmanager
def stream(_: Stream) -> Iterator[None]:
    yield


def furnish(number: int) -> None:
    """Make `torch.cuda` report eight GPUs per host, of which this process uses the one with this number."""
    current = Stream()
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "stream": stream,
        "current_stream": lambda *_: current,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 8,
        "set_device": lambda _: None,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: NAME,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: SimpleNamespace(uuid=f"gpu-{number}", total_memory=80 * 2**30),
        "get_rng_state": lambda *_: None,
        "set_rng_state": lambda *_: None,
        "max_memory_reserved": lambda *_: 0,
    }.items():
        setattr(torch.cuda, name, value)
    torch.cuda.nccl.version = lambda: (2, 27, 5)
    torch.Tensor.record_stream = lambda *_: None


class Notebook:
    """Where the host waited for the device, and where tensors crossed between them."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        """Pairs of a token and an expert in a micro-batch of this rank."""
        self.waits: Counter[str] = Counter()
        self.crossings: Counter[str] = Counter()
        self.masks = 0
        """Calls of attention with a mask."""
        self.widened = 0
        """Size of the largest fp32 tensor created in `tensor_parallel.py`, which has the loss."""

    @staticmethod
    def here() -> str:
        """Return the name of the trainer's running function."""
        frame = sys._getframe(1)
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if ROOT / "trainer" in file.parents:
                return f"{file.stem}.{frame.f_code.co_name}"
            frame = frame.f_back
        return "torch"

    def attend(self, op: str, arguments: tuple[Any, ...]) -> None:
        """Count a call of attention if it has a mask."""
        if "scaled_dot_product" in op and "backward" not in op:
            self.masks += len(arguments) > 3 and isinstance(arguments[3], torch.Tensor)

    def create(self, out: Any) -> None:
        """Measure a new fp32 tensor of the loss or of the split layers."""
        if isinstance(out, torch.Tensor) and out.dtype is torch.float32 and "tensor_parallel." in self.here():
            self.widened = max(self.widened, out.numel())

    def wait(self, _: Event) -> None:
        """Note that the host waits for an event."""
        self.waits[self.here()] += 1

    def read(self, tensor: torch.Tensor) -> Any:
        """Return values that a host waiting for them might see."""
        self.waits[self.here()] += 1
        if tensor.dim() < 3:
            return [1.0] * tensor.numel() if tensor.dim() else 1.0
        _, size, local = tensor.shape
        sent = _split(self.rows, size * local)
        received = [part for _ in range(size) for part in _split(self.rows // size, local)] if size > 1 else sent
        return [[runs[start : start + local] for start in range(0, size * local, local)] for runs in (sent, received)]


def _split(total: int, parts: int) -> list[int]:
    """Divide a number unevenly but deterministically; parts may be zero."""
    draw = random.Random(f"{total} {parts}")  # noqa: S311 - no secret
    cuts = [0, *sorted(draw.randrange(total + 1) for _ in range(parts - 1)), total]
    return [end - start for start, end in pairwise(cuts)]


def run(options: list[str], rank: int, world: int, gpus: int) -> dict[str, Any]:
    """Run the trainer's `main` as one rank of many, and print what it did."""
    furnish(rank % gpus)
    config = resolve(parse(options), world)
    layout, shape = config.layout, config.shape
    notes = Notebook(config.micro_batch * shape.sequence // (layout.cp * layout.tp) * shape.top_k)
    peers = dist.HashStore()
    for other in range(world):
        peers.set(f"gpu/{other}", f"{socket.gethostname()} gpu-{other % gpus}")
    FakeTensorMode.avoid_device_init = True  # otherwise a tensor of given numbers needs a real device
    FakeTensor.tolist = FakeTensor.item = lambda tensor: notes.read(tensor)  # noqa: PLW0108 - a method, not bound again
    Event.synchronize = lambda event: notes.wait(event)  # noqa: PLW0108 - a method, not bound again
    backends: list[str] = []

    def join(backend: str, **how: Any) -> None:
        backends.append(backend)
        start("fake", **how)

    class Crossing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._to_copy.default:
                # Tensors of the input thread have values; on the simulated GPU they have none.
                args = (args[0] if isinstance(args[0], FakeTensor) else paper.from_tensor(args[0]),)
            if func is torch.ops.aten._scaled_dot_product_flash_attention_backward.default:
                *_, lse = args[:6]
                assert lse.is_contiguous(), "the kernel would read the log-sum-exp of other queries"
            notes.attend(str(func), args)
            out = func(*args, **(kwargs or {}))
            notes.create(out)
            if func in {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}:
                source = args[1] if func is torch.ops.aten.copy_.default else args[0]
                if source.device != out.device:
                    notes.crossings[f"{notes.here()} {source.device.type} to {out.device.type}"] += 1
            return out

    profiled: list[str] = []

    def profile(activities: list[Any], **how: Any) -> Any:
        profiled.extend(activity.name for activity in activities)
        return watch(activities=[torch.profiler.ProfilerActivity.CPU], **how)

    start, answers, watch = dist.init_process_group, dist.get_backend, torch.profiler.profile
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world)}
    sys.argv[1:] = [*options, "--metrics", "json"]
    dist.rendezvous = lambda *_, **__: iter([(peers, rank, world)])
    dist.init_process_group, dist.get_backend, torch.profiler.profile = join, lambda *_: backends[-1], profile
    try:
        with FakeTensorMode() as paper, Crossing():
            status = main()
    finally:
        dist.init_process_group, dist.get_backend, torch.profiler.profile = start, answers, watch
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the trainer's setting for it lasts one run
        if dist.is_initialized():
            dist.destroy_process_group()
    counted = {"waits": notes.waits, "crossings": notes.crossings, "masks": notes.masks, "widened": notes.widened}
    counted["queues"] = os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return {"status": status, "backend": backends, "recorded": profiled, **counted}


def refusals() -> dict[str, str]:
    """Report how mistakes are refused that a CPU accepts; without that, the tests here would be meaningless."""
    eights, halves = torch.float8_e4m3fn, torch.bfloat16

    def eight_bits(right: torch.Tensor) -> None:
        scale, by = torch.ones((), device="cuda"), F.ScalingType.TensorWise
        F.scaled_mm(torch.empty(16, 32, device="cuda").to(eights), right, scale, by, scale, by, output_dtype=halves)

    mistakes = {
        "devices": lambda: torch.ones(2, device="cuda") + torch.arange(2),
        "value": lambda: bool(torch.ones(2, device="cuda").any()),
        "rows": lambda: torch.ones(4, device="cuda").nonzero(),
        "layout": lambda: eight_bits(torch.empty(32, 16, device="cuda").to(eights)),
        "size": lambda: eight_bits(torch.empty(24, 32, device="cuda").to(eights).t()),
        "groups": lambda: F.grouped_mm(
            torch.empty(4, 12, device="cuda", dtype=halves),
            torch.empty(2, 12, 16, device="cuda", dtype=halves),
            offs=torch.empty(2, device="cuda", dtype=torch.int32),
        ),
    }
    messages = {}
    for name, mistake in mistakes.items():
        with FakeTensorMode():
            try:
                mistake()
            except Exception as error:  # noqa: BLE001 - whatever torch raises is the answer
                messages[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return messages


def be_alone() -> None:
    """Skip what torch does with values or peers before the first step."""

    def on_the_host(*arguments: Any, **options: Any) -> DeviceMesh:
        with _disable_current_modes():
            return from_group(*arguments, **options)

    from_group = DeviceMesh.from_group
    DeviceMesh.from_group = staticmethod(on_the_host)
    dist.distributed_c10d._store_based_barrier = lambda *_, **__: None


if __name__ == "__main__":
    library, cases_file, answers = sys.argv[1:]
    ctypes.CDLL(library)
    sys.path.insert(0, str(ROOT))

    import torch
    import torch.distributed as dist
    import torch.nn.functional as F  # noqa: N812 - its usual name
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

    os.environ["LOCAL_WORLD_SIZE"] = "8"
    furnish(0)
    from trainer.configuration.command_line import parse
    from trainer.rules import resolve
    from trainer.run import main

    be_alone()
    results: dict[str, Any] = {"refusals": refusals()}
    for case in json.loads(Path(cases_file).read_text()):
        rank, world, options = case.split(" ", 2)
        processes, _, gpus = world.partition("/")
        try:
            results[case] = run(options.split(), int(rank), int(processes), int(gpus or processes))
        except Exception as error:  # noqa: BLE001 - the answer of this case
            frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
            ours = [frame for frame in frames if "/trainer/" in frame]
            results[case] = {"error": "".join(ours[-6:] + frames[-3:]) + f"{type(error).__name__}: {error}"[:600]}
        Path(answers).write_text(json.dumps(results, indent=1))
