"""Where does a layer's work begin and end, forward and backward, for those who make it last longer?"""

from __future__ import annotations

import time
from typing import Any

import torch


class Edges:
    """Stands before and behind a layer; `pace` and `slow` say what happens when its work ends."""

    began: float

    def start(self) -> None:
        """Look at the processor's clock: work begins."""
        self.began = time.thread_time()

    def forward_ends(self) -> None:
        """Act when the layer's output is there."""
        raise NotImplementedError

    def backward_ends(self) -> None:
        """Act when the gradient of its input is there."""
        raise NotImplementedError

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Stand before the layer."""
        return _Enter.apply(x, self)

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """Stand behind the layer."""
        return _Leave.apply(x, self)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, edges: Edges) -> torch.Tensor:  # noqa: ANN401 - torch's context
        ctx.edges = edges
        edges.start()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        ctx.edges.backward_ends()
        return grad, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, edges: Edges) -> torch.Tensor:  # noqa: ANN401
        ctx.edges = edges
        edges.forward_ends()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        ctx.edges.start()
        return grad, None
