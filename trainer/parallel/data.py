"""Data parallelism, ZeRO-0 and ZeRO-1: one gradient from all ranks, reduced in buckets during backward.

ZeRO-0 and ZeRO-1 are written here: gradients are gathered into flat buckets, and a bucket's all-reduce (ZeRO-0) or
reduce-scatter (ZeRO-1) starts from a backward hook as soon as its last gradient is there, while backward runs on;
buckets start in one order on all ranks, whatever order gradients come in.
Under ZeRO-1 each rank then updates its part of the flat weights and the parts are gathered again. ZeRO-2 and ZeRO-3
are PyTorch's FSDP2 (`sharding.py`). Both give the optimizer plain local tensors: `Slice`.

Loss is normalised by the tokens of all ranks, so gradients are summed, never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import prod
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn

from trainer.parallel.collectives import all_reduce
from trainer.parallel.mesh import Mesh
from trainer.parallel.placement import Box, boxes_of_run, is_tied, placement_of, stored_here
from trainer.torch_private import all_gather_single, reduce_scatter_single
from usp_prof.record import mark


@dataclass(slots=True)
class Slice:
    """What the optimizer sees: a leaf tensor whose `grad` is set when the gradients are complete."""

    tensor: torch.Tensor
    copies: int
    """How many ranks of the world hold this very slice; a norm over all ranks must count it once."""
    boxes: list[Box]
    """Which weights lie in it, for checkpoints."""
    tied: bool = False
    """Whether it is a tied embedding that two pipeline stages hold a copy of; their gradients are to be added."""
    written: bool = True
    """Whether a checkpoint stores it from here; not so for the second copy of a tied embedding."""


class DataParallel(Protocol):
    """What the training step asks of data parallelism."""

    def slices(self) -> list[Slice]:
        """Give the tensors to optimize on this rank."""

    def begin(self, chunk: int, *, last: bool) -> None:
        """Tell that a backward pass of a model chunk begins; the `last` one of a step may start communication."""

    def take(self, chunk: int, *, last: bool) -> None:
        """Take up the weight gradients of a split backward, which no hook has seen; after the `last`, sum them."""

    def finish(self) -> None:
        """Complete all communication: every slice has its gradient."""

    def publish(self) -> None:
        """Make the optimizer's update visible to the model, and drop gradients."""


def kind(parameter: nn.Parameter) -> str:
    """Say over whom a parameter's gradient must be summed: `expert`, `partial` (over tp too), `dense` or `tied`.

    `copied` is as `dense`, with the same weight on each tensor-parallel rank: a norm of all gradients counts it once.
    A tied embedding has a bucket of its own, so that both of its stages cut it alike; `update` adds the two gradients.
    """
    if getattr(parameter, "expert", False):
        return "expert"
    if is_tied(parameter):
        return "tied"
    over_tp: str = getattr(parameter, "over_tp", "dense")
    return over_tp


class Bucket:
    """Some parameters of one kind laid out in one flat buffer, with a flat gradient beside it."""

    def __init__(self, parameters: dict[nn.Parameter, str], mesh: Mesh, *, sharded: bool) -> None:
        """`parameters` come with their names."""
        self.names, first = parameters, next(iter(parameters))
        shard, everybody = ("efsdp", "edata") if kind(first) == "expert" else ("fsdp", "data")
        self.group = group = mesh[shard if sharded else everybody]
        self.sharded = sharded and group.size > 1
        # What is summed beside the bucket's own group: replicas of the shards, and slices of the sequence.
        others = {"dp_replicate": sharded, "tp": kind(first) == "partial"}
        self.others = [mesh[name] for name, summed in others.items() if summed]
        self.tied = kind(first) == "tied"
        in_stage = prod([1 if self.sharded else group.size, *(other.size for other in self.others)])
        copied = mesh["tp"].size if kind(first) == "copied" else 1
        self.copies = in_stage * copied * (2 if self.tied else 1)
        accurate = torch.promote_types(first.dtype, torch.float32)
        length = sum(parameter.numel() for parameter in parameters)
        length += -length % group.size
        self.flat = torch.zeros(length, dtype=first.dtype, device=first.device)
        self.grad = torch.zeros(length, dtype=accurate, device=first.device)
        self.places: dict[nn.Parameter, slice] = {}
        start = 0
        for parameter in parameters:
            place = self.places[parameter] = slice(start, start + parameter.numel())
            self.flat[place] = parameter.data.flatten()
            parameter.data = self.flat[place].view_as(parameter)
            start = place.stop
        self.local = self.flat.chunk(group.size)[group.rank] if self.sharded else self.flat
        self.master = self.local if first.dtype == accurate else self.local.to(accurate)
        self.reduced = torch.empty_like(self.master) if self.sharded else self.grad
        self.missing: set[nn.Parameter] = set()
        self.work: dist.Work | None = None
        self.launched = False

    def slice(self) -> Slice:
        """Give what this rank updates: all of the bucket, or its part."""
        first = self.local.numel() * self.group.rank if self.sharded else 0
        boxes = []
        for parameter, place in self.places.items():
            start, stop = max(place.start, first), min(place.stop, first + self.local.numel())
            run = range(start - place.start, stop - place.start)
            placement = placement_of(parameter)
            boxes += boxes_of_run(self.names[parameter], placement, tuple(parameter.shape), run, start - first)
        written = all(stored_here(parameter) for parameter in self.places)
        return Slice(self.master, self.copies, boxes, self.tied, written)

    def take(self, parameter: nn.Parameter) -> None:
        """Move a parameter's fresh gradient into the flat one."""
        self.missing.discard(parameter)
        if parameter.grad is not None:
            self.grad[self.places[parameter]] += parameter.grad.flatten()
            parameter.grad = None

    def launch(self) -> None:
        """Start summing over the group."""
        self.launched = True
        if self.group.size == 1:
            return
        self.group.leave()
        what = "zero1_reduce_scatter" if self.sharded else "bucket_all_reduce"
        with mark("dp", what, bytes=self.grad.numel() * self.grad.element_size()):
            if self.sharded:
                self.work = reduce_scatter_single(self.reduced, self.grad, group=self.group.handle, async_op=True)
            else:
                self.work = dist.all_reduce(self.grad, group=self.group.handle, async_op=True)

    def finish(self) -> None:
        """Wait for the sum; add what replicas and tensor-parallel ranks have."""
        if self.work is not None:
            self.work.wait()
        for group in self.others:
            all_reduce(self.reduced, group)
        self.master.grad = self.reduced
        self.work, self.launched = None, False

    def publish(self) -> dist.Work | None:
        """Bring the updated weights to the model: from the master copy, and from the other ranks' parts."""
        self.grad.zero_()
        self.master.grad = None
        if self.master is not self.local:
            self.local.copy_(self.master)
        if not self.sharded:
            return None
        self.group.leave()
        with mark("dp", "zero1_all_gather"):
            return all_gather_single(self.flat, self.local.clone(), group=self.group.handle, async_op=True)


