"""Slice: weights that a rank updates, as the optimizer has them and as the model has them.

Whatever the ZeRO stage, the optimizer gets plain local tensors: flat buckets (`data.py`) or this rank's part of them,
also where that is all it keeps (`sharding.py`). It runs on the device, or in host memory (`offload.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.parallel.placement import Box


@dataclass(slots=True)
class Slice:
    """Some weights that this rank updates: what the optimizer has of them, what the model has, and their gradient."""

    master: torch.Tensor
    """What the optimizer updates and checkpoints store, in fp32 or wider; in host memory where it is offloaded."""
    weights: torch.Tensor
    """What the model reads: the masters themselves, or their copy in the layers' type or on the device."""
    copies: int
    """How many ranks of the world hold this very slice; a norm over all ranks must count it once."""
    boxes: list[Box]
    """Which weights lie in it, for checkpoints."""
    tied: bool = False
    """Whether it is a tied embedding that two pipeline stages hold a copy of; their gradients are to be added."""
    written: bool = True
    """Whether a checkpoint stores it from here; not so for the second copy of a tied embedding."""
    gradient: torch.Tensor | None = None
    """In the masters' type, on the model's device; there from `finish` to `publish`."""


def room_on_host(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Allocate host memory as large as a tensor; page-locked where a GPU copies from and to it, beside other work."""
    return torch.empty(like.shape, dtype=dtype, pin_memory=like.is_cuda)
