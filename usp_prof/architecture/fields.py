"""Fields of a configuration: look-up under several names, unread fields, and one word per layer.

A field counts as understood if the reader requested it. So a mixture's field in a dense model, or a field of a later
version, is named in a note (or refused) and never silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from usp_prof.architecture.families import Family


class ArchitectureError(ValueError):
    """Raised for a configuration whose work cannot be counted; the message names the field."""


class Fields:
    """Configuration with its family's defaults; it tracks which fields were requested."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._values = values
        self._defaults = defaults
        self._asked: set[str] = set()

    def get(self, *names: str) -> Any:  # noqa: ANN401 - a configuration's value
        """Return the first of these fields that is set, or the family's default; null fields have no default."""
        self._asked.update(names)
        for name in names:
            if self._values.get(name) is not None:
                return self._values[name]
        if any(name in self._values for name in names):
            return None
        return next((self._defaults[name] for name in names if name in self._defaults), None)

    def size(self, *names: str, default: int = 0) -> int:
        """Return an integer field."""
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise ArchitectureError(f"{names[0]} is {value!r}, not a whole number")
        if value < 0:
            raise ArchitectureError(f"{names[0]} is {value!r}: a size is not negative")
        return int(value)

    def needed(self, *names: str) -> int:
        """Return an integer field that is required for counting."""
        value = self.size(*names)
        if not value:
            raise ArchitectureError(f"the configuration gives no {names[0]}")
        return value

    def flag(self, *names: str) -> bool:
        """Return whether any of the fields is true."""
        return bool(self.get(*names))

    def list_of(self, name: str) -> list[Any]:
        """Return a list field; empty if missing."""
        value = self.get(name)
        return list(value) if isinstance(value, (list, tuple)) else []

    def has(self, *names: str) -> bool:
        """Return whether any of the fields is in the file itself (a family's default does not count)."""
        return any(self._values.get(name) is not None for name in names)

    def not_understood(self) -> list[str]:
        """Return the fields that were not requested and may matter; empty values never do."""
        return sorted(
            name
            for name, value in self._values.items()
            if name not in self._asked and value not in (None, False, 0, "", []) and not _WITHOUT_WORK.fullmatch(name)
        )


# Fields that do not change the size of any product: positions, scaling, dropout, tokens, training losses, caches,
# bookkeeping.
_WITHOUT_WORK = re.compile(
    r"_.*|model_type|architectures|auto_map|transformers_version|torch_dtype|dtype|name|id2label|label2id|problem_type"
    r"|.*_token_ids?|.*_token_index|tokenizer_class|.*rope.*|rotary.*|partial_rotary_factor|max_position_embeddings"
    r"|model_max_length|original_max_.*|max_seq_len.*|seq_length|n_positions|n_ctx|position_embedding_type|alibi.*"
    r"|initializer.*|init_std|.*_init_.*|.*dropout.*|.*_pdrop|layerdrop|.*_eps|.*_epsilon|.*norm_topk_prob|use_.*cache"
    r"|.*hidden_act|.*activation.*|hidden_act|.*_coef|.*_coeff|.*_coefficient|aux_loss.*|seq_aux|.*jitter.*|output_.*"
    r"|return_dict|routed_scaling_factor|router_scale.*|n_group|topk_group|topk_method|scoring_func|num_expert_group"
    r"|moe_renormalize|moe_router_activation_func|use_grouped_topk|moe_router_enable_expert_bias|ep_size|pretraining_tp"
    r"|.*_multipliers?|.*_scaling|logit_scale|.*_softcapping|query_pre_attn_scalar|attn_scale|attn_temperature_tuning"
    r"|floor_scale|attention_multiplier|scale_attn.*|clip_qkv|quantization_config|summary_.*"
    r"|task_specific_params|swiglu_.*|.*(alpha|beta)_factor|time_step_.*|.*chunk_size|residual_in_fp32|num_logits_to_keep"
    r"|rescale_prenorm_residual|use_mamba_kernels|use_mambapy|use_associative_scan|mamba_ssm_cache_dtype|mamba_norm.*"
    r"|scale_emb.*|scale_depth|dim_model_base|embedding_multiplier|reorder_and_upcast_attn|gradient_checkpointing|moe_norm_min|moe_shared_expert_overlap|unsloth.*|chat_template.*"
    r"|is_decoder|is_encoder_decoder|add_cross_attention|cross_attention_hidden_size|tie_encoder_decoder|mup_.*"
    r"|nextn.*mode|pad_.*|bos_.*|eos_.*|sep_.*|layer_norm_elementwise_affine|use_expert_bias|scoring.*|fused_.*"
    r"|use_parallel_residual|do_layer_norm_before|mtp_layers_block_type|router_.*|moe_router_.*|rms_norm.*|layernorm_.*|.*_dtype|mlp_hidden_act|block_size|no_rope_layer.*"
)


# Words for layers: what mixes the tokens of each layer, and which layers are mixtures, in all known notations.

FULL = "full"
SLIDING = "sliding"
CHUNKED = "chunked"
LINEAR = "linear"
DENSE_ONLY = "dense_only"
MIXTURE_ONLY = "mixture_only"

_WORDS = {
    "full_attention": FULL, "attention": FULL, "global_attention": FULL, "indexed_attention": FULL,
    "sliding_attention": SLIDING, "local_attention": SLIDING, "chunked_attention": CHUNKED,
    "linear_attention": LINEAR, "mamba": LINEAR, "mamba2": LINEAR, "conv": LINEAR,
    "mlp": DENSE_ONLY, "moe": MIXTURE_ONLY,
}  # fmt: skip
_LETTERS = {"M": LINEAR, "*": FULL, "-": DENSE_ONLY, "E": MIXTURE_ONLY}


