"""Where does a layer's work begin and end, forward and backward, for those who make it last longer?"""

from __future__ import annotations

import time

import torch

from trainer.both_ways import in_passing


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
        return in_passing(x, self.start, self.backward_ends)

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """Stand behind the layer."""
        return in_passing(x, self.forward_ends, self.start)
