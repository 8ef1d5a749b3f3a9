"""How do many ranks on few cores behave like a cluster? Compute is replaced by timed waits.

Each layer waits for as long as a device would compute it: forward, gradient of its input, gradient of its weights. A
waiting process uses no core, so pipelines, bubbles and stragglers come out as on real devices, while a small model
still trains underneath. Every wait is marked ``pace::...`` and the manifest says ``paced``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import torch

from trainer.both_ways import in_passing
from trainer.edges import Edges
from trainer.errors import OptionError
from trainer.injection import Drag
from trainer.model.shape import ModelShape
from usp_prof import record

ACHIEVED = {"h100": 600e12, "a100": 200e12, "b200": 1300e12}
"""Dense bf16 FLOP/s that large products reach on a device, about 0.6 of its peak; a pace, not a claim."""


@dataclass
class Pace(Edges):
    """How long one layer takes on the device that is played, in seconds; `drag` slows it down."""

    forward: float
    input_gradient: float
    weight_gradient: float
    attention: float = 0.0
    """Of ring attention, forward, when the ranks' shares are equal; beside the rest of the layer."""
    experts: float = 0.0
    """Of the routed experts, forward, when loads are equal; beside the rest of the layer."""
    drag: Drag | None = None
    began: float = 0.0

    @classmethod
    def of(cls, device: str, shape: ModelShape, tokens: int, documents: int = 1) -> Pace:
        """Derive the waits from a layer's arithmetic, or take ``F,I,W[,A[,E]]`` in milliseconds as given."""
        if device in ACHIEVED:
            projections = 2.0 * (shape.layer_parameters(shape.top_k) - 2 * shape.hidden) * tokens
            attention = 2.0 * shape.hidden * shape.sequence * tokens / documents
            second = ACHIEVED[device]
            return cls((projections + attention) / second, (projections + 2 * attention) / second, projections / second)
        try:
            times = [float(part) / 1e3 for part in device.split(",")]
        except ValueError:
            times = []
        if not 3 <= len(times) <= 5:
            known = ", ".join(ACHIEVED)
            raise OptionError(f"--pace {device}: no such device", hint=f"{known}, or times such as 20,20,20")
        return cls(*times)

    def work(self, x: torch.Tensor, seconds: float) -> torch.Tensor:
        """Wait for work that differs from rank to rank, forward once and backward twice as long."""
        return in_passing(x, partial(self.wait, "fwd", seconds), partial(self.wait, "dgrad", 2 * seconds))

    def forward_ends(self) -> None:
        """Wait for the rest of the layer's forward."""
        self.wait("fwd", self.forward)

    def backward_ends(self) -> None:
        """Wait for the rest of the gradient of its input."""
        self.wait("dgrad", self.input_gradient)

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """Wait for the gradients of a layer's weights when that of this one is computed."""
        return in_passing(weight, lambda: None, self.weight_ends)

    def weight_ends(self) -> None:
        """Wait for the gradients of its weights."""
        self.start()
        self.wait("wgrad", self.weight_gradient)

    def wait(self, what: str, seconds: float) -> None:
        """Stand still, under a mark, until the layer has taken as long as on the device that is played.

        What the small model's own arithmetic took is part of it; what communication took is not.
        """
        spent = time.thread_time() - self.began
        self.start()
        with record.mark("pace", what):
            time.sleep(max(seconds * (self.drag.factor if self.drag is not None else 1.0) - spent, 0.0))
