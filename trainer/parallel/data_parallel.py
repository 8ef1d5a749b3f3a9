"""Data parallelism, ZeRO-0 and ZeRO-1: gradients in flat buckets, summed over ranks during backward.

A `Bucket` stores weights of one kind in one flat buffer, and their gradients in another one, which is summed over ranks
in one message. A backward hook starts the sum as soon as the bucket's last gradient is complete, while backward
computes the gradients of earlier layers. All ranks start their buckets in the same order, whatever the order of
gradients.

    ZeRO-0    all-reduce: each rank has all sums and updates all weights
    ZeRO-1    reduce-scatter: each rank has a part of the sums, and updates this part of the weights and of the
              optimizer's state (Rajbhandari et al., arXiv:1910.02054). All-gathers distribute the updated parts: they
              start with the next forward, and each layer waits for the weights that it uses

ZeRO-2 and ZeRO-3 (`zero.py`) are built on this file. The optimizer always gets a plain local tensor per bucket. The
loss is divided by the tokens of all ranks, so gradients are summed, not averaged.

Playbook: Data Parallelism (overlap, bucketing, gradient accumulation), ZeRO-1, hybrid sharding.
Messages per step: ZeRO-0 one all-reduce per bucket; ZeRO-1 a reduce-scatter and an all-gather per bucket, and with
replicas one more all-reduce of the shard. With accumulation, only the last pass sends.
Called by: `build.py` makes the buckets, whose hooks run in forward and backward; `step.py` begins and finishes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from trainer.parallel.collectives import all_gather_single, all_reduce_coalesced, reduce_scatter_single
from usp_prof.record import mark

if TYPE_CHECKING:
    from trainer.parallel.collectives import Group
    from trainer.parallel.weights import Box, FlatWeights


class Bucket:
    """Weights of one kind in one flat buffer, their flat gradient, and the part of both that this rank updates."""

    scatter_mark, gather_mark, wait_mark = "zero1_reduce_scatter", "zero1_all_gather", "zero1_gather_wait"
    is_whole = True
    """Whether the weights of all ranks are here and up to date."""

    def __init__(
        self,
        weights: FlatWeights,
        group: Group,
        *,
        replicas: Group | None = None,
        tensor_ranks: int = 1,
        on_host: bool = False,
    ) -> None:
        """Sum gradients over `group`; with `replicas` (ZeRO), shard over `group` and sum shards over replicas."""
        self.weights, self.flat, self.group, self.replicas = weights, weights.flat, group, replicas
        self.on_host = on_host
        self.master_dtype = torch.promote_types(self.flat.dtype, torch.float32)
        """The type of masters and gradients."""
        self.sharded = replicas is not None and group.size > 1
        length = len(self.flat) // group.size
        self.run = range(length * group.rank, length * (group.rank + 1)) if self.sharded else range(len(self.flat))
        """The indices of the flat buffer that this rank updates: all of them, or its part."""
        self.is_tied = weights.kind == "tied"
        """Whether it is a tied embedding. Two pipeline stages have a copy of it, and their gradients are added up."""
        self.copies = tensor_ranks if weights.kind in {"partial", "copied"} else 1
        """Number of ranks that update this part; a norm over all ranks must count it once."""
        self.copies *= (1 if self.sharded else group.size) * (replicas.size if replicas else 1) * (1 + self.is_tied)

        self.local = self.make_local()
        """This rank's part, in the type that the layers compute in."""
        self.master = weights.master_of(self.local, self.run, self.master_dtype, on_host=on_host)
        """Master weights, for the optimizer and checkpoints: fp32 or wider, in host memory if offloaded."""
        self.grad: torch.Tensor | None = None
        """Gradients of all weights in the buffer, while backward adds them up."""
        self.gradient: torch.Tensor | None = None
        """The sum over ranks of the gradients of this rank's part; complete from `finish` to `publish`."""
        self.missing: set[nn.Parameter] = set()
        """Weights whose gradient the last backward has not computed yet."""
        self.launched = False
        """Whether the sum of this update was started."""
        self.work: dist.Work | None = None
        """The sum that is in progress."""
        self.replica_work: dist.Work | None = None
        """The sum over replicas that is in progress."""
        self.gathering: dist.Work | None = None
        """The all-gather that is in progress."""

    def make_local(self) -> torch.Tensor:
        """Initialize the flat buffer; return the part that this rank updates."""
        self.weights.fill(self.flat, range(len(self.flat)))
        return self.flat[self.run.start : self.run.stop]

    def boxes(self) -> Iterator[Box]:
        """Yield the weights in this rank's part."""
        return self.weights.boxes(self.run)

    def make_grad(self) -> torch.Tensor:
        """Return the flat gradient, which is zero at first."""
        if self.grad is None:
            self.grad = torch.zeros(self.flat.shape, dtype=self.master_dtype, device=self.flat.device)
        return self.grad

    def take(self, parameter: nn.Parameter) -> None:
        """Move a parameter's new gradient to the flat one."""
        self.missing.discard(parameter)
        if parameter.grad is not None:
            self.make_grad()[self.weights.slices[parameter]] += parameter.grad.flatten()
            parameter.grad = None

    def launch(self) -> None:
        """Start summing over the group, while backward computes; a rank without a gradient adds zeros."""
        self.launched, grad = True, self.make_grad()
        self.gradient = torch.empty_like(self.local, dtype=self.master_dtype) if self.sharded else grad
        if self.group.size == 1:
            return
        self.group.before_message()
        with mark("dp", self.scatter_mark if self.sharded else "bucket_all_reduce", bytes=grad.nbytes):
            if self.sharded:
                self.work = reduce_scatter_single(self.gradient, grad, group=self.group.handle, async_op=True)
            else:
                self.work = dist.all_reduce(grad, group=self.group.handle, async_op=True)

    def sum_up(self) -> None:
        """Wait for the sum over the group; then start the sum over replicas, also while backward computes."""
        if self.work is not None:
            self.work.wait()
        self.work = self.grad = None
        if self.replicas is not None and self.replicas.size > 1 and self.replica_work is None:
            self.replicas.before_message()
            with mark("dp", "replica_all_reduce", bytes=self.gradient.nbytes):
                self.replica_work = dist.all_reduce(self.gradient, group=self.replicas.handle, async_op=True)

    def finish(self) -> None:
        """Complete both sums."""
        self.sum_up()
        if self.replica_work is not None:
            self.replica_work.wait()
        self.replica_work, self.launched = None, False

    def publish(self) -> None:
        """Drop the gradient; other ranks' parts of the weights are outdated until they are gathered."""
        self.gradient = None
        self.is_whole = not self.sharded

    def gather(self) -> None:
        """Start to gather the parts that other ranks have updated; `wait` completes it."""
        if self.is_whole or self.gathering is not None:
            return
        self.group.before_message()
        with mark("dp", self.gather_mark, bytes=self.flat.nbytes):
            # A copy in the layers' type is sent: masters may be wider, or within the buffer that the message writes.
            part = self.local.to(self.flat.dtype, copy=True)
            self.gathering = all_gather_single(self.flat, part, group=self.group.handle, async_op=True)

    def wait(self) -> None:
        """Wait until all weights are here: for the part of a gather that compute has not hidden."""
        self.gather()
        if self.gathering is not None:
            with mark("dp", self.wait_mark):
                self.gathering.wait()
            self.gathering, self.is_whole = None, True


