"""ZeRO-2 and ZeRO-3: each rank keeps a shard of every layer's weights, and has a layer whole only while it computes.

The weights of a layer lie one after another in a flat buffer, cut into as many parts as there are ranks: a `Unit`,
which is a bucket (`bucket.py`) whose buffer comes and goes. With prefetch, the messages of one layer travel while
another computes:

    forward     gather 0 | compute 0, gather 1 | compute 1, gather 2 | ...
    backward    gather 2 | compute 2, gather 1 | compute 1, gather 0, reduce-scatter 2 | compute 0, reduce-scatter 1

    gather            every rank gets all parts of the weights, in the type that the layers compute in
    reduce-scatter    every rank gets its part of the sum of all gradients

ZeRO-3 frees a layer's buffer after its forward and gathers it again for backward. ZeRO-2 gathers once and keeps the
buffer until the update. What is no layer (embedding, last norm, head) is one more unit, which both keep until then.
A layer's gradients are whole from when they are computed until the layer before has its own to send. Where several
passes or micro-batches add up, they are so from the first on: what is summed over ranks, is summed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn

from trainer.foundation.autograd_hooks import observe
from trainer.parallel.bucket import Bucket
from trainer.parallel.collectives import all_gather_single
from trainer.parallel.data_parallel import Buckets
from trainer.parallel.mesh import Mesh
from trainer.parallel.stage import Stage
from trainer.parallel.weights import note_of
from usp_prof.record import mark

Tensors = tuple[torch.Tensor, ...]


class Unit(Bucket):
    """Weights of one kind in one layer: this rank's shard of them, and now and then all of them."""

    scatter_mark = "zero_reduce_scatter"
    is_whole = False
    """Whether all weights are here and up to date; without memory for them they are not."""
    gathering: torch.distributed.Work | None = None
    """The all-gather that is on its way, if one is."""

    def make_room(self) -> torch.Tensor:
        """Keep the shard alone, as the optimizer has it; where that is in host memory, as the layers have it."""
        if not self.sharded:
            self.is_whole = True  # nobody to share with
            return super().make_room()
        free(self.flat)  # until the first gather; the parameters are views of it, and keep their shapes
        dtype = self.flat.dtype if self.on_host else self.accurate
        shard = torch.empty(len(self.run), dtype=dtype, device=self.flat.device)
        self.fill(shard, self.run)
        return shard

    def make_gradient(self) -> torch.Tensor:
        """Begin without memory for gradients; `take` makes it."""
        return torch.empty(0, dtype=self.accurate, device=self.flat.device)

    def gather(self) -> None:
        """Begin to bring the weights here, where they are not; `wait` completes it.

        The layer before calls this while it computes, so that the message travels meanwhile.
        """
        if self.is_whole or self.gathering is not None:
            return
        allocate(self.flat)
        self.group.leave()
        with mark("dp", "zero_all_gather", bytes=self.flat.nbytes):
            shard = self.local.to(self.flat.dtype)  # masters are wider: what travels is what the layers compute in
            self.gathering = all_gather_single(self.flat, shard, group=self.group.handle, async_op=True)

    def wait(self) -> None:
        """Have the weights here: of a gather that began earlier, wait for what compute has not covered."""
        self.gather()
        if self.gathering is not None:
            with mark("dp", "zero_gather_wait"):
                self.gathering.wait()
            self.gathering, self.is_whole = None, True

    def release(self) -> None:
        """Free the whole weights; the shard stays, and `gather` brings them back."""
        if self.sharded and self.is_whole:
            free(self.flat)
            self.is_whole = False

    def take(self, parameter: nn.Parameter) -> None:
        """Move a parameter's fresh gradient into the flat one."""
        if parameter.grad is not None:
            self._allocate_gradient()
        super().take(parameter)

    def launch(self) -> None:
        """Start summing over the group; where no gradient came to this rank, it adds zeros."""
        self._allocate_gradient()
        super().launch()

    def sum_up(self) -> None:
        """Wait for the sum, of which this rank keeps its part, and free the whole gradient."""
        if self.work is not None:
            super().sum_up()
            self.grad = self.make_gradient()  # empty again: the old one is freed here

    def drop(self) -> None:
        """Free gradients, and weights that are not up to date any more."""
        self.grad = self.make_gradient()
        self.part.gradient = None
        self.release()

    def _allocate_gradient(self) -> None:
        """Return the flat gradient its memory, zeros, unless it has it."""
        if not self.grad.numel():
            self.grad = torch.zeros(self.flat.shape, dtype=self.accurate, device=self.flat.device)


