"""How does something happen to a tensor on its way forward, and something else to its gradient on the way back?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Way = Callable[[torch.Tensor], torch.Tensor]


class _BothWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Way, back: Way) -> torch.Tensor:  # noqa: ANN401 - torch's context
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        return ctx.back(grad), None, None


def both_ways(x: torch.Tensor, there: Way, back: Way) -> torch.Tensor:
    """Send a tensor `there`; its gradient comes `back`."""
    return _BothWays.apply(x, there, back)


def in_passing(x: torch.Tensor, there: Callable[[], None], back: Callable[[], None]) -> torch.Tensor:
    """Let something happen as a tensor passes, and as its gradient does; neither is changed."""
    return both_ways(x, lambda passing: (there(), passing.view_as(passing))[1], lambda grad: (back(), grad)[1])
