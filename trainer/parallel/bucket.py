"""Bucket: weights of one kind in one flat buffer, with a flat gradient beside it that is summed in one message.

Under ZeRO-0 the sum is an all-reduce, and each rank has and updates all of it. Under ZeRO-1 it is a reduce-scatter: a
rank updates its part of the buffer, and an all-gather brings the parts of all ranks together again. With four ranks:

    gradients   [ a b c d ]  on each rank, its own
    reduce-scatter: rank 1 gets the sum of all b, updates its part of the weights
    all-gather: each rank gets the parts of all
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from trainer.parallel.collectives import all_gather_single, all_reduce, reduce_scatter_single
from trainer.parallel.mesh import Mesh
from trainer.parallel.placement import Box, Slice, boxes_of_run, room_on_host
from trainer.parallel.weights import create, fill, note_of
from usp_prof.record import mark


class Bucket:
    """Some weights of one kind in one flat buffer, with a flat gradient beside it; it creates them there."""

    scatter_mark = "zero1_reduce_scatter"

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
        kind = self.notes[names[0]].kind
        self.is_partial = kind == "partial"
        self.tied = kind == "tied"
        self.on_host = on_host

        # Who shares it: experts have a data parallelism of their own, over the ranks that hold the same experts.
        sharing, everybody = ("efsdp", "edata") if kind == "expert" else ("fsdp", "data")
        self.group = group = mesh[sharing if sharded else everybody]
        """The ranks whose gradients are summed; where it is sharded, those that have a part each."""
        self.sharded = sharded and group.size > 1
        self.replicas = mesh["dp_replicate"] if sharded else None
        """Who else holds this shard."""

        # The weights, one after another in one buffer.
        length = sum(paper.numel() for paper in papers)
        length += -length % group.size  # padded, so that all parts are of one length
        self.flat = torch.zeros(length, dtype=papers[0].dtype, device=device)
        self.accurate = torch.promote_types(self.flat.dtype, torch.float32)
        """The type of masters and gradients."""
        self.places: dict[nn.Parameter, slice] = {}
        """Where each weight lies in the flat buffer, and in the flat gradient."""
        self.names: dict[nn.Parameter, str] = {}
        self._place(chunk, names)

        # What this rank updates of it.
        part = length // group.size
        self.run = range(part * group.rank, part * (group.rank + 1)) if self.sharded else range(length)
        """The places of the flat buffer that this rank updates: all of it, or its part."""
        self.local = self.make_room()
        """The weights in that run, as the layers have them."""
        copies = self._copies(mesh["tp"].size if kind in {"partial", "copied"} else 1)
        stored = all(note.stored for note in self.notes.values())
        self.part = Slice(self._master(), self.local, copies, self._boxes(self.run), self.tied, stored)

        # The gradients, and their sum on its way.
        self.grad = self.make_gradient()
        """As long as `flat`: this rank's own gradients, and where nothing is sharded, the sum over all ranks."""
        self.reduced: torch.Tensor | None = None
        """This rank's part of the sum; `None` where it keeps all of it, in `grad`."""
        self.missing: set[nn.Parameter] = set()
        """Weights whose gradient the last backward has yet to bring."""
        self.work: dist.Work | None = None
        """The sum that is on its way; `None` before it starts, and once it was waited for."""
        self.replica_work: dist.Work | None = None
        """The sum over replicas that is on its way."""
        self.launched = False
        """Whether the sum of this update was started."""

    def _place(self, chunk: nn.Module, names: list[str]) -> None:
        """Assign each weight its place in the flat buffer."""
        start = 0
        for name in names:
            paper = chunk.get_parameter(name)
            place = slice(start, start + paper.numel())
            # `data`: autograd does not take it for a change when other ranks' parts of the buffer arrive.
            parameter = create(chunk, name, self.flat[place].view(paper.shape).data)
            self.places[parameter], self.names[parameter] = place, name
            start = place.stop

    def _copies(self, tensor_ranks: int) -> int:
        """Count the ranks that update these very weights; `tensor_ranks` of a tensor-parallel group do."""
        copies = tensor_ranks * (1 if self.sharded else self.group.size)
        if self.replicas is not None:
            copies *= self.replicas.size
        return copies * (2 if self.tied else 1)

    def _master(self) -> torch.Tensor:
        """Return the tensors that the optimizer updates: the weights, or their copy in a wider type or on the host."""
        if self.on_host:
            master = room_on_host(self.local, self.accurate)
        elif self.local.dtype != self.accurate:
            master = torch.empty_like(self.local, dtype=self.accurate)
        else:
            return self.local
        self.fill(master, self.run)
        return master

    def make_room(self) -> torch.Tensor:
        """Let the weights begin in the flat buffer; gives what of it this rank updates."""
        self.fill(self.flat, range(len(self.flat)))
        return self.flat[self.run.start : self.run.stop]

    def make_gradient(self) -> torch.Tensor:
        """Make the flat gradient."""
        return torch.zeros(self.flat.shape, dtype=self.accurate, device=self.flat.device)

    def fill(self, memory: torch.Tensor, run: range) -> None:
        """Let the weights in a run of the flat buffer begin in some memory."""
        fill(memory, self._boxes(run), self.notes)

    def _boxes(self, run: range) -> list[Box]:
        """Return the boxes of weights in a run of the flat buffer."""
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
        """Start summing over the group; it goes on while backward computes, and `sum_up` waits for it."""
        self.launched = True
        if self.group.size == 1:
            return
        self.group.leave()
        what = self.scatter_mark if self.sharded else "bucket_all_reduce"
        with mark("dp", what, bytes=self.grad.numel() * self.grad.element_size()):
            if self.sharded:
                self.reduced = torch.empty_like(self.local, dtype=self.accurate)
                self.work = reduce_scatter_single(self.reduced, self.grad, group=self.group.handle, async_op=True)
            else:
                self.work = dist.all_reduce(self.grad, group=self.group.handle, async_op=True)

    def sum_up(self) -> None:
        """Wait for the sum within the replica, and start the sum over replicas, which also hides behind backward."""
        if self.work is None:
            return
        self.work.wait()
        self.work = None
        if self.replicas is not None and self.replicas.size > 1:
            gradient = self.grad if self.reduced is None else self.reduced
            self.replicas.leave()
            with mark("dp", "replica_all_reduce", bytes=gradient.nbytes):
                self.replica_work = dist.all_reduce(gradient, group=self.replicas.handle, async_op=True)

    def finish(self) -> None:
        """Complete both sums."""
        self.sum_up()
        gradient = self.grad if self.reduced is None else self.reduced
        if self.replica_work is not None:
            self.replica_work.wait()
        elif self.replicas is not None:  # no other rank of this replica has these weights
            all_reduce(gradient, self.replicas)
        self.part.gradient = gradient
        self.reduced, self.replica_work, self.launched = None, None, False

    def publish(self) -> dist.Work | None:
        """Drop gradients, and start gathering the parts that other ranks have updated."""
        self.grad.zero_()
        self.part.gradient = None
        if not self.sharded:
            return None
        self.group.leave()
        with mark("dp", "zero1_all_gather"):
            # A copy of the part is sent: it lies within the buffer that the message writes.
            return all_gather_single(self.flat, self.local.clone(), group=self.group.handle, async_op=True)
