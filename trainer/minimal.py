"""Minimal trainer: data, tensor and pipeline parallelism (1F1B) of a decoder in one file, recorded.

    torchrun --nproc-per-node 8 trainer/minimal.py --dp 2 --tp 2 --pp 2 --record traces/minimal
    usp-prof analyze traces/minimal

Ranks are ordered pp x dp x tp. Tensor parallelism is innermost, because it communicates most. Each technique is the
textbook version. `trainer/parallel/` has versions that overlap communication, and all other techniques.

    data parallelism       each replica trains on its share of the batch; gradients are summed once per step
    tensor parallelism     the matrices of a layer are split over ranks (Megatron-LM, arXiv:1909.08053)
    pipeline parallelism   layers are split into stages; micro-batches run in 1F1B order (PipeDream-Flush)
"""

# ruff: noqa: ANN401, D102, E402 - torch's autograd contexts are untyped; the path is set before our own imports
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])  # torchrun puts the script's own folder there

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from usp_prof import record


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of a step, with the recorder's names; `batch` is the number of sequences of all ranks."""

    name: str = "minimal"
    layers: int = 4
    hidden: int = 64
    heads: int = 4
    ffn_hidden: int = 256
    vocab: int = 256
    sequence: int = 64
    batch: int = 8
    micro_batches: int = 4
    gated_ffn: bool = False


@dataclass(frozen=True)
class Group:
    """One parallel axis: the process group, its size, and this rank's index in it."""

    handle: dist.ProcessGroup
    size: int
    rank: int


# Tensor parallelism: one all-reduce per block in forward (at its end) and one in backward (at its start).


