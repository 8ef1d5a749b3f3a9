"""What was trained, as far as counting its work needs it: from a dataclass, a dict or a Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from usp_prof import architecture
from usp_prof.contract import ModelEntry, model_entry
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

_LAYER_BY_LAYER = ("layer_kinds", "layer_order", "mtp_kind", "mtp_layers", "other_parameters", "notes")
"""Fields that come from reading a configuration layer by layer, and from no single field of it."""

_NOT_PLAIN = (
    "sliding_window", "window_size", "layer_types", "kv_lora_rank", "multi_latent_attention", "mtp_num_layers",
    "first_k_dense_replace", "moe_layer_freq", "n_dense_layers", "linear_num_value_heads", "attention_chunk_size",
)  # fmt: skip
"""Fields of other libraries' configurations whose models are not counted as a plain decoder."""


def describe_model(model: object, sequence: int = 0) -> ModelEntry | None:
    """Read a model's description; `None` when there is none. A run's `sequence` is not the model's maximum: say it.

    A Hugging Face configuration is read layer by layer. Where that cannot be done, the entry's notes say why, and it
    has no FLOP. Multi-token-prediction layers are not counted: Hugging Face's classes build none.
    """
    if model is None:
        return None
    if isinstance(model, ModelEntry):
        return complete(replace(model, sequence=sequence or model.sequence))
    values = _values(getattr(model, "config", model))
    if architecture.is_configuration(values):
        return _read_layers(values, sequence)
    not_plain = [name for name in _NOT_PLAIN if values.get(name)]
    if not_plain and not values.get("flop_per_token"):
        return _uncounted(values, sequence, f"it has {', '.join(not_plain)}: give its Hugging Face configuration")
    entry = {name: found for name, aliases in _ALIASES.items() if (found := _first(values, aliases)) not in {None, ""}}
    described = model_entry(entry)
    described.sequence = sequence or described.sequence
    if not described.head_dim and described.heads:
        described.head_dim = described.hidden // described.heads
    if not described.kv_heads:
        described.kv_heads = described.heads
    return complete(described)


def _read_layers(values: Mapping[str, Any], sequence: int) -> ModelEntry:
    try:
        described = architecture.read(values)
    except architecture.ArchitectureError as error:
        return _uncounted(values, sequence, str(error))
    described.sequence = sequence
    return complete(described)


def _uncounted(values: Mapping[str, Any], sequence: int, reason: str) -> ModelEntry:
    """Keep the name and the reason alone: sizes would be counted as a plain model's."""
    name = str(_first(values, _ALIASES["name"]) or "")
    return ModelEntry(name=name, sequence=sequence, notes=[f"the model's FLOP cannot be counted: {reason}"])


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
