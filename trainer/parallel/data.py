"""Data parallelism, ZeRO-0 and ZeRO-1: one gradient from all ranks, reduced in buckets during backward.

ZeRO-0 and ZeRO-1 are written here: gradients are gathered into flat buckets, and a bucket's all-reduce (ZeRO-0) or
reduce-scatter (ZeRO-1) starts from a backward hook as soon as its last gradient is there, while backward runs on;
buckets start in one order on all ranks, whatever order gradients come in.
Under ZeRO-1 each rank then updates its part of the flat weights and the parts are gathered again. ZeRO-2 and ZeRO-3
are PyTorch's FSDP2 (`sharding.py`). Both give the optimizer plain local tensors (`slices.py`).

Loss is normalised by the tokens of all ranks, so gradients are summed, never averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn

from trainer.foundation.torch_private import all_gather_single, reduce_scatter_single
from trainer.parallel.collectives import all_reduce, all_reduce_together
from trainer.parallel.mesh import Mesh
from trainer.parallel.placement import Box, boxes_of_run
from trainer.parallel.slices import Slice, room_on_host
from trainer.parallel.weights import create, fill, note_of
from usp_prof.record import mark


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
        """Bring updated weights to the ranks that did not update them, and drop gradients."""


class Bucket:
    """Some weights of one kind in one flat buffer, with a flat gradient beside it; it creates them there."""

    def __init__(
        self,
        chunk: nn.Module,
        names: list[str],
        mesh: Mesh,
        device: torch.device,
        *,
        sharded: bool,
        on_host: bool = False,
    ) -> None:
        """`names` are those of the weights in the chunk, still on paper; `on_host` says where the masters live."""
        papers = [chunk.get_parameter(name) for name in names]
        self.notes = {name: note_of(paper) for name, paper in zip(names, papers, strict=True)}
        kind, dtype = self.notes[names[0]].kind, papers[0].dtype
        shard, everybody = ("efsdp", "edata") if kind == "expert" else ("fsdp", "data")
        self.group = group = mesh[shard if sharded else everybody]
        self.sharded = sharded and group.size > 1
        self.replicas = mesh["dp_replicate"] if sharded else None
        """Who else holds this shard."""
        self.is_partial = kind == "partial"
        self.tied = kind == "tied"
        alike = group.size if not self.sharded else 1
        alike *= self.replicas.size if self.replicas is not None else 1
        alike *= mesh["tp"].size if kind in {"partial", "copied"} else 1
        copies = alike * (2 if self.tied else 1)
        length = sum(paper.numel() for paper in papers)
        length += -length % group.size
        self.flat = torch.zeros(length, dtype=dtype, device=device)
        self.places: dict[nn.Parameter, slice] = {}
        self.names: dict[nn.Parameter, str] = {}
        start = 0
        for name, paper in zip(names, papers, strict=True):
            place = slice(start, start + paper.numel())
            parameter = create(chunk, name, self.flat[place].view(paper.shape))
            self.places[parameter], self.names[parameter] = place, name
            start = place.stop
        fill(self.flat, self._boxes(range(length)), self.notes)
        accurate = torch.promote_types(dtype, torch.float32)
        part = length // group.size
        self.run = range(part * group.rank, part * (group.rank + 1)) if self.sharded else range(length)
        """What this rank updates of the flat buffer: all of it, or its part."""
        self.local = self.flat[self.run.start : self.run.stop]
        boxes, master = self._boxes(self.run), self.local
        if on_host:
            master = room_on_host(self.local, accurate)
        elif dtype != accurate:
            master = torch.empty_like(self.local, dtype=accurate)
        if master is not self.local:
            fill(master, boxes, self.notes)
        stored = all(note.stored for note in self.notes.values())
        self.part = Slice(master, self.local, copies, boxes, self.tied, stored)
        self.grad = torch.zeros(length, dtype=accurate, device=device)
        self.reduced = torch.empty_like(self.local, dtype=accurate) if self.sharded else self.grad
        self.missing: set[nn.Parameter] = set()
        self.work: dist.Work | None = None
        self.launched = False

    def _boxes(self, run: range) -> list[Box]:
        """Give the boxes of weights in a run of the flat buffer."""
        boxes = []
        for parameter, place in self.places.items():
            start, stop = max(place.start, run.start), min(place.stop, run.stop)
            inside = range(start - place.start, stop - place.start)
            name, part = self.names[parameter], tuple(parameter.shape)
            boxes += boxes_of_run(name, self.notes[name].placement, part, inside, start - run.start)
        return boxes

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
        """Wait for the sum; add what replicas have."""
        if self.work is not None:
            self.work.wait()
        if self.replicas is not None:
            all_reduce(self.reduced, self.replicas)
        self.part.gradient = self.reduced
        self.work, self.launched = None, False

    def publish(self) -> dist.Work | None:
        """Drop gradients, and start gathering the parts that other ranks have updated."""
        self.grad.zero_()
        self.part.gradient = None
        if not self.sharded:
            return None
        self.group.leave()
        with mark("dp", "zero1_all_gather"):
            return all_gather_single(self.flat, self.local.clone(), group=self.group.handle, async_op=True)


class Buckets:
    """ZeRO-0 and ZeRO-1 over the model chunks of this rank."""

    def __init__(
        self,
        chunks: dict[int, nn.Module],
        mesh: Mesh,
        device: torch.device,
        limit: int,
        *,
        sharded: bool,
        overlap: bool = True,
        on_host: bool = False,
    ) -> None:
        self.overlap, self.tp = overlap, mesh["tp"]
        self.armed: set[int] = set()
        self.buckets: dict[int, list[Bucket]] = {}
        for chunk, module in chunks.items():
            last_first = dict(reversed(list(module.named_parameters())))
            self.buckets[chunk] = [
                Bucket(module, names, mesh, device, sharded=sharded, on_host=on_host)
                for names in _fill(last_first, limit)
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
        """Give what this rank updates of each bucket."""
        return [bucket.part for bucket in self]

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
        # Weights that see a slice of the sequence (norms) on each tensor-parallel rank: one message for all of them.
        all_reduce_together([bucket.reduced for bucket in self if bucket.is_partial], self.tp)

    def publish(self) -> None:
        """Gather updated weights."""
        for work in [bucket.publish() for bucket in self]:
            if work is not None:
                work.wait()


def _fill(parameters: dict[str, nn.Parameter], limit: int) -> list[list[str]]:
    """Fill buckets in the order in which gradients come, one open bucket for each kind, up to `limit` bytes."""
    full: list[list[str]] = []
    filling: dict[str, list[str]] = {}
    for name, parameter in parameters.items():
        kind = note_of(parameter).kind
        bucket = filling.setdefault(kind, [])
        if bucket and sum(parameters[held].nbytes for held in bucket) + parameter.nbytes > limit:
            full.append(bucket)
            bucket = filling[kind] = []
        bucket.append(name)
    return full + list(filling.values())