class Sharded(Buckets):
    """ZeRO-2 and ZeRO-3 over the model chunks of this rank."""

    def __init__(
        self,
        chunks: Mapping[int, Stage],
        mesh: Mesh,
        device: torch.device,
        *,
        free_after_forward: bool,
        prefetch: bool,
        on_host: bool = False,
    ) -> None:
        self.free_after_forward, self.prefetch = free_after_forward, prefetch
        units: dict[int, list[Unit]] = {}
        for number, chunk in chunks.items():
            layers = [make_units(chunk, f"layers.{name}.", mesh, device, on_host=on_host) for name in chunk.layers]
            others = make_units(chunk, "", mesh, device, on_host=on_host)
            self._watch(chunk, layers, others)
            # The gradients of the last layer are complete first; those of the embedding, which is no layer, last.
            units[number] = [unit for layer in reversed(layers) for unit in layer] + others
        self.units = [unit for several in units.values() for unit in several]
        super().__init__(units, mesh)

    def _watch(self, chunk: Stage, layers: list[list[Unit]], others: list[Unit]) -> None:
        """Gather before a layer computes, forward and backward, and free after it."""

        def begin(_: nn.Module, __: object) -> None:
            self._bring(others, layers[0])

        chunk.register_forward_pre_hook(begin)
        for index, module in enumerate(chunk.layers.values()):
            here = layers[index]
            # In forward the layer after is needed next, in backward the one before.
            after = layers[index + 1] if index + 1 < len(layers) else []
            before = layers[index - 1] if index else []
            module.register_forward_pre_hook(partial(self._enter, here, after))
            module.register_forward_hook(partial(self._leave, here, before))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _enter(self, here: list[Unit], after: list[Unit], _: nn.Module, arguments: Tensors) -> Tensors:
        """Before a layer's forward; its backward ends where the gradient of its input passes."""
        self._bring(here, after)
        x, *others = arguments
        return observe(x, _nothing, partial(self._release, here)), *others

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _leave(
        self, here: list[Unit], before: list[Unit], _: nn.Module, __: Tensors, out: torch.Tensor
    ) -> torch.Tensor:
        """After a layer's forward; its backward begins where the gradient of its output passes."""
        self._release(here)
        return observe(out, _nothing, partial(self._bring, here, before))

    def _bring(self, needed_now: Sequence[Unit], needed_next: Sequence[Unit]) -> None:
        """Have some units' weights, and with prefetch begin to gather those that are needed next."""
        for unit in needed_now:
            unit.wait()
        if self.prefetch:
            for unit in needed_next:
                unit.gather()

    def _release(self, here: Sequence[Unit]) -> None:
        """ZeRO-3: free what a layer has used; ZeRO-2 keeps it until the update."""
        if self.free_after_forward:
            for unit in here:
                unit.release()

    def launch(self, bucket: Bucket) -> None:
        """Start a unit's sum, and complete the one before, which travelled while this unit's layer computed.

        So two units at most have whole gradients at a time.
        """
        if self.summing is not None:
            self.summing.sum_up()
        bucket.launch()
        self.summing = bucket

    def publish(self) -> None:
        """Drop gradients and old weights; each layer is gathered from the updated shards when it is needed."""
        for unit in self.units:
            unit.drop()


def make_units(chunk: Stage, prefix: str, mesh: Mesh, device: torch.device, *, on_host: bool) -> list[Unit]:
    """Make the units of those weights whose names begin so and which are still on paper: one for each kind."""
    kinds: dict[str, list[str]] = {}
    for name, paper in chunk.named_parameters():
        if paper.is_meta and name.startswith(prefix):
            kinds.setdefault(_kind(paper, mesh), []).append(name)
    return [Unit(chunk, names, mesh, device, sharded=True, on_host=on_host) for names in kinds.values()]


def allocate(x: torch.Tensor) -> None:
    """Return a tensor's storage its memory; views of it, such as parameters, have it too."""
    x.untyped_storage().resize_(x.nbytes)


def free(x: torch.Tensor) -> None:
    """Take a tensor's memory away; it keeps its shape."""
    x.untyped_storage().resize_(0)


def _kind(paper: nn.Parameter, mesh: Mesh) -> str:
    """Return a weight's kind; on one tensor-parallel rank, weights in common of all of them are as any other."""
    kind = note_of(paper).kind
    return "dense" if kind in {"partial", "copied"} and mesh["tp"].size == 1 else kind


def _nothing() -> None:
    """Leave the way forward as it is."""
