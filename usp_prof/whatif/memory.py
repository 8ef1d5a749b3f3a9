"""Memory of a layout on its fullest rank: the footprint of its configuration, part by part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from usp_prof import conventions
from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.hardware import Precision, precision
from usp_prof.schedule import Schedule, named
from usp_prof.whatif.reordering.stages import worst

if TYPE_CHECKING:
    from usp_prof.whatif.layout import Layout

_WIDE = (Precision.FP32, Precision.TF32, Precision.FP64)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest rank."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def whole(self) -> float:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits


def memory_of(layout: Layout) -> Memory | None:
    """Work out the memory of a layout; `None` where the description lacks what it takes."""
    model = layout.model
    if model is None or not layout.micro_batch_tokens or not conventions.total_parameters(model) or not model.hidden:
        return None
    configuration = configuration_of(layout)
    found = worst(replace(model, sequence=layout.micro_batch_tokens), configuration)
    return Memory(
        parameters=found.parameter_bytes + found.gathered_bytes,
        gradients=found.gradient_bytes,
        optimizer=found.optimizer_bytes,
        activations=found.activation_bytes,
        logits=found.logit_bytes,
    )


def configuration_of(layout: Layout) -> Configuration:
    """Give the layout as a configuration whose micro-batch is one sequence of all of its tokens."""
    schedule = named(layout.schedule) or Schedule.ONE_F_ONE_B
    return Configuration(
        dp=layout.dp,
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        ep=layout.ep,
        zero=max(layout.zero, 0),
        micro_batches=max(layout.micro_batches, 1),
        schedule=str(schedule),
        chunks=max(layout.chunks, 1) if schedule.traits.is_looped else 1,
        recompute=Recompute(layout.recompute) if layout.recompute in list(Recompute) else Recompute.NONE,
        dtype="fp32" if precision(layout.dtype) in _WIDE else "bf16",
    )