class Buckets:
    """ZeRO-0 and ZeRO-1 over the model chunks of this rank."""

    def __init__(
        self, chunks: dict[int, nn.Module], mesh: Mesh, limit: int, *, sharded: bool, overlap: bool = True
    ) -> None:
        self.overlap = overlap
        self.armed: set[int] = set()
        self.buckets: dict[int, list[Bucket]] = {}
        for chunk, module in chunks.items():
            names = {parameter: name for name, parameter in module.named_parameters()}
            runs = _fill(reversed(list(names)), limit)
            self.buckets[chunk] = [
                Bucket({parameter: names[parameter] for parameter in run}, mesh, sharded=sharded) for run in runs
            ]
            for bucket in self.buckets[chunk]:
                for parameter in bucket.places:
                    parameter.register_post_accumulate_grad_hook(partial(self._arrived, chunk, bucket))

    def __iter__(self) -> Iterator[Bucket]:
        return (bucket for buckets in self.buckets.values() for bucket in buckets)

    def _arrived(self, chunk: int, bucket: Bucket, parameter: nn.Parameter) -> None:
        bucket.take(parameter)
        if chunk in self.armed:
            for full in takewhile(lambda bucket: not bucket.missing, self.buckets[chunk]):
                if not full.launched:
                    full.launch()

    def slices(self) -> list[Slice]:
        """Give the master weights of this rank."""
        return [bucket.slice() for bucket in self]

    def begin(self, chunk: int, *, last: bool) -> None:
        """Let the hooks of this chunk start communication when this is its last backward of the step."""
        if last and self.overlap:
            self.armed.add(chunk)
            for bucket in self.buckets[chunk]:
                bucket.missing = set(bucket.places)

    def take(self, chunk: int, *, last: bool) -> None:
        """Take up the gradients that a W left on the parameters; after the last, start all buckets of the chunk."""
        for bucket in self.buckets[chunk]:
            for parameter in bucket.places:
                bucket.take(parameter)
            if last and self.overlap:
                bucket.launch()

    def finish(self) -> None:
        """Complete every bucket's sum."""
        self.armed.clear()
        for bucket in self:
            if not bucket.launched:
                bucket.launch()
        for bucket in self:
            bucket.finish()

    def publish(self) -> None:
        """Gather updated weights."""
        for work in [bucket.publish() for bucket in self]:
            if work is not None:
                work.wait()


def _fill(parameters: Iterable[nn.Parameter], limit: int) -> list[list[nn.Parameter]]:
    """Fill buckets in the order in which gradients come, one open bucket for each kind, up to `limit` bytes."""
    full: list[list[nn.Parameter]] = []
    filling: dict[str, list[nn.Parameter]] = {}
    for parameter in parameters:
        bucket = filling.setdefault(kind(parameter), [])
        if bucket and sum(held.nbytes for held in bucket) + parameter.nbytes > limit:
            full.append(bucket)
            bucket = filling[kind(parameter)] = []
        bucket.append(parameter)
    return full + list(filling.values())
