"""Data parallelism, ZeRO-0 and ZeRO-1: one gradient from all ranks, reduced in buckets during backward.

Gradients are gathered into flat buckets (`bucket.py`), and a bucket's all-reduce (ZeRO-0) or
reduce-scatter (ZeRO-1) starts from a backward hook as soon as its last gradient is there, while backward runs on;
buckets start in one order on all ranks, whatever order gradients come in.
Under ZeRO-1 each rank then updates its part of the flat weights and the parts are gathered again. Under ZeRO-2 and -3
the weights and gradients of each layer come and go (`sharding.py`, on top of this file). All of them give the optimizer
plain local tensors (`placement.py`).

Loss is normalised by the tokens of all ranks, so gradients are summed, never averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Protocol

import torch
from torch import nn

from trainer.parallel.bucket import Bucket
from trainer.parallel.collectives import all_reduce_together
from trainer.parallel.mesh import Mesh
from trainer.parallel.placement import Slice
from trainer.parallel.weights import note_of


class DataParallel(Protocol):
    """What the training step asks of data parallelism."""

    def slices(self) -> list[Slice]:
        """Return the tensors to optimize on this rank."""

    def begin(self, chunk: int, *, last: bool) -> None:
        """Report that a backward pass of a model chunk begins; the `last` one of a step may start communication."""

    def take(self, chunk: int, *, last: bool) -> None:
        """Take up the weight gradients of a split backward, which no hook has seen; after the `last`, sum them."""

    def finish(self) -> None:
        """Complete all communication: every slice has its gradient."""

    def publish(self) -> None:
        """Bring updated weights to the ranks that did not update them, and drop gradients."""


class Buckets:
    """The buckets of this rank's model chunks; `Sharded` adds what ZeRO-2 and -3 do besides."""

    def __init__(self, buckets: Mapping[int, Sequence[Bucket]], mesh: Mesh, *, overlap: bool = True) -> None:
        """`buckets` are by model chunk, in the order in which they start; without `overlap`, after backward."""
        self.buckets, self.tp, self.overlap = buckets, mesh["tp"], overlap
        self.armed: set[int] = set()
        self.summing: Bucket | None = None
        """The bucket whose sum was started last."""
        for chunk, of_chunk in buckets.items():
            for bucket in of_chunk:
                for parameter in bucket.places:
                    parameter.register_post_accumulate_grad_hook(partial(self._arrived, chunk, bucket))

    def launch(self, bucket: Bucket) -> None:
        """Start a bucket's sum; with replicas, the bucket before starts its second sum, over these."""
        if self.summing is not None and self.summing.replicas is not None:
            self.summing.sum_up()
        bucket.launch()
        self.summing = bucket

    def __iter__(self) -> Iterator[Bucket]:
        return (bucket for buckets in self.buckets.values() for bucket in buckets)

    def _arrived(self, chunk: int, bucket: Bucket, parameter: nn.Parameter) -> None:
        """Take up a gradient. Buckets start in their order: those that are full, up to the first that is not."""
        bucket.take(parameter)
        if chunk not in self.armed:
            return
        for full in takewhile(lambda bucket: not bucket.missing, self.buckets[chunk]):
            if not full.launched:
                self.launch(full)

    def slices(self) -> list[Slice]:
        """Return this rank's part of each bucket."""
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
                self.launch(bucket)

    def finish(self) -> None:
        """Complete every bucket's sum."""
        self.armed.clear()
        for bucket in self:
            if not bucket.launched:
                self.launch(bucket)
        for bucket in self:
            bucket.sum_up()
        for bucket in self:
            bucket.finish()
        self.summing = None
        # Weights that see a slice of the sequence (norms) on each tensor-parallel rank: one message for all of them.
        partial_sums = [bucket.part.gradient for bucket in self if bucket.is_partial]
        all_reduce_together([sums for sums in partial_sums if sums is not None], self.tp)

    def publish(self) -> None:
        """Gather updated weights."""
        for work in [bucket.publish() for bucket in self]:
            if work is not None:
                work.wait()


def make_buckets(
    chunk: nn.Module, mesh: Mesh, device: torch.device, limit: int, *, sharded: bool, on_host: bool = False
) -> list[Bucket]:
    """Make the buckets of a model chunk, in the order in which gradients usually come."""
    last_first = dict(reversed(list(chunk.named_parameters())))
    return [Bucket(chunk, names, mesh, device, sharded=sharded, on_host=on_host) for names in _fill(last_first, limit)]


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
