"""Autograd hooks: run one function on a tensor in forward and another on its gradient in backward.

Collectives with gradients are made of them: an all-gather in forward is a reduce-scatter in backward (`collectives`).
So are a layer's waits: one when its output is there, one when its input's gradient is there (`pacing`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TensorFunction = Callable[[torch.Tensor], torch.Tensor]


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: TensorFunction, backward: TensorFunction) -> torch.Tensor:  # noqa: ANN401 - torch's context
        ctx.gradient_function = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        return ctx.gradient_function(grad), None, None


def transform(x: torch.Tensor, forward: TensorFunction, backward: TensorFunction) -> torch.Tensor:
    """Return `forward` of a tensor; its gradient will be `backward` of the result's gradient."""
    return _Transform.apply(x, forward, backward)


def pass_on(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as it is: as a view, since a function of autograd must not give its own input."""
    return x.view_as(x)


def observe(x: torch.Tensor, on_forward: Callable[[], None], on_backward: Callable[[], None]) -> torch.Tensor:
    """Call a function when a tensor passes and another when its gradient does; neither is changed."""

    def observe_forward(passing: torch.Tensor) -> torch.Tensor:
        on_forward()
        return pass_on(passing)

    def pass_back(grad: torch.Tensor) -> torch.Tensor:
        on_backward()
        return grad

    return transform(x, observe_forward, pass_back)