class Buckets:
    """The buckets of this rank's model chunks."""

    def __init__(
        self,
        chunks: Mapping[int, nn.Module],
        buckets: Mapping[int, Sequence[Bucket]],
        tp: Group,
        *,
        overlap: bool = True,
    ) -> None:
        """Take buckets by model chunk, in the order in which they start; without `overlap`, after backward."""
        self.buckets, self.tp, self.overlap = buckets, tp, overlap
        self.armed: set[int] = set()
        """Chunks whose hooks may start sums: the last backward of the step runs."""
        self.summing: Bucket | None = None
        """The bucket whose sum was started last."""
        for chunk, chunk_buckets in buckets.items():
            for bucket in chunk_buckets:
                for parameter in bucket.weights.slices:
                    parameter.register_post_accumulate_grad_hook(partial(self._take_gradient, chunk, bucket))
            self.watch(chunks[chunk], chunk_buckets)

    def __iter__(self) -> Iterator[Bucket]:
        return (bucket for buckets in self.buckets.values() for bucket in buckets)

    def watch(self, chunk: nn.Module, buckets: Sequence[Bucket]) -> None:
        """Gather when a chunk's forward begins; wait before the modules that use a bucket: layers, or the chunk."""
        sharded = [bucket for bucket in reversed(buckets) if bucket.sharded]  # forward uses them in this order
        chunk.register_forward_pre_hook(partial(_gather, sharded))
        for bucket in sharded:
            layers = {".".join(name.split(".")[:2]) for name in bucket.weights.names.values()}
            for user in {layer if layer.startswith("layers.") else "" for layer in layers}:
                chunk.get_submodule(user).register_forward_pre_hook(partial(_wait_before, bucket))

    def launch(self, bucket: Bucket) -> None:
        """Start a bucket's sum.

        With ZeRO, first complete the previous sum, which traveled while this bucket's gradients were computed. So at
        most two buckets have whole gradients at a time, and a sum over replicas can start.
        """
        if self.summing is not None and self.summing.replicas is not None:
            self.summing.sum_up()
        bucket.launch()
        self.summing = bucket

    def _take_gradient(self, chunk: int, bucket: Bucket, parameter: nn.Parameter) -> None:
        """Take a gradient; start full buckets in order, up to the first that is not full."""
        bucket.take(parameter)
        if chunk not in self.armed:
            return
        for full in takewhile(lambda bucket: not bucket.missing, self.buckets[chunk]):
            if not full.launched:
                self.launch(full)

    def begin(self, chunk: int, *, last: bool) -> None:
        """Prepare for a backward pass of a chunk; in its `last` one of a step, hooks start communication."""
        if last and self.overlap:
            self.armed.add(chunk)
            for bucket in self.buckets[chunk]:
                bucket.missing = set(bucket.weights.slices)

    def take(self, chunk: int, *, last: bool) -> None:
        """Take the weight gradients of a split backward, which call no hooks; after the `last` backward, sum them."""
        for bucket in self.buckets[chunk]:
            for parameter in bucket.weights.slices:
                bucket.take(parameter)
            if last and self.overlap:
                self.launch(bucket)

    def finish(self) -> None:
        """Complete every bucket's sum, so that each has its gradient."""
        self.armed.clear()
        for bucket in self:
            if not bucket.launched:
                self.launch(bucket)
        for bucket in self:
            bucket.sum_up()
        for bucket in self:
            bucket.finish()
        self.summing = None
        # Weights applied to a slice of the sequence on each tensor-parallel rank (norms): one message for all of them.
        all_reduce_coalesced([bucket.gradient for bucket in self if bucket.weights.kind == "partial"], self.tp)

    def publish(self) -> None:
        """Drop gradients, and bring updated weights to the ranks that did not update them."""
        for bucket in self:
            bucket.publish()


def _gather(buckets: list[Bucket], _: nn.Module, __: object) -> None:
    for bucket in buckets:
        bucket.gather()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _wait_before(bucket: Bucket, _: nn.Module, __: object) -> None:
    bucket.wait()
