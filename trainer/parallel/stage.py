"""Stage: what its layers are built from (`Plan`), and what parallelism asks of it (`Stage`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from trainer.configuration.config import Config
from trainer.foundation.weight_gradients import Postponed, Product, multiply
from trainer.instrumentation.pacing import Brake, Pace
from trainer.parallel import weights
from trainer.parallel.context_parallel import ContextAttention
from trainer.parallel.mesh import Mesh
from trainer.parallel.tensor_parallel import BlockEdges


class Stage(nn.Module):
    """A pipeline stage as data parallelism and the pipeline see it; `model.decoder` says what it computes."""

    first: bool
    last: bool
    layers: nn.ModuleDict
    """By number, in the order in which they run."""
    rotary: torch.Tensor
    postponed: Postponed | None
    """Where an I leaves its weight gradients; `None` where the schedule never splits a backward."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the layers need to know beside their sizes."""

    config: Config
    mesh: Mesh
    device: torch.device
    dtype: torch.dtype
    """Of the weights."""
    product: Product
    """How the layers' projections multiply; the head stays in the wider type."""
    edges: BlockEdges
    """What tensor-parallel ranks do at the start and at the end of a block."""
    attention: ContextAttention
    router_bias: torch.Tensor | float
    """Added to the router's preferences, to send too many tokens to some experts (a fault)."""
    postponed: Postponed | None
    """Where the stage's weight gradients wait for their W; `None` where the schedule never splits a backward."""
    pace: Pace | None
    brake: Brake | None

    @property
    def multiply(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The product of an input with a weight, whose gradient may come later (split backward)."""
        return partial(multiply, product=self.product, postponed=self.postponed)

    def split_weight(self, name: str, whole: tuple[int, ...], *, dim: int) -> nn.Parameter:
        """Create this tensor-parallel rank's part of a weight that is drawn by its name, split along `dim`."""
        return weights.sharded(self, weights.normal(self, name), whole, dim)

    def split_bias(self, size: int) -> nn.Parameter:
        """Create this tensor-parallel rank's part of a bias."""
        return weights.sharded(self, weights.Constant(0), (size,), 0)

    def whole_bias(self, size: int) -> nn.Parameter:
        """Create a bias that every tensor-parallel rank has."""
        return weights.replicated(self, weights.Constant(0), (size,))
