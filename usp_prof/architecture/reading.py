"""Reading: convert a Hugging Face configuration to a model entry, with notes on omitted or unknown fields."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from usp_prof.architecture import blocks
from usp_prof.architecture.families import FAMILIES, UNLISTED, Family
from usp_prof.architecture.fields import ArchitectureError, Fields
from usp_prof.architecture.layers import layers_of
from usp_prof.contract import BlockEntry, LayerEntry, ModelEntry

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_OTHER_PARTS = ("vision_config", "audio_config", "vision_tower_config", "visual", "vit_config", "talker_config")
_MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers")
_LAYER_COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "layers_block_type",
    "hybrid_override_pattern",
)
# Names of fields that set sizes: the first suspects if layers cannot be read.
_SIZING = re.compile(
    r".*(window|chunk|mamba|ssm|state|conv|linear|lora|rank|expert|moe|types|pattern|interval|period|_dim|_size|_d_"
    r"|heads|layers|shared|per_layer|index|swa|global|latent|memory|recurren|rnn|topk|top_k|width|depth|loop|local"
    r"|attention|attn|ffn|query|channels|sparse|stride|compress|cross|reuse|repeat|ngram|gate).*"
)
_OF_MIXTURES = re.compile(r".*(expert|moe|shared|intermediate|mtp|nextn).*")
"""Fields that are read after the mixers of a layer."""
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")
_OF_A_GATE = ("silu", "swish", "swiglu", "geglu", "reglu", "glu")
"""Activations of feed-forward blocks with three matrices; gelu and relu occur both with and without a gate."""


def is_configuration(data: Mapping[str, Any]) -> bool:
    """Return whether this is a Hugging Face configuration, rather than our own fields or another library's."""
    if any(isinstance(data.get(part), dict) for part in _TEXT_PARTS):
        return True
    return bool(data.get("model_type")) and any(name in data for name in _LAYER_COUNTS)


def read(data: Mapping[str, Any], mtp_layers: int = 0) -> ModelEntry:
    """Read a configuration into layers; raise `ArchitectureError` if its work cannot be counted.

    `mtp_layers` is the number of multi-token-prediction layers that the run trains. A configuration has the number in
    the checkpoint, and most trainers build none of them.
    """
    notes: list[str] = []
    text, model_type = _text_part(data, notes)
    family = FAMILIES.get(model_type, UNLISTED)
    f = Fields(text, family.defaults)
    if f.flag("is_encoder_decoder"):
        raise ArchitectureError(f"{model_type} has an encoder and a decoder, whose tokens are not counted the same way")
    kinds, order = _layers(f, family, model_type)
    entry = _entry(f, family, kinds, order)
    entry.name = str(data.get("name") or data.get("_name_or_path") or data.get("model_type") or model_type)
    _add_mtp(entry, f, mtp_layers, notes)
    _say_what_was_not_understood(f, model_type, notes)
    entry.notes = notes
    return entry


def _layers(f: Fields, family: Family, model_type: str) -> tuple[list[LayerEntry], list[int]]:
    """Read the layers; for an unlisted type, unknown fields are reported before missing decoder fields."""
    try:
        return layers_of(f, family)
    except ArchitectureError as error:
        f.get("vocab_size", "word_embed_proj_dim")  # read after the layers, and understood
        foreign = [name for name in f.not_understood() if _SIZING.fullmatch(name) and not _OF_MIXTURES.fullmatch(name)]
        if model_type in FAMILIES or not foreign:
            raise
        raise ArchitectureError(_unknown(model_type, foreign)) from error


def _unknown(model_type: str, fields: list[str]) -> str:
    return f"model type {model_type!r} is unknown, and so is the effect of {', '.join(fields)} on its work"


def _text_part(data: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], str]:
    """Return the language model's own fields; the model's other parts are omitted, with a note."""
    text, model_type = dict(data), str(data.get("model_type", ""))
    left_out = [part for part in _OTHER_PARTS if data.get(part)]
    for part in _TEXT_PARTS:
        inner = data.get(part)
        if isinstance(inner, dict) and inner:
            text, inner_type = _text_part(inner, notes)
            model_type = inner_type or model_type
            if data.get("tie_word_embeddings") is not None:
                text["tie_word_embeddings"] = data["tie_word_embeddings"]
            break
    if left_out:
        notes.append(f"{', '.join(left_out)} left out: only the language model is counted, over all of its tokens")
    return {name: value for name, value in text.items() if name not in _OTHER_PARTS}, model_type


