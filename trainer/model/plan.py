"""What do the layers of a stage need to know beside their sizes? How they are split, multiplied and slowed down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.pace import Pace
from trainer.parallel.context import ContextAttention
from trainer.parallel.mesh import Mesh
from trainer.settled import Settled
from trainer.slow import Brake

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Gives a tensor times a weight, in whatever precision."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the layers need to know beside their sizes."""

    settled: Settled
    mesh: Mesh
    device: torch.device
    dtype: torch.dtype
    """Of the weights."""
    multiply: Multiply
    """How the layers' projections multiply; the head stays in the wider type."""
    attention: ContextAttention
    documents: int
    """Into how many documents a sequence is cut on this rank; attention does not look across them."""
    crowd: torch.Tensor | float
    """Added to the router's preferences, to send too many tokens to some experts (a fault)."""
    pace: Pace | None
    brake: Brake | None
