"""Models that are planned: their sequence lengths, and the parts of them that a plan omits."""

from __future__ import annotations

from dataclasses import replace

from usp_prof.contract import ModelEntry
from usp_prof.model.errors import UsageError
from usp_prof.model.known_models import model_named

SEQUENCES = {
    "Llama-2": 4096, "Llama-3": 8192, "Llama-4": 8192, "GPT-3": 2048, "Nemotron": 4096, "Mixtral": 8192, "Grok": 8192,
    "Qwen": 4096, "GPT-OSS": 4096, "DeepSeek": 4096, "Kimi": 4096,
}  # fmt: skip
"""Tokens per sequence in pretraining, by the prefix of a known model's name; used if the question names none."""


def planned_model(name: str, sequence: int, recorded: ModelEntry | None, hint: str) -> ModelEntry:
    """Return the model to plan for: the named one, else that of the recorded run.

    Without a sequence length, a known model has its usual one. `hint` says how to supply it for other models.
    """
    model = model_named(name, sequence) if name else recorded
    assert model is not None  # noqa: S101 - one of the two was given
    if sequence:
        model = replace(model, sequence=sequence, flop_per_token={})
    elif not model.sequence:
        usual = next((length for start, length in SEQUENCES.items() if model.name.startswith(start)), 0)
        model = replace(model, sequence=usual)
    if not model.sequence:
        raise UsageError("the model's description gives no sequence length", hint=hint)
    return model


def not_modelled(model: ModelEntry) -> tuple[str, ...]:
    """Return the parts of a model that a plan omits or simplifies."""
    notes = list(model.notes)
    some_mixed = 0 < model.moe_layers < model.layers
    if len(set(model.layer_order)) > 1 or (some_mixed and not model.layer_order):
        notes.append("its layers differ: each stage is taken to hold mean layers")
    kinds = [model.layer_kinds[place] for place in sorted(set(model.layer_order))]
    recurrences = sorted({block.form for kind in kinds for block in kind.blocks if block.kind == "recurrence"})
    if recurrences:
        notes.append(f"{', '.join(recurrences)}: states and gates that backward needs are not in the activations")
    if model.mtp_layers:
        notes.append("multi-token prediction is counted in MFU, and neither in memory nor in the step")
    return tuple(notes)
