"""Stage: what its layers are built from (`Plan`), and what parallelism asks of it (`Stage`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from trainer.configuration.settled import Settled
from trainer.foundation.weight_gradients import Postponed, Product
from trainer.parallel.context import ContextAttention
from trainer.parallel.mesh import Mesh
from trainer.synthetic.pacing import Brake, Pace


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

    settled: Settled
    mesh: Mesh
    device: torch.device
    dtype: torch.dtype
    """Of the weights."""
    product: Product
    """How the layers' projections multiply; the head stays in the wider type."""
    attention: ContextAttention
    crowd: torch.Tensor | float
    """Added to the router's preferences, to send too many tokens to some experts (a fault)."""
    postponed: Postponed | None
    """Where the stage's weight gradients wait for their W; `None` where the schedule never splits a backward."""
    pace: Pace | None
    brake: Brake | None
