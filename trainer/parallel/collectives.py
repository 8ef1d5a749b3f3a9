"""Collectives with gradients: all-gather, reduce-scatter, all-reduce and all-to-all, each with its inverse in backward.

In a group of one rank, they do nothing. Tensors are ``[sequence, batch, hidden]``, so a shard of the sequence is
contiguous memory, and an all-gather needs no copy.

    forward           backward
    all-gather        reduce-scatter
    reduce-scatter    all-gather
    all-reduce        nothing
    nothing           all-reduce
    all-to-all        all-to-all with sends and receives exchanged

Messages: one per call and direction.
Called by: `tensor_parallel.py`, `sequence_parallel.py`, `ring_attention.py`, `ulysses.py`, `expert_parallel.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gather into one tensor; torch 2.13 deprecates the older name."""
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Reduce and scatter one tensor; torch 2.13 deprecates the older name."""

TensorFunction = Callable[[torch.Tensor], torch.Tensor]
Started = tuple[torch.Tensor, dist.Work]
"""A result, and the message that is still writing it."""


def nothing(*_: Any) -> None:  # noqa: ANN401 - any arguments
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """One process group of this rank; `handle` is `None` if the run does not use it."""

    name: str
    axes: tuple[str, ...]
    ranks: tuple[int, ...]
    rank: int
    handle: dist.ProcessGroup | None
    before_message: Callable[[], None] = nothing
    """Called before each message; a slow link is attached here."""

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)


# Messages without gradients.


def all_reduce(x: torch.Tensor, group: Group, operation: Any = dist.ReduceOp.SUM) -> torch.Tensor:  # noqa: ANN401 - an enum of C
    """Add up the group's tensors in place, or combine them by another operation."""
    if group.size > 1:
        group.before_message()
        dist.all_reduce(x, operation, group=group.handle)
    return x


def all_reduce_coalesced(tensors: list[torch.Tensor], group: Group) -> None:
    """Add up several tensors over the group, in place and in one message."""
    if group.size == 1 or not tensors:
        return
    message = all_reduce(torch.cat([tensor.flatten() for tensor in tensors]), group)
    for tensor, total in zip(tensors, message.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def _all_reduced(x: torch.Tensor, group: Group) -> torch.Tensor:
    return all_reduce(x.clone(memory_format=torch.contiguous_format), group)


def start_all_gather(x: torch.Tensor, group: Group) -> Started:
    """Start an all-gather along the first dimension."""
    out = x.new_empty(group.size * x.shape[0], *x.shape[1:])
    group.before_message()
    return out, all_gather_single(out, x.contiguous(), group=group.handle, async_op=True)


def start_reduce_scatter(x: torch.Tensor, group: Group) -> Started:
    """Start a reduce-scatter along the first dimension."""
    out = x.new_empty(x.shape[0] // group.size, *x.shape[1:])
    group.before_message()
    return out, reduce_scatter_single(out, x.contiguous(), group=group.handle, async_op=True)


def complete(started: Started) -> torch.Tensor:
    """Wait for a started message."""
    started[1].wait()
    return started[0]


def exchange_rows(x: torch.Tensor, sends: list[int] | None, receives: list[int] | None, group: Group) -> torch.Tensor:
    """Send rows to each rank of the group and receive rows from each; equal numbers if `sends` is `None`."""
    rows = x.shape[0] if receives is None else sum(receives)
    out = x.new_empty(rows, *x.shape[1:])
    group.before_message()
    dist.all_to_all_single(out, x.contiguous(), receives, sends, group=group.handle)
    return out


# Functions of autograd: one function in forward, another one for the gradient.


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: TensorFunction, backward: TensorFunction) -> torch.Tensor:  # noqa: ANN401 - torch's context
        ctx.gradient_function = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        return ctx.gradient_function(grad), None, None


def observe(x: torch.Tensor, on_forward: Callable[[], None], on_backward: Callable[[], None]) -> torch.Tensor:
    """Call one function in forward and another in backward, without changing the tensor or its gradient."""

    def forward(passing: torch.Tensor) -> torch.Tensor:
        on_forward()
        return passing.view_as(passing)  # autograd expects a different object than the input

    def backward(grad: torch.Tensor) -> torch.Tensor:
        on_backward()
        return grad

    return _Transform.apply(x, forward, backward)


def _run(start: Callable[..., Started], group: Group, x: torch.Tensor) -> torch.Tensor:
    return complete(start(x, group))


def _view(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


def all_gather(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Gather along the first dimension; the gradient is reduced and scattered."""
    if group.size == 1:
        return x
    return _Transform.apply(x, partial(_run, start_all_gather, group), partial(_run, start_reduce_scatter, group))


def reduce_scatter(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Reduce and scatter along the first dimension; the gradient is gathered."""
    if group.size == 1:
        return x
    return _Transform.apply(x, partial(_run, start_reduce_scatter, group), partial(_run, start_all_gather, group))


def all_reduce_forward(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Add up the group's tensors; the gradient passes unchanged (Megatron's g)."""
    return x if group.size == 1 else _Transform.apply(x, partial(_all_reduced, group=group), _view)


def all_reduce_backward(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the tensor unchanged; its gradients are added up over the group (Megatron's f)."""
    return x if group.size == 1 else _Transform.apply(x, _view, partial(_all_reduced, group=group))


def all_to_all(
    x: torch.Tensor, group: Group, sends: list[int] | None = None, receives: list[int] | None = None
) -> torch.Tensor:
    """Exchange any numbers of rows; the gradient is exchanged in the opposite direction."""
    if group.size == 1:
        return x
    forward = partial(exchange_rows, sends=sends, receives=receives, group=group)
    backward = partial(exchange_rows, sends=receives, receives=sends, group=group)
    return _Transform.apply(x, forward, backward)
