"""Collectives that carry gradients: all-gather, reduce-scatter and all-to-all, each with its inverse in backward.

Each is a no-op in a group of one. Tensors are ``[sequence, batch, hidden]``, so that a shard of the sequence is
contiguous memory and a gather needs no copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from trainer.foundation.autograd_hooks import pass_on, transform

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gather into one tensor; torch 2.13 deprecates the older name."""
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Reduce and scatter one tensor; torch 2.13 deprecates the older name."""


@dataclass(frozen=True, slots=True)
class Group:
    """One process group of this rank; `handle` is `None` if the run does not need it."""

    name: str
    axes: tuple[str, ...]
    ranks: tuple[int, ...]
    rank: int
    handle: dist.ProcessGroup | None
    before_message: Callable[[], None] | None = None
    """Called before each message, if set from outside: a slow link holds the message back."""

    def leave(self) -> None:
        """Report that a message is posted."""
        if self.before_message is not None:
            self.before_message()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)


def gather_rows(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Concatenate the group's tensors along the first dimension."""
    out = x.new_empty(x.shape[0] * group.size, *x.shape[1:])
    group.leave()
    all_gather_single(out, x.contiguous(), group=group.handle)
    return out


def reduce_rows(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Add the group's tensors and keep this rank's part of the first dimension."""
    out = x.new_empty(x.shape[0] // group.size, *x.shape[1:])
    group.leave()
    reduce_scatter_single(out, x.contiguous(), group=group.handle)
    return out


def exchange_rows(x: torch.Tensor, sends: list[int] | None, receives: list[int] | None, group: Group) -> torch.Tensor:
    """Send a run of rows to each rank of the group and receive one from each; equal runs when no splits are given."""
    rows = x.shape[0] if receives is None else sum(receives)
    out = x.new_empty(rows, *x.shape[1:])
    group.leave()
    dist.all_to_all_single(out, x.contiguous(), receives, sends, group=group.handle)
    return out


def all_reduce(x: torch.Tensor, group: Group, operation: Any = dist.ReduceOp.SUM) -> None:  # noqa: ANN401 - an enum of C
    """Add the group's tensors in place, or combine them in another way."""
    if group.size > 1:
        group.leave()
        dist.all_reduce(x, operation, group=group.handle)


def all_reduce_together(tensors: list[torch.Tensor], group: Group) -> None:
    """Add each of several tensors over the group, in place, in one message."""
    if group.size == 1 or not tensors:
        return
    message = torch.cat([tensor.flatten() for tensor in tensors])
    all_reduce(message, group)
    for tensor, total in zip(tensors, message.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def summed(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum of the group's tensors; the tensor itself stays as it is."""
    total = x.clone(memory_format=torch.contiguous_format)
    all_reduce(total, group)
    return total


def gather(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Gather along the first dimension; the gradient is reduced and scattered."""
    if group.size == 1:
        return x
    return transform(x, partial(gather_rows, group=group), partial(reduce_rows, group=group))


def reduce_scatter(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Reduce and scatter along the first dimension; the gradient is gathered."""
    if group.size == 1:
        return x
    return transform(x, partial(reduce_rows, group=group), partial(gather_rows, group=group))


def sum_forward(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Add the group's tensors; the gradient passes as it is."""
    return x if group.size == 1 else transform(x, partial(summed, group=group), pass_on)


def sum_backward(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Pass a tensor as it is; its gradients are added over the group."""
    return x if group.size == 1 else transform(x, pass_on, partial(summed, group=group))


def exchange(
    x: torch.Tensor, group: Group, sends: list[int] | None = None, receives: list[int] | None = None
) -> torch.Tensor:
    """All-to-all along the first dimension, runs of any length; the gradient goes the way back."""
    if group.size == 1:
        return x
    forward = partial(exchange_rows, sends=sends, receives=receives, group=group)
    backward = partial(exchange_rows, sends=receives, receives=sends, group=group)
    return transform(x, forward, backward)
