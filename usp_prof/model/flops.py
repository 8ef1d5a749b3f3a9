"""FLOPs per token by a named convention, and model descriptions from files.

A description has our own fields (a manifest's `model`), or is a Hugging Face `config.json`, which is read layer by
layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from math import isnan
from pathlib import Path
from typing import Any

from usp_prof import architecture, conventions
from usp_prof.contract import ModelEntry, model_entry
from usp_prof.model.errors import InputError, UsageError, unknown_name
from usp_prof.model.files import ERRORS, checked, read_json

HFU_FACTOR = {"": 1.0, "none": 1.0, "full": 4 / 3}
"""Cost of full recomputation relative to model FLOPs: one more forward. Selective recomputation is counted."""


def check_convention(name: str) -> str:
    """Return the name of the convention, or raise an error that lists all."""
    if name not in conventions.CONVENTIONS:
        raise unknown_name("FLOP convention", name, conventions.CONVENTIONS)
    return name


def load(path: Path, sequence: int = 0) -> ModelEntry:
    """Load a model description: the fields of our manifest, or a Hugging Face `config.json`.

    The longest sequence that a model allows says nothing about training, so `sequence` is never taken from it.
    """
    data = read_json(path, "model description", _HINT)
    if not isinstance(data, dict):
        raise InputError(f"{path} is not a model description: not a JSON object", hint=_HINT)
    inner = data.get("model")
    try:
        entry = describe(inner if isinstance(inner, dict) else data)
        entry = checked(ModelEntry, asdict(entry))
    except ERRORS as error:
        raise InputError(f"{path} is not a model description: {error}", hint=_HINT) from error
    if sequence:
        entry.sequence = sequence
    if not entry.flop_per_token and not (entry.layers and entry.hidden):
        raise UsageError(f"{path} has no layers or hidden size", hint=_HINT)
    return entry


_HINT = "give a Hugging Face config.json, or JSON with layers, hidden, heads, kv_heads, ffn_hidden, vocab, sequence"


def describe(data: Mapping[str, Any]) -> ModelEntry:
    """Build a model description from our own fields, or from a Hugging Face configuration layer by layer.

    Our own fields take precedence over those of a configuration.
    """
    own = {field.name: data[field.name] for field in fields(ModelEntry) if data.get(field.name) is not None}
    if not architecture.is_configuration(data):
        entry = model_entry(own)
        if not entry.head_dim and entry.heads:
            entry.head_dim = entry.hidden // entry.heads
        entry.kv_heads = entry.kv_heads or entry.heads
        unknown = sorted(name for name in data if name not in {field.name for field in fields(ModelEntry)})
        if unknown:
            entry.notes = [*entry.notes, f"fields of the description that were not understood: {', '.join(unknown)}"]
        return entry
    of_hugging_face = {name: value for name, value in data.items() if name not in own or name in _SHARED_NAMES}
    try:
        entry = architecture.read(of_hugging_face, mtp_layers=int(own.get("mtp_layers", 0)))
    except architecture.ArchitectureError as error:
        if own.get("flop_per_token"):
            note = f"FLOP are those that the description declares; they could not be counted: {error}"
            return model_entry({**own, "notes": [*own.get("notes", []), note]})
        raise UsageError(f"this model's FLOP cannot be counted: {error}", hint=_DECLARE) from error
    return replace(entry, **{name: value for name, value in own.items() if name in _DECLARED})


_DECLARED = ("name", "sequence", "parameters", "active_parameters", "flop_per_token")
_SHARED_NAMES = ("name", "head_dim")
_DECLARE = 'add "flop_per_token": {"palm": ...} of your own count, or describe it with layers, hidden, heads and so on'


def per_token(entry: ModelEntry, convention: str = conventions.DEFAULT) -> float | None:
    """Return model FLOPs per token (forward and backward) under `convention`, or `None` if unknown."""
    check_convention(convention)
    declared = entry.flop_per_token.get(convention)
    return declared or conventions.flop_per_token(entry).get(convention)


def hardware_per_token(entry: ModelEntry, convention: str, recompute: str) -> float | None:
    """Return hardware FLOPs per token, including recomputation, or `None` if unknown."""
    model = per_token(entry, convention)
    if model is None:
        return None
    if recompute in HFU_FACTOR:
        return model * HFU_FACTOR[recompute]
    if recompute == "selective":
        return with_repeats(entry, convention, 0.0, 1.0)  # scores and weighted values
    return None


def with_repeats(entry: ModelEntry, convention: str, products: float, attention: float) -> float | None:
    """Return FLOPs per token if forward's products and attention ran again this number of times.

    A third of each is forward. Attention without an op of its own (NaN) consists of products.
    """
    model = per_token(entry, convention)
    if model is None:
        return None
    scores = conventions.attention_flop_per_token(entry, convention) or 0.0
    again = products if isnan(attention) else attention
    return model + ((model - scores) * products + scores * again) / 3


def parts(entry: ModelEntry) -> dict[str, float]:
    """Return model FLOPs per token by part, under `matmul`; used to explain differences."""
    multiplying, attention = conventions.multiplying_parameters(entry), conventions.attention_flop_per_token(entry)
    embedding = float(conventions.vocabulary_parameters(entry))
    return {
        "layers": 6.0 * (multiplying - embedding) if multiplying is not None else float("nan"),
        "head": 6.0 * embedding,
        "attention": attention if attention is not None else float("nan"),
        "recurrence": conventions.recurrence_flop_per_token(entry),
    }