class CopyToTensorParallel(torch.autograd.Function):
    """Megatron's f: return the input; add up its gradients over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad.clone(memory_format=torch.contiguous_format), ctx.group), None


class ReduceFromTensorParallel(torch.autograd.Function):
    """Megatron's g: add up the outputs over the ranks; return the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:  # noqa: ARG004 - backward needs nothing
        return all_reduce(x.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad, None


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """Add up a tensor over a group, in place."""
    if group.size > 1:
        dist.all_reduce(x, group=group.handle)
    return x


class ColumnParallelLinear(nn.Module):
    """A linear layer with outputs split over ranks: each has some rows of the weight, which torch stores transposed."""

    def __init__(self, name: str, inputs: int, outputs: int, tp: Group) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(name, outputs, inputs).chunk(tp.size, 0)[tp.rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RowParallelLinear(nn.Module):
    """A linear layer with inputs split over ranks; the partial results are added up."""

    def __init__(self, name: str, inputs: int, outputs: int, tp: Group) -> None:
        super().__init__()
        self.tp = tp
        self.weight = nn.Parameter(draw(name, outputs, inputs).chunk(tp.size, 1)[tp.rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        return ReduceFromTensorParallel.apply(F.linear(x, self.weight), self.tp)


class Block(nn.Module):
    """One decoder layer: causal attention and a feed-forward network, both split over tp."""

    def __init__(self, config: Config, index: int, tp: Group) -> None:
        super().__init__()
        hidden, name = config.hidden, f"layer {index}"
        self.tp, self.head_width = tp, hidden // config.heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q, self.k, self.v = (ColumnParallelLinear(f"{name} {part}", hidden, hidden, tp) for part in "qkv")
        self.out = RowParallelLinear(f"{name} out", hidden, hidden, tp)
        self.up = ColumnParallelLinear(f"{name} up", hidden, config.ffn_hidden, tp)
        self.down = RowParallelLinear(f"{name} down", config.ffn_hidden, hidden, tp)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer on ``[batch, sequence, hidden]``, which is the same on all tensor-parallel ranks."""
        y = CopyToTensorParallel.apply(self.attention_norm(x), self.tp)
        q, k, v = (part(y).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        y = CopyToTensorParallel.apply(self.ffn_norm(x), self.tp)
        return x + self.down(F.gelu(self.up(y)))


class Stage(nn.Module):
    """The layers of one pipeline rank; the first stage has the embedding, the last one the head."""

    def __init__(self, config: Config, pp: Group, tp: Group) -> None:
        super().__init__()
        self.is_first, self.is_last = pp.rank == 0, pp.rank == pp.size - 1
        first = pp.rank * config.layers // pp.size
        self.blocks = nn.Sequential(*(Block(config, first + index, tp) for index in range(config.layers // pp.size)))
        if self.is_first:
            self.embedding = nn.Parameter(draw("embedding", config.vocab, config.hidden))
        if self.is_last:
            self.norm = nn.RMSNorm(config.hidden)
            self.head = nn.Parameter(draw("head", config.vocab, config.hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states, or the logits on the last stage."""
        x = self.blocks(F.embedding(x, self.embedding) if self.is_first else x)
        return F.linear(self.norm(x), self.head) if self.is_last else x


def draw(name: str, rows: int, columns: int) -> Tensor:
    """Draw a whole weight from its name, so that every layout starts from the same model."""
    generator = torch.Generator().manual_seed(sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**40)
    return torch.randn(rows, columns, generator=generator) * 0.02


class Pipeline:
    """Runs the micro-batches of a step through the stages in 1F1B order.

    A rank first runs one forward per stage after it. Then it alternates one forward and one backward, so it stores the
    activations of few micro-batches. If a rank sends to a neighbor and then receives from it, it posts both messages
    together; if it did not, NCCL would deadlock.
    """

    def __init__(self, config: Config, stage: Stage, pp: Group, message: Tensor) -> None:
        """Send tensors of the shape and type of `message` between stages."""
        self.stage, self.pp, self.message = stage, pp, message
        self.micro_batches, self.tokens = config.micro_batches, config.batch * config.sequence
        ranks = dist.get_process_group_ranks(pp.handle)
        self.previous = None if stage.is_first else ranks[pp.rank - 1]
        self.next = None if stage.is_last else ranks[pp.rank + 1]

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Run forward and backward of a step; return this rank's part of the loss, zero before the last stage."""
        self.inputs, self.targets = tokens.chunk(self.micro_batches), targets.chunk(self.micro_batches)
        self.pending: dict[int, tuple[Tensor, Tensor]] = {}  # inputs and outputs of micro-batches without backward
        self.loss = torch.zeros((), dtype=self.message.dtype)
        ahead = min(self.pp.size - self.pp.rank - 1, self.micro_batches)
        for number in range(ahead):  # warmup
            self.exchange(self.forward(number, self.exchange(source=self.previous)), to=self.next)
        steady = self.micro_batches - ahead
        x = self.exchange(source=self.previous) if steady else None
        for number in range(steady):  # one forward, one backward
            y = self.forward(ahead + number, x)
            grad = self.backward(number, self.exchange(y, to=self.next, source=self.next))
            x = self.exchange(grad, to=self.previous, source=self.previous if number + 1 < steady else None)
        for number in range(steady, self.micro_batches):  # cooldown
            self.exchange(self.backward(number, self.exchange(source=self.next)), to=self.previous)
        return self.loss

    def forward(self, number: int, x: Tensor | None) -> Tensor:
        """Run the stage for one micro-batch; the last stage computes its loss here."""
        x = self.inputs[number] if x is None else x.requires_grad_()
        with record.pipeline_action("F", stage=self.pp.rank, micro_batch=number):
            y = self.stage(x)
            if self.stage.is_last:
                # Divided by the tokens of all ranks, so gradients are summed and not averaged.
                y = F.cross_entropy(y.flatten(0, 1), self.targets[number].flatten(), reduction="sum") / self.tokens
                self.loss += y.detach()
        self.pending[number] = x, y
        return y.detach()

    def backward(self, number: int, grad: Tensor | None) -> Tensor | None:
        """Run backward for one micro-batch; return the gradient of the stage's input."""
        x, y = self.pending.pop(number)
        with record.pipeline_action("B", stage=self.pp.rank, micro_batch=number):
            y.backward(grad)
        return x.grad

    def exchange(self, tensor: Tensor | None = None, to: int | None = None, source: int | None = None) -> Tensor | None:
        """Send a tensor to a neighbor and return one from a neighbor; `None` means no message."""
        arriving = None if source is None else torch.empty_like(self.message)
        messages = []
        if tensor is not None and to is not None:
            messages.append(dist.P2POp(dist.isend, tensor.contiguous(), to, self.pp.handle))
        if arriving is not None:
            messages.append(dist.P2POp(dist.irecv, arriving, source, self.pp.handle))
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()
        return arriving


def sum_gradients(parameters: list[nn.Parameter], dp: Group) -> None:
    """Add up the gradients of all replicas, in one message."""
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    with record.mark("dp", "all_reduce_gradients"):
        all_reduce(flat, dp)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def batches(config: Config, steps: int, dp: Group) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this replica's tokens and targets; a batch depends only on the step, so all layouts train on the same."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        start = torch.randint(config.vocab, (config.batch, 1), generator=generator)
        text = (start + 5 * torch.arange(config.sequence + 1)) % config.vocab
        share = text.chunk(dp.size)[dp.rank]
        yield share[:, :-1].contiguous(), share[:, 1:].contiguous()


def main() -> None:
    """Train, print the loss of each step, and record."""
    parser = argparse.ArgumentParser(description="Train a small decoder with data, tensor and pipeline parallelism.")
    for axis in ("dp", "tp", "pp"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--record", metavar="FOLDER", help="write traces and run.json here")
    options = parser.parse_args()
    config, dtype = Config(), getattr(torch, options.dtype)
    if config.layers % options.pp or config.heads % options.tp or config.batch % (options.dp * config.micro_batches):
        parser.error("--pp must divide 4 layers, --tp 4 heads, and --dp times 4 micro-batches a batch of 8")
    torch.set_default_dtype(dtype)
    record.prepare()
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    axes = ("pp", "dp", "tp")
    mesh = init_device_mesh("cpu", tuple(getattr(options, axis) for axis in axes), mesh_dim_names=axes)
    pp, dp, tp = (Group(mesh.get_group(axis), mesh[axis].size(), mesh.get_local_rank(axis)) for axis in axes)
    stage = Stage(config, pp, tp)
    parameters = list(stage.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    micro_batch = config.batch // dp.size // config.micro_batches
    pipeline = Pipeline(config, stage, pp, torch.empty(micro_batch, config.sequence, config.hidden, dtype=dtype))
    about = {"schedule": "1f1b", "micro_batches": config.micro_batches, "tokens_per_step": pipeline.tokens}
    about |= {"model": asdict(config), "dtype": dtype, "stages": [pp.rank], "memory": False}
    session = record.session(options.record, mesh=mesh, **about) if options.record else None
    with session or nullcontext():
        for step, (tokens, targets) in enumerate(batches(config, options.steps, dp)):
            with session.step() if session else nullcontext():
                with record.phase("fwd_bwd"):
                    loss = pipeline.run(tokens, targets)
                sum_gradients(parameters, dp)
                with record.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
                with record.phase("log"):
                    dist.all_reduce(loss)  # the tensor-parallel ranks of the last stage all have the same loss
                    if dist.get_rank() == 0:
                        print(f"step {step}  loss {loss.item() / tp.size:.12f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
