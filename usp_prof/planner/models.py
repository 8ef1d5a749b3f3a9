"""Models by name: published shapes of common models; other models are read from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.files import is_there
from usp_prof.model.flops import describe, load
from usp_prof.model.shape import missing_sizes

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry

FILE = Path(__file__).with_name("models.json")
SEQUENCES = {
    "Llama-2": 4096, "Llama-3": 8192, "Llama-4": 8192, "GPT-3": 2048, "Nemotron": 4096, "Mixtral": 8192, "Grok": 8192,
    "Qwen": 4096, "GPT-OSS": 4096, "DeepSeek": 4096, "Kimi": 4096,
}  # fmt: skip
"""Tokens per sequence in pretraining, by the prefix of a known model's name; used if the question names none."""


def model_named(name: str, sequence: int = 0) -> ModelEntry:
    """Return a model by name (`Llama-3-8B`, `llama3.1 8b`), or from a file (config.json, or our own fields)."""
    path = Path(name)
    if path.suffix == ".json" or is_there(path):
        return _whole(load(path, sequence), path)
    known_name = _by_letters().get(_letters(name))
    if known_name is None:
        raise unknown_name("model", name, list(known()))
    model = describe(json.loads(FILE.read_text())[known_name])
    return replace(model, name=known_name, sequence=sequence, flop_per_token={})


def usual_sequence(model: ModelEntry) -> int:
    """Return the tokens per sequence that a known model was pretrained with; 0 for other models."""
    return next((length for start, length in SEQUENCES.items() if model.name.startswith(start)), 0)


def planned_model(name: str, sequence: int, recorded: ModelEntry | None, hint: str) -> ModelEntry:
    """Return the model to plan for: the named one, else that of the recorded run.

    `hint` says how to supply the sequence length if the description lacks it.
    """
    model = model_named(name, sequence) if name else recorded
    assert model is not None  # noqa: S101 - one of the two was given
    if sequence:
        model = replace(model, sequence=sequence, flop_per_token={})
    if not model.sequence:
        raise UsageError("the model's description gives no sequence length", hint=hint)
    return model


def _whole(model: ModelEntry, path: Path) -> ModelEntry:
    if missing := missing_sizes(model):
        raise UsageError(
            f"{path} gives no {', '.join(missing)}: without it, this would be the plan of a smaller model",
            hint="give a Hugging Face config.json, or JSON with layers, hidden, heads, kv_heads, ffn_hidden, vocab",
        )
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


@lru_cache(maxsize=1)
def known() -> tuple[str, ...]:
    """Return the names of the models that need no file."""
    return tuple(json.loads(FILE.read_text()))


@lru_cache(maxsize=1)
def _by_letters() -> dict[str, str]:
    return {_letters(name): name for name in known()}


def _letters(name: str) -> str:
    """Reduce a name to what distinguishes shapes: Llama 3.1 becomes Llama 3; remarks in brackets are dropped."""
    letters = "".join(c for c in name.lower().split("(")[0] if c.isalnum())
    return letters.replace("llama31", "llama3").replace("meta", "")
