"""A trainer in plain PyTorch, without usp_prof's recorder or marks; `plain_trainers.py` records it with torchrun.

Compute is a timed wait within an op, so that a few cores behave like a cluster. Rank 1 has the fault.

    torchrun --nproc-per-node 4 benchmarks/plain_trainer.py LAYOUT FAULT FOLDER
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH, LAYERS, BATCH, MICRO_BATCHES = 64, 4, 8, 4
FORWARD_MS = 8.0
"""Time of one layer's forward pass; the backward pass takes twice as long."""
SLOWER = 1.6
PAUSE_S, LATE_S = 0.12, 0.05
STEPS, SKIPPED = 10, 2


@torch.library.custom_op("plain::compute", mutates_args=())
def compute(x: Tensor, milliseconds: float) -> Tensor:
    """Wait instead of computing."""
    time.sleep(milliseconds / 1e3)
    return x.clone()


@compute.register_fake
def _(x: Tensor, milliseconds: float) -> Tensor:
    del milliseconds
    return torch.empty_like(x)


def _keep_time(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ANN401 - an autograd context
    del output
    ctx.milliseconds = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - an autograd context
    return compute(gradient, 2 * ctx.milliseconds), None


compute.register_autograd(_backward, setup_context=_keep_time)


class Layer(nn.Module):
    """Two small products with a timed wait between them."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.up, self.down, self.milliseconds = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), milliseconds

    def forward(self, x: Tensor) -> Tensor:
        """Compute."""
        return self.down(compute(torch.relu(self.up(x)), self.milliseconds))


class Experts(nn.Module):
    """A layer between two exchanges of tokens."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.layer = Layer(milliseconds)

    def forward(self, x: Tensor) -> Tensor:
        """Exchange, compute and exchange back."""
        sent = functional.all_to_all_single_autograd(x, None, None, dist.group.WORLD)
        return x + functional.all_to_all_single_autograd(self.layer(sent), None, None, dist.group.WORLD)


class Samples(Dataset[Tensor]):
    """Random samples; the first of each batch may come late."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s

    def __len__(self) -> int:
        return BATCH * STEPS * LAYERS

    def __getitem__(self, index: int) -> Tensor:
        """Return a sample."""
        if index % BATCH == 0:
            time.sleep(self.late_s)
        return torch.randn(WIDTH)


class Trainer:
    """One rank of a layout, with a fault if it is rank 1."""

    def __init__(self, layout: str, fault: str) -> None:
        has_fault = dist.get_rank() == 1
        milliseconds = FORWARD_MS * (SLOWER if has_fault and fault == "slow-rank" else 1)
        self.layout, self.pauses = layout, has_fault and fault == "host-pause"
        self.data: Iterator[Tensor] = iter(
            DataLoader(Samples(LATE_S if has_fault and fault == "late-input" else 0.0), batch_size=BATCH)
        )
        kind = Experts if layout == "experts" else Layer
        layers: nn.Module = nn.Sequential(*(kind(milliseconds) for _ in range(LAYERS)))
        self.model = MODELS.get(layout, lambda plain: plain)(layers)
        foreach = False if layout == "sharded-tensors" else None  # two kinds of tensors
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, foreach=foreach)

    def step(self, number: int) -> None:
        """Train one step; every other one may pause between forward and backward."""
        passes = 2 if self.layout == "accumulation" else 1
        for current in range(passes):
            is_last = current == passes - 1
            summing = (
                nullcontext()
                if is_last or not isinstance(self.model, DistributedDataParallel)
                else self.model.no_sync()
            )
            with summing:
                loss = self.model(next(self.data)).square().mean()
                if self.pauses and is_last and number % 2 == 0:
                    time.sleep(PAUSE_S)
                loss.backward()
        if self.layout == "loop":
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()


class PipelineTrainer(Trainer):
    """One rank of a pipeline of two stages, whose layers are sharded over two ranks each."""

    def __init__(self, layout: str, fault: str) -> None:
        super().__init__(layout, fault)
        self.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        self.stage = self.mesh["pp"].get_local_rank()
        layers = nn.Sequential(*list(self.model.children())[self.stage :: 2])
        for layer in layers.children():
            fully_shard(layer, mesh=self.mesh["dp"])
        self.optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        stage = PipelineStage(layers, self.stage, 2, torch.device("cpu"), group=self.mesh["pp"].get_group())
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda output, _: output.square().mean())

    def step(self, number: int) -> None:
        """Train one step; every other one may pause before its first micro-batch."""
        batch = next(self.data)
        if self.pauses and number % 2 == 0:
            time.sleep(PAUSE_S)
        if self.stage == 0:
            self.schedule.step(batch)
        else:
            self.schedule.step(target=batch)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _sharded(layers: nn.Module, axes: tuple[str, ...] = ("dp",)) -> nn.Module:
    mesh = init_device_mesh("cpu", (4,) if len(axes) == 1 else (2, 2), mesh_dim_names=axes)
    for layer in layers.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(layers, mesh=mesh)


def _sharded_tensors(layers: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for layer in layers.children():
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(layers, mesh=mesh["dp"])


MODELS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "replicas": lambda layers: DistributedDataParallel(layers, bucket_cap_mb=0.02),
    "accumulation": DistributedDataParallel,
    "sharded": _sharded,
    "hybrid": lambda layers: _sharded(layers, ("dp_replicate", "dp_shard")),
    "sharded-tensors": _sharded_tensors,
}
"""How each layout distributes the layers. The others have a loop of all-reduces, or all-to-alls within each layer."""


def main() -> None:
    """Train and record."""
    layout, fault, folder = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = (PipelineTrainer if layout == "pipeline" else Trainer)(layout, fault)
    path = Path(folder) / f"rank{dist.get_rank()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    window = schedule(wait=SKIPPED - 1, warmup=1, active=STEPS - SKIPPED)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=window,
        record_shapes=True,
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(path)),
    ) as recorder:
        for number in range(STEPS):
            trainer.step(number)
            recorder.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
