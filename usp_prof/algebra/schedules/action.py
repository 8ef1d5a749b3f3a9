"""What does a pipeline rank do? Actions: one kind of work for one micro-batch on one stage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """PyTorch's letters: forward, full backward, and its two halves (input gradient, weight gradient)."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One action; stages count through all virtual stages."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        """Write it as PyTorch does: 1F0."""
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = tuple[tuple[Action, ...], ...]
"""The actions of each pipeline rank, in the order in which it takes them."""
