"""What does a token of this model cost, and where does its description come from? Manifest, file, or HF config."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from usp_prof import conventions
from usp_prof.contract import ModelEntry
from usp_prof.model.errors import InputError, UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HFU_FACTOR = {"": 1.0, "none": 1.0, "full": 4 / 3}
"""What full recomputation costs over the model's own FLOP: forward once more. Selective recomputation is counted."""

# Our field, then the names that Hugging Face configurations give to it.
_HF = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "ffn_hidden": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token"),
    "shared_experts": ("n_shared_experts",),
    "expert_ffn_hidden": ("moe_intermediate_size",),
}
_UNGATED = ("gpt2", "gpt_neox", "gptj", "gpt_bigcode", "mpt", "opt", "bloom", "falcon", "phi")


def check_convention(name: str) -> str:
    """Give the convention's name back, or say which there are."""
    if name not in conventions.CONVENTIONS:
        raise unknown_name("FLOP convention", name, conventions.CONVENTIONS)
    return name


def load(path: Path, sequence: int = 0) -> ModelEntry:
    """Read a model description: the fields of our manifest, or a Hugging Face `config.json`.

    The longest sequence that a model allows says nothing about training, so that `sequence` is never taken from it.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no model description: {error}", hint=_HINT) from error
    if not isinstance(data, dict):
        raise InputError(f"{path} is no model description: no JSON object", hint=_HINT)
    inner = data.get("model")
    entry = describe(inner if isinstance(inner, dict) else data)
    if sequence:
        entry.sequence = sequence
    if not entry.layers or not entry.hidden:
        raise UsageError(f"{path} gives no layers or hidden size", hint=_HINT)
    return entry


_HINT = "give a Hugging Face config.json, or JSON with layers, hidden, heads, kv_heads, ffn_hidden, vocab, sequence"


def describe(data: Mapping[str, Any]) -> ModelEntry:
    """Make a model description of our own fields or of Hugging Face's, whichever are there."""
    own = {field.name for field in fields(ModelEntry)}
    entry = ModelEntry(**{name: value for name, value in data.items() if name in own and value is not None})
    for name, spellings in _HF.items():
        if not getattr(entry, name):
            setattr(entry, name, next((int(data[word]) for word in spellings if data.get(word)), 0))
    if not entry.head_dim and entry.heads:
        entry.head_dim = entry.hidden // entry.heads
    entry.kv_heads = entry.kv_heads or entry.heads
    if "model_type" in data:
        _take_family(entry, data)
    return entry


def _take_family(entry: ModelEntry, data: Mapping[str, Any]) -> None:
    """Fill in what a Hugging Face model's family implies."""
    family = str(data["model_type"])
    entry.name = entry.name or str(data.get("_name_or_path") or family)
    entry.gated_ffn = family not in _UNGATED
    entry.tied_embeddings = bool(data.get("tie_word_embeddings", family in ("gpt2", "mpt", "opt", "bloom")))
    if entry.experts:
        dense = int(data.get("first_k_dense_replace") or 0)
        entry.moe_layers = entry.layers - dense
        entry.expert_ffn_hidden = entry.expert_ffn_hidden or entry.ffn_hidden
    if not entry.ffn_hidden:
        entry.ffn_hidden = 4 * entry.hidden


def per_token(entry: ModelEntry, convention: str = conventions.DEFAULT) -> float | None:
    """Give the model FLOP of one token, forward and backward, by a named convention; `None` when it cannot be known."""
    check_convention(convention)
    declared = entry.flop_per_token.get(convention)
    return declared or conventions.flop_per_token(entry).get(convention)


def hardware_per_token(entry: ModelEntry, convention: str, recompute: str) -> float | None:
    """Give the FLOP of one token that the hardware runs, recomputation included; `None` when it cannot be known."""
    model = per_token(entry, convention)
    if model is None:
        return None
    if recompute in HFU_FACTOR:
        return model * HFU_FACTOR[recompute]
    if recompute == "selective":
        return model + _core_attention(entry, convention)
    return None


def _core_attention(entry: ModelEntry, convention: str) -> float:
    """Count the scores and weighted values of forward once more, as selective recomputation does: a third of them."""
    whole = conventions.attention_flop_per_token(entry) or 0.0
    return whole / 3 * (0.5 if convention == conventions.CAUSAL else 1.0)


def parts(entry: ModelEntry) -> dict[str, float]:
    """Give the model FLOP of one token by what it is spent on, under `matmul`; used to explain differences."""
    multiplying, attention = conventions.multiplying_parameters(entry), conventions.attention_flop_per_token(entry)
    embedding = float(conventions.vocabulary_parameters(entry))
    return {
        "layers": 6.0 * (multiplying - embedding) if multiplying is not None else float("nan"),
        "head": 6.0 * embedding,
        "attention": attention if attention is not None else float("nan"),
    }
