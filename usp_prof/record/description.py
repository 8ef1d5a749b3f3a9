"""What was trained, as far as counting its work needs it: from a dataclass, a dict or a Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from usp_prof.contract import ModelEntry
from usp_prof.conventions import complete

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "name": ("name", "model_type", "_name_or_path"),
    "layers": ("layers", "num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "hidden": ("hidden", "hidden_size", "dim", "d_model", "n_embd"),
    "heads": ("heads", "num_attention_heads", "n_heads", "n_head"),
    "kv_heads": ("kv_heads", "num_key_value_heads", "n_kv_heads", "num_query_groups"),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn_hidden": ("ffn_hidden", "intermediate_size", "hidden_dim", "ffn_hidden_size", "n_inner", "d_ff"),
    "vocab": ("vocab", "vocab_size"),
    "sequence": ("sequence", "seq_len", "sequence_length", "max_seq_len"),
    "experts": ("experts", "num_local_experts", "num_experts", "n_routed_experts", "num_moe_experts"),
    "experts_per_token": ("experts_per_token", "num_experts_per_tok", "top_k", "moe_router_topk"),
    "shared_experts": ("shared_experts", "n_shared_experts", "num_shared_experts"),
    "expert_ffn_hidden": ("expert_ffn_hidden", "moe_intermediate_size", "moe_ffn_hidden_size"),
    "moe_layers": ("moe_layers",),
    "gated_ffn": ("gated_ffn",),
    "tied_embeddings": ("tied_embeddings", "tie_word_embeddings"),
    "parameters": ("parameters",),
    "active_parameters": ("active_parameters",),
    "embedding_parameters": ("embedding_parameters",),
    "flop_per_token": ("flop_per_token",),
}
"""Our field, and what it is called in configurations: ours, Hugging Face's, torchtitan's, nanoGPT's, Megatron's."""

_UNGATED = frozenset({"gpt2", "gpt_neox", "opt", "bloom", "gptj", "gpt_neo", "falcon", "phi"})
"""Hugging Face model types whose feed-forward block has two matrices, not three."""


def describe_model(model: object, sequence: int = 0) -> ModelEntry | None:
    """Read a model's description; `None` when there is none. A run's `sequence` is not the model's maximum: say it."""
    if model is None:
        return None
    if isinstance(model, ModelEntry):
        return complete(replace(model, sequence=sequence or model.sequence))
    values = _values(getattr(model, "config", model))
    entry = {name: found for name, aliases in _ALIASES.items() if (found := _first(values, aliases)) not in {None, ""}}
    if "gated_ffn" not in entry and values.get("model_type") in _UNGATED:
        entry["gated_ffn"] = False
    described = ModelEntry(**entry)
    described.sequence = sequence or described.sequence
    if not described.head_dim and described.heads:
        described.head_dim = described.hidden // described.heads
    if not described.kv_heads:
        described.kv_heads = described.heads
    return complete(described)


def _values(model: object) -> Mapping[str, Any]:
    if isinstance(model, Mapping):
        return model
    to_dict = getattr(model, "to_dict", None)
    if callable(
        to_dict
    ):  # before dataclasses: Hugging Face's are such, and keep the model's type outside of the fields
        return dict(to_dict())
    if is_dataclass(model) and not isinstance(model, type):
        return asdict(model)
    return dict(vars(model))


def _first(values: Mapping[str, Any], aliases: tuple[str, ...]) -> Any:  # noqa: ANN401 - a configuration's value
    for alias in aliases:
        value = values.get(alias)
        if isinstance(value, (str, bool, int, float)) or (alias == "flop_per_token" and isinstance(value, Mapping)):
            return value
    return None