def _entry(f: Fields, family: Family, kinds: list[LayerEntry], order: list[int]) -> ModelEntry:
    hidden, vocab = f.needed("hidden_size", "n_embd", "d_model"), f.needed("vocab_size")
    if f.size("word_embed_proj_dim", default=hidden) != hidden:
        raise ArchitectureError("word_embed_proj_dim differs from hidden_size: the embedding is projected")
    every = [block for place in order for block in kinds[place].blocks]
    attention = _most_common([block for block in every if block.kind == blocks.ATTENTION and block.v_size])
    dense = _most_common([block for block in every if block.form == "dense"])
    mixed = _most_common([block for block in every if block.form == "mixture"])
    other = family.norm_values * hidden
    if family.positions >= 0:
        other += (f.needed("n_positions", "max_position_embeddings") + family.positions) * hidden
    if family.head_bias:
        other += vocab
    entry = ModelEntry(
        layers=len(order),
        hidden=hidden,
        vocab=vocab,
        gated_ffn=family.matrices > 2,
        tied_embeddings=f.flag("tie_word_embeddings"),
        layer_kinds=kinds,
        layer_order=order,
        other_parameters=other,
    )
    if attention is not None:
        entry.heads, entry.kv_heads, entry.head_dim = attention.heads, attention.kv_heads, attention.qk_size
    if dense is not None:
        entry.ffn_hidden = dense.ffn_hidden
    if mixed is not None:
        entry.experts, entry.experts_per_token = mixed.experts, mixed.experts_per_token
        entry.expert_ffn_hidden = mixed.expert_ffn_hidden
        entry.shared_experts = round(mixed.shared_ffn_hidden / mixed.expert_ffn_hidden)
        entry.moe_layers = sum(block.form == "mixture" for block in every)
    return entry


def _most_common(entries: list[BlockEntry]) -> BlockEntry | None:
    if not entries:
        return None
    count = Counter(str(block) for block in entries)
    return max(entries, key=lambda block: count[str(block)])


def _add_mtp(entry: ModelEntry, f: Fields, trained: int, notes: list[str]) -> None:
    """Add the multi-token-prediction layer: two norms, a projection of 2 h to h, a layer like the last, a norm."""
    mtp_layers = max(f.size(name) for name in _MTP_FIELDS) * max(f.size("mtp_transformer_layers"), 1)
    if f.has("use_mtp") and not f.flag("use_mtp"):
        mtp_layers = 0
    if not mtp_layers and not trained:
        return
    last = entry.layer_kinds[entry.layer_order[-1]]
    join = blocks.projection(2 * entry.hidden, entry.hidden)
    entry.mtp_kind = LayerEntry([join, *last.blocks], last.norm_parameters + 3 * entry.hidden)
    entry.mtp_layers = trained
    if trained:
        notes.append(f"{trained} multi-token-prediction layers are counted, each with the head once more")
    else:
        notes.append(
            f"its {mtp_layers} multi-token-prediction layers are left out, since most trainers build none:"
            f' say "mtp_layers": {mtp_layers} in the file where the run trains them'
        )


def _say_what_was_not_understood(f: Fields, model_type: str, notes: list[str]) -> None:
    """Note the fields that were not interpreted; raise for an unlisted type that has any."""
    left = f.not_understood()
    is_listed = model_type in FAMILIES
    if left and not is_listed:
        raise ArchitectureError(_unknown(model_type, left))
    activation = f.get(*_ACTIVATIONS)
    if activation not in _OF_A_GATE and not is_listed:
        raise ArchitectureError(
            f"model type {model_type!r} is not known, and its activation ({activation}) does not say whether its"
            " feed-forward blocks have a gate: two matrices, or three"
        )
    if not is_listed:
        notes.append(f"model type {model_type!r} is not known: counted by its fields as a plain decoder")
    if left:
        notes.append(f"fields of the model's configuration that were not understood: {', '.join(left)}")
