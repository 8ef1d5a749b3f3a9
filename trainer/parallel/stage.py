"""Plan of a pipeline stage: parts that its layers share, and how they declare weights.

Messages: none.
Called by: `build.py` makes one per stage; every layer in `decoder.py`, `layers.py` and `experts.py` takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainer.foundation.weight_gradients import multiply
from trainer.parallel.weights import Initializer, Note, Sizes, constant, declare, normal, normal_each

if TYPE_CHECKING:
    from trainer.configuration.config import Config
    from trainer.foundation.weight_gradients import Product, WeightGradStore
    from trainer.parallel.mesh import Mesh
    from trainer.parallel.tensor_parallel import BlockEdges

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Causal attention from queries to keys and values, ``[batch, heads, local sequence, head width]``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Parts that all layers of a stage share, and how they declare weights."""

    config: Config
    mesh: Mesh
    device: torch.device
    product: Product
    """How the layers' projections multiply; the head stays in the wider type."""
    edges: BlockEdges
    """Communication of tensor-parallel ranks at the start and the end of a block."""
    attention: Attend
    grad_store: WeightGradStore | None
    """Stores weight gradients between I and W; `None` if the schedule never splits a backward."""

    @property
    def multiply(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The product of an input with a weight, whose gradient may come later (split backward)."""
        return partial(multiply, product=self.product, grad_store=self.grad_store)

    def normal(self, name: str) -> Initializer:
        """Return an initializer that draws a weight from its name and the seed of the run."""
        return normal(name, self.config.options.seed)

    def split(self, sizes: Sizes, *, dim: int, name: str = "") -> nn.Parameter:
        """Declare this tensor-parallel rank's part of a weight, split along `dim`; without a name it starts at zero."""
        group = self.mesh["tp"]
        length = sizes[dim] // group.size
        offsets = tuple(group.rank * length if axis == dim else 0 for axis in range(len(sizes)))
        part = tuple(length if axis == dim else size for axis, size in enumerate(sizes))
        return declare(part, self.config.compute, Note(self.normal(name) if name else constant(0), sizes, offsets))

    def whole_bias(self, size: int) -> nn.Parameter:
        """Declare a bias that every tensor-parallel rank has."""
        return self.replicated(constant(0), (size,))

    def replicated(self, initializer: Initializer, sizes: Sizes, *, sees_part: bool = False) -> nn.Parameter:
        """Declare a weight that every tensor-parallel rank has.

        If a rank processes only a slice of the sequence (sequence parallelism) or some heads (`sees_part`), its
        gradient is partial and must be summed over tp. If not, every rank has the whole gradient.
        """
        kind = "partial" if sees_part or self.config.options.sequence_parallel else "copied"
        return declare(sizes, self.config.compute, Note(initializer, sizes, (0,) * len(sizes), kind))

    def expert_weight(self, name: str, rows: int, columns: int) -> nn.Parameter:
        """Declare the matrices of this rank's experts, ``[local experts, rows, columns]``."""
        group, experts = self.mesh["ep"], self.config.shape.experts
        local = experts // group.size
        initializer = normal_each(name, self.config.options.seed)
        note = Note(initializer, (experts, rows, columns), (group.rank * local, 0, 0), "expert")
        return declare((local, rows, columns), self.config.compute, note)