def layer_words(f: Fields, family: Family) -> list[str]:
    """Return for each layer the word for what mixes its tokens."""
    pattern = f.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_word(letter, _LETTERS, "hybrid_override_pattern") for letter in pattern if letter != "|"]
    layer_names = f.list_of("layers_block_type")
    count = len(layer_names) or f.needed("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    layer_names = layer_names or f.list_of("layer_types")
    # All notations are requested, so that none counts as a field that was not understood.
    f.size("num_hidden_layers")
    if set(f.list_of("indexer_types")) - {"full"}:
        raise ArchitectureError("indexer_types has layers that reuse another's index")
    ways: list[Callable[[Fields, int], list[str] | None]] = [_by_period, _by_lists, _by_chunks]
    lists = [way(f, count) for way in ways]
    window = _by_window(f, family, count)
    if layer_names:
        if len(layer_names) < count:
            raise ArchitectureError(f"layer_types names {len(layer_names)} of {count} layers")
        return [_word(str(name), _WORDS, "layer_types") for name in layer_names[:count]]
    words = next((words for words in lists if words is not None), None)
    if words is None and family.linear and not family.parallel:
        raise ArchitectureError("the configuration does not say which layers are attention (layer_types)")
    return words or window


def _word(name: str, meanings: dict[str, str], source: str) -> str:
    if name not in meanings:
        raise ArchitectureError(f"{source} has {name!r}, whose work is not known (known: {', '.join(meanings)})")
    return meanings[name]


def _by_period(f: Fields, count: int) -> list[str] | None:
    """Return attention at every n-th layer, a recurrence elsewhere (Jamba; Qwen3-Next counts from the period's end)."""
    period, offset = f.size("attn_layer_period"), f.size("attn_layer_offset")
    interval = f.size("full_attention_interval")
    if period:
        return [FULL if place % period == offset else LINEAR for place in range(count)]
    if interval:
        return [LINEAR if (place + 1) % interval else FULL for place in range(count)]
    return None


def _by_lists(f: Fields, count: int) -> list[str] | None:
    """Return attention in the listed layers (Bamba, LFM2, Kimi Linear, MiniMax), and a recurrence elsewhere."""
    types = f.list_of("attn_type_list")
    if types:
        if set(types) - {0, 1} or len(types) < count:
            raise ArchitectureError("attn_type_list is not a list of 0 (linear) and 1 (full) for every layer")
        return [FULL if kind else LINEAR for kind in types[:count]]
    detail = f.get("linear_attn_config")
    if isinstance(detail, dict) and "full_attn_layers" in detail:
        return [FULL if place + 1 in detail["full_attn_layers"] else LINEAR for place in range(count)]
    for name in ("attn_layer_indices", "full_attn_idxs"):
        if f.has(name):
            full = set(f.list_of(name))
            return [FULL if place in full else LINEAR for place in range(count)]
    return None


def _by_chunks(f: Fields, count: int) -> list[str] | None:
    """Return chunked attention if positions are rotated, full attention if not (Llama 4)."""
    interval = f.size("no_rope_layer_interval")
    rotated = f.list_of("no_rope_layers")
    if not f.size("attention_chunk_size"):
        return None
    rotated = rotated or [(place + 1) % interval if interval else 1 for place in range(count)]
    return [CHUNKED if rotated[place] else FULL for place in range(count)]


def _by_window(f: Fields, family: Family, count: int) -> list[str]:
    """Return windowed attention in all layers, all but every n-th, or from some layer on; none without a window."""
    used = f.get("use_sliding_window")
    first = f.size("max_window_layers")
    pattern = f.get("sliding_window_pattern", "_sliding_window_pattern")
    if not f.size("sliding_window", "window_size") or used is False:
        return [FULL] * count
    if isinstance(pattern, str):
        return [_word(pattern[place % len(pattern)], {"L": SLIDING, "G": FULL}, "pattern") for place in range(count)]
    if used or first:
        return [SLIDING if place >= first else FULL for place in range(count)]
    every = int(pattern or family.full_every)
    return [FULL if every > 1 and (place + 1) % every == 0 else SLIDING for place in range(count)]


def mixture_layers(f: Fields, count: int) -> list[bool]:
    """Return for each layer whether it is a mixture of experts."""
    experts = expert_count(f)
    types = f.list_of("mlp_layer_types")
    first = f.size("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    last = f.size("moe_layer_end_index", default=count - 1)
    frequency = f.get("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    period, offset = f.size("expert_layer_period", default=1), f.size("expert_layer_offset")
    dense = set(f.list_of("mlp_only_layers"))
    mixture_places = f.list_of("moe_layers")
    if experts < 2:
        return [False] * count
    if types:
        return [kind == "sparse" for kind in types[:count]]
    if mixture_places:
        return [place in set(mixture_places) for place in range(count)]
    if isinstance(frequency, list):
        return [bool(is_mixture) for is_mixture in frequency[:count]]
    every = int(frequency or 1)
    # DeepSeek's frequency counts layers from 0; with a step (Qwen, Llama 4, Ernie) the mixture is the last layer of
    # each step.
    shift = 0 if f.has("moe_layer_freq") else 1
    return [
        first <= place <= last
        and (place + shift) % every == 0
        and place % period == offset % period
        and place not in dense
        for place in range(count)
    ]


def expert_count(f: Fields) -> int:
    """Return the number of routed experts; 0 if the model has none."""
    return f.size("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
