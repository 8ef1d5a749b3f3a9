"""How much memory would a layout take on its fullest rank? Parameters, gradients, optimizer and activations by formula.

Bytes of a parameter after the playbook's table: mixed precision keeps 2 + 2 and 12 for fp32 masters and Adam's
moments, fp32 training 4 + 4 + 8; ZeRO divides optimizer (1), gradients (2) and parameters (3) by the replicas.
Activations of a layer after Fujii et al. (arXiv 2411.06465): s b h (12 + 4 k / a + 8 f / h) bytes with flash attention
in bf16, divided by tp and cp; 2 s b h where everything is recomputed. A stage keeps as many micro-batches as its
schedule has under way. It tells what a change does: fragments, libraries' buffers and the head's logits are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof import conventions
from usp_prof.algebra.schedules.orders import Schedule, named
from usp_prof.model.hardware import Precision, precision

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry
    from usp_prof.whatif.layout import Layout

_WIDE = (Precision.FP32, Precision.TF32, Precision.FP64)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest rank."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def whole(self) -> float:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def memory_of(layout: Layout) -> Memory | None:
    """Work out the memory of a layout; `None` where the description lacks what it takes."""
    model = layout.model
    held = _held_parameters(layout, model) if model else None
    if model is None or held is None or not model.hidden or not layout.micro_batch_tokens:
        return None
    wide = precision(layout.dtype) in _WIDE
    weight, moments = (4.0, 8.0) if wide else (2.0, 12.0)
    share = 1 / max(layout.dp, 1)
    zero = max(layout.zero, 0)
    return Memory(
        parameters=held * weight * (share if zero >= 3 else 1.0),
        gradients=held * weight * (share if zero >= 2 else 1.0),
        optimizer=held * moments * (share if zero >= 1 else 1.0),
        activations=_activations(layout, model) * (2.0 if wide else 1.0),
    )


def _held_parameters(layout: Layout, model: ModelEntry) -> float | None:
    """Count the parameters of the fullest stage that one rank holds before any sharding over replicas."""
    whole = conventions.total_parameters(model)
    if not whole or not model.layers:
        return None
    vocabulary = conventions.vocabulary_parameters(model)
    ends = vocabulary if model.tied_embeddings else 2 * vocabulary
    expert = conventions.ffn_parameters(model, model.expert_ffn_hidden or model.ffn_hidden)
    experts = conventions.expert_layers(model) * model.experts * expert
    blocks = max(whole - ends - experts, 0)
    at_end = ends if layout.pp == 1 else vocabulary
    return (blocks / layout.pp + at_end) / layout.tp + experts / layout.pp / max(layout.ep, 1)


def _activations(layout: Layout, model: ModelEntry) -> float:
    tokens = layout.micro_batch_tokens / (layout.tp * layout.cp)
    if layout.recompute == "full":
        layer = 2.0 * tokens * model.hidden
    else:
        heads = (model.kv_heads or model.heads) / model.heads if model.heads else 1.0
        width = (model.expert_ffn_hidden or model.ffn_hidden) * model.experts_per_token if model.experts else 0
        width = width or model.ffn_hidden or 4 * model.hidden
        layer = tokens * model.hidden * (12 + 4 * heads + 8 * width / model.hidden)
    return layer * model.layers / layout.pp * _under_way(layout)


def _under_way(layout: Layout) -> float:
    """Count the micro-batches that the first stage keeps, in those of a whole stage."""
    passes = max(layout.micro_batches, 1)
    if layout.pp == 1:
        return 1.0
    schedule = named(layout.schedule) if layout.schedule else None
    if schedule is Schedule.GPIPE:
        return float(passes)
    if schedule in (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB):
        return min(passes, layout.pp) * (1 + (layout.pp - 1) / (layout.pp * max(layout.chunks, 1)))
    if schedule is Schedule.DUALPIPE_V:
        return float(min(passes, layout.pp + 1))
    return float(min(passes, layout.pp))
