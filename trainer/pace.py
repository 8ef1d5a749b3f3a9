"""How do many ranks on few cores behave like a cluster? Compute is replaced by timed waits.

Each layer waits for as long as a device would compute it: forward, gradient of its input, gradient of its weights. A
waiting process uses no core, so pipelines, bubbles and stragglers come out as on real devices, while a small model
still trains underneath. Every wait is marked ``pace::...`` and the manifest says ``paced``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from usp_prof.record.marks import mark
from trainer.model.shape import ModelShape

ACHIEVED = {"h100": 600e12, "a100": 200e12, "b200": 1300e12}
"""Dense bf16 FLOP/s that large products reach on a device, about 0.6 of its peak; a pace, not a claim."""


@dataclass(slots=True)
class Pace:
    """How long one layer takes on the device that is played, in seconds; `factor` slows this rank down."""

    forward: float
    input_gradient: float
    weight_gradient: float
    factor: float = 1.0

    @classmethod
    def of(cls, device: str, shape: ModelShape, tokens: int) -> Pace:
        """Derive the waits from a layer's arithmetic, or take ``F,I,W`` in milliseconds as given."""
        if device in ACHIEVED:
            projections = 2.0 * (shape.layer_parameters(shape.top_k) - 2 * shape.hidden) * tokens
            attention = 2.0 * shape.hidden * shape.sequence * tokens
            seconds = 1 / ACHIEVED[device]
            return cls((projections + attention) * seconds, (projections + 2 * attention) * seconds, projections * seconds)
        return cls(*(float(part) / 1e3 for part in device.split(",")))

    def input(self, x: torch.Tensor) -> torch.Tensor:
        """Wait for a layer's forward now, and for the gradient of its input when that is computed."""
        return _PacedInput.apply(x, self)

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """Wait for the gradients of a layer's weights when that of this one is computed."""
        return _PacedWeight.apply(weight, self)

    def wait(self, what: str, seconds: float) -> None:
        """Stand still for a while, under a mark."""
        with mark("pace", what):
            time.sleep(seconds * self.factor)


class _PacedInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pace: Pace) -> torch.Tensor:  # noqa: ANN401
        ctx.pace = pace
        pace.wait("fwd", pace.forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        ctx.pace.wait("dgrad", ctx.pace.input_gradient)
        return grad, None


class _PacedWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, pace: Pace) -> torch.Tensor:  # noqa: ANN401
        ctx.pace = pace
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        ctx.pace.wait("wgrad", ctx.pace.weight_gradient)
        return grad, None
