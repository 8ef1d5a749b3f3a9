"""ZeRO-2 and ZeRO-3: each rank stores a shard of every layer's weights and gathers the other shards to compute.

The weights of a layer are a `Unit`: a bucket (`data_parallel.py`) whose flat buffer is cut into one part per rank, and
exists only while it is needed. With prefetch, the messages of one layer are sent while another layer computes:

    forward     gather 0 | compute 0, gather 1 | compute 1, gather 2 | ...
    backward    gather 2 | compute 2, gather 1 | compute 1, gather 0, reduce-scatter 2 | compute 0, reduce-scatter 1

    gather            every rank gets all parts of the weights, in the type that the layers compute in
    reduce-scatter    every rank gets its part of the sum of all gradients

ZeRO-3 frees a layer's buffer after its forward and gathers it again for backward. ZeRO-2 gathers once per step and
keeps the buffer until the update, like FSDP without resharding; the ZeRO paper replicates the weights instead. Weights
outside of layers (embedding, last norm, head) are one more unit, which both keep until the update. A layer's full
gradients are freed when the previous layer starts to send its own. With several passes or micro-batches, they exist
from the first one on, because they are summed over ranks only once.

Playbook: ZeRO-2, ZeRO-3 (FSDP).
Messages per layer and step: ZeRO-2 one all-gather and one reduce-scatter; ZeRO-3 two all-gathers (per pass and
micro-batch) and one reduce-scatter.
Called by: `build.py` makes the units, whose hooks run around each layer; an update begins and finishes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from trainer.parallel.collectives import Group, nothing, observe
from trainer.parallel.data_parallel import Bucket, Buckets


class Unit(Bucket):
    """Weights of one kind in one layer: this rank's shard, and temporarily the whole weights."""

    scatter_mark, gather_mark, wait_mark = "zero_reduce_scatter", "zero_all_gather", "zero_gather_wait"

    def make_local(self) -> torch.Tensor:
        """Keep only the shard, in the masters' type, or in the layers' type if masters are in host memory."""
        if not self.sharded:
            return super().make_local()
        self.is_whole = False
        self.flat.untyped_storage().resize_(0)  # until the first gather; parameters, its views, keep their shapes
        dtype = self.flat.dtype if self.on_host else self.master_dtype
        shard = torch.empty(len(self.run), dtype=dtype, device=self.flat.device)
        self.weights.fill(shard, self.run)
        return shard

    def gather(self) -> None:
        """Start to gather the weights, while the previous layer computes."""
        if not self.is_whole and self.gathering is None:
            self.flat.untyped_storage().resize_(self.flat.nbytes)
        super().gather()

    def reshard(self) -> None:
        """Free the gathered weights; the shard remains."""
        if self.sharded and self.is_whole:
            self.flat.untyped_storage().resize_(0)
            self.is_whole = False

    def publish(self) -> None:
        """Free outdated weights; each layer gathers the updated shards when it needs them."""
        self.gradient = None
        self.reshard()


class ShardedDataParallel(Buckets):
    """ZeRO-2 and ZeRO-3 over the model chunks of this rank."""

    def __init__(
        self,
        chunks: Mapping[int, nn.Module],
        units: Mapping[int, Sequence[Unit]],
        tp: Group,
        *,
        free_after_forward: bool,
        prefetch: bool,
    ) -> None:
        """Take units by model chunk, in the order in which their gradients are complete."""
        self.free_after_forward, self.prefetch = free_after_forward, prefetch
        super().__init__(chunks, units, tp)

    def watch(self, chunk: nn.Module, units: Sequence[Unit]) -> None:
        """Gather before a layer computes, forward and backward, and free after it."""
        by_layer: dict[str, list[Unit]] = {f"layers.{name}": [] for name in chunk.layers}
        outside: list[Unit] = []
        for unit in units:
            layer = ".".join(next(iter(unit.weights.names.values())).split(".")[:2])
            by_layer.get(layer, outside).append(unit)
        order = list(by_layer.values())

        chunk.register_forward_pre_hook(lambda *_: self._unshard(outside, order[0]))
        for index, module in enumerate(chunk.layers.values()):
            # In forward the next layer is needed next, in backward the previous one.
            previous_units, own_units, next_units = ([], *order, [])[index : index + 3]
            module.register_forward_pre_hook(partial(self._before_layer, own_units, next_units))
            module.register_forward_hook(partial(self._after_layer, own_units, previous_units))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_layer(
        self, units: list[Unit], needed_next: list[Unit], _: nn.Module, arguments: tuple[Any, ...]
    ) -> Any:  # noqa: ANN401
        """Gather a layer's weights; its backward ends where the gradient of its input passes."""
        self._unshard(units, needed_next)
        x, *other_arguments = arguments
        return observe(x, nothing, partial(self._reshard, units)), *other_arguments

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after_layer(self, units: list[Unit], needed_next: list[Unit], _: nn.Module, __: Any, results: Any) -> Any:  # noqa: ANN401
        """Free a layer's weights; its backward begins where the gradient of its output passes."""
        self._reshard(units)
        out, *other_results = results
        return observe(out, nothing, partial(self._unshard, units, needed_next)), *other_results

    def _unshard(self, needed_now: Sequence[Unit], needed_next: Sequence[Unit]) -> None:
        """Wait for the weights of some units; with prefetch, start to gather those that are needed next."""
        for unit in needed_now:
            unit.wait()
        if self.prefetch:
            for unit in needed_next:
                unit.gather()

    def _reshard(self, units: Sequence[Unit]) -> None:
        """Free the weights of a layer that has computed (ZeRO-3)."""
        if self.free_after_forward:
            for unit in units:
                unit.reshard()
