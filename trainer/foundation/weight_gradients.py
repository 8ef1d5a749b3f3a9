"""Split backward: the gradient of a layer's input now, the gradient of its weight later.

The backward of y = x W' is two products of equal cost:
    input gradient    dx = dy W       the previous stage waits for it
    weight gradient   dW = dy' x      needed only for the update
A zero-bubble schedule runs them as two actions, I and W. In I, autograd runs the whole backward as usual, but products
with weights compute only dx and append the computation of dW to a list. W runs the list. Backward therefore runs once,
as do a recomputed forward, all-gathers of weights, and collectives. Cheap weight gradients (norms, router, embedding)
are computed in I.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Job = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Product:
    """A product of an input with a weight, and the two products of its backward pass."""

    forward: Multiply
    """Returns y from x and W."""
    input_gradient: Multiply
    """Returns dx from dy and W."""
    weight_gradient: Multiply
    """Returns dW from dy and x."""
    is_differentiable: bool = True
    """Whether autograd can derive the two gradients from `forward`."""


LINEAR = Product(
    forward=F.linear,
    input_gradient=torch.matmul,
    weight_gradient=lambda grad, x: grad.flatten(0, -2).t() @ x.flatten(0, -2),
)


class WeightGradStore:
    """Products of weight gradients that the I action of a stage stores for its W action."""

    def __init__(self) -> None:
        self.jobs: list[Job] | None = None
        """Where jobs go during an I; `None` outside of one."""

    @contextmanager
    def collect(self) -> Iterator[list[Job]]:
        """Collect the jobs of one I."""
        self.jobs = jobs = []
        try:
            yield jobs
        finally:
            self.jobs = None

    def run(self, job: Job) -> None:
        """Store a job for W, or run it immediately if backward is not split."""
        if self.jobs is None:
            job()
        else:
            self.jobs.append(job)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, product: Product, grad_store: WeightGradStore) -> Any:  # noqa: ANN401 - torch's context
        ctx.save_for_backward(x, weight)
        # In addition to its values: the parameter itself, which keeps its `grad` (recomputation saves a detached copy).
        ctx.parameter, ctx.product, ctx.grad_store = weight, product, grad_store
        return product.forward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        d_x = ctx.product.input_gradient(grad, weight)
        gradient = partial(ctx.product.weight_gradient, grad, x)
        return d_x, weight_gradient(ctx.parameter, gradient, ctx.grad_store), None, None


def multiply(
    x: torch.Tensor, weight: torch.Tensor, product: Product, grad_store: WeightGradStore | None
) -> torch.Tensor:
    """Multiply by a weight, whose gradient may be computed later with `grad_store`."""
    if grad_store is None and product.is_differentiable:
        return product.forward(x, weight)
    return _Multiply.apply(x, weight, product, grad_store)


def weight_gradient(
    parameter: torch.Tensor, gradient: Callable[[], torch.Tensor], grad_store: WeightGradStore | None
) -> torch.Tensor | None:
    """Return a weight's gradient to autograd, or store its job for W and return `None`."""
    if grad_store is None or grad_store.jobs is None:
        return gradient()
    grad_store.run(partial(_accumulate, parameter, gradient))
    return None


@torch.no_grad()
def _accumulate(parameter: torch.Tensor, gradient: Callable[[], torch.Tensor]) -> None:
    """Add to a parameter's gradient, as autograd would."""
    fresh = gradient()
    parameter.grad = fresh if parameter.grad is None else parameter.grad.add_(fresh)
