"""How is a rank made slower than it is? Its layers do more arithmetic than they need, forward and backward alike.

On a CPU the extra work lasts as long as the layer's own share of the processor did, times the factor; on a GPU, which
must not be waited for, it is the layer's FLOP again. Under pacing the waits are stretched instead (`pace`).
"""

from __future__ import annotations

import time

import torch

from trainer.edges import Edges
from trainer.injection import Drag
from usp_prof import record


class Brake(Edges):
    """Slows the layers of a chunk by the drag's present factor."""

    def __init__(self, drag: Drag, layer_flop: float, device: torch.device, dtype: torch.dtype) -> None:
        self.drag, self.layer_flop = drag, layer_flop
        # On a GPU a layer is several products, so that a factor comes out finely.
        size = 64 if device.type == "cpu" else min(max(int((layer_flop / 16) ** (1 / 3)), 64), 4096)
        self.matrix = torch.zeros(size, size, device=device, dtype=dtype)
        self.began = 0.0

    def forward_ends(self) -> None:
        """Do again what forward took."""
        self.burn(self.layer_flop)

    def backward_ends(self) -> None:
        """Do again what backward took."""
        self.burn(2 * self.layer_flop)

    def burn(self, flop: float) -> None:
        """Do the extra work."""
        more = self.drag.factor - 1
        if more <= 0:
            return
        with record.mark("fault", "slow_rank"), torch.no_grad():
            if self.matrix.is_cuda:
                for _ in range(round(more * flop / (2 * self.matrix.shape[0] ** 3))):
                    torch.mm(self.matrix, self.matrix)
                return
            end = time.thread_time() + more * (time.thread_time() - self.began)
            while time.thread_time() < end:
                torch.mm(self.matrix, self.matrix)
