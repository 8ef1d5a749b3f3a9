"""Fields of a configuration: looked up under their several names, and which of them nobody asked for.

A field counts as understood when the reader asked for it, so that a field of a mixture in a dense model, or one of a
later version, is named in a note (or refused) and never silently passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class ArchitectureError(ValueError):
    """A configuration whose work cannot be counted; the message says which field is in the way."""


class Fields:
    """A configuration with its family's defaults behind it; it remembers which fields were asked for."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._values = values
        self._defaults = defaults
        self._asked: set[str] = set()

    def get(self, *names: str) -> Any:  # noqa: ANN401 - a configuration's value
        """Give the first of these fields that is set, else the family's default; a field set to null has no default."""
        self._asked.update(names)
        for name in names:
            if self._values.get(name) is not None:
                return self._values[name]
        if any(name in self._values for name in names):
            return None
        return next((self._defaults[name] for name in names if name in self._defaults), None)

    def size(self, *names: str, default: int = 0) -> int:
        """Give a whole number."""
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise ArchitectureError(f"{names[0]} is {value!r}, not a whole number")
        if value < 0:
            raise ArchitectureError(f"{names[0]} is {value!r}: a size is not negative")
        return int(value)

    def needed(self, *names: str) -> int:
        """Give a whole number that nothing can be counted without."""
        value = self.size(*names)
        if not value:
            raise ArchitectureError(f"the configuration gives no {names[0]}")
        return value

    def flag(self, *names: str) -> bool:
        """Tell whether a field is set to something true."""
        return bool(self.get(*names))

    def listed(self, name: str) -> list[Any]:
        """Give a list; empty where there is none."""
        value = self.get(name)
        return list(value) if isinstance(value, (list, tuple)) else []

    def has(self, *names: str) -> bool:
        """Tell whether one of the fields is in the file itself (a family's default does not count)."""
        return any(self._values.get(name) is not None for name in names)

    def not_understood(self) -> list[str]:
        """Name the fields that were not asked for and may matter; those set to nothing never do."""
        return sorted(
            name
            for name, value in self._values.items()
            if name not in self._asked and value not in (None, False, 0, "", []) and not _WITHOUT_WORK.fullmatch(name)
        )


# Fields that change no product's size: positions, scaling, dropout, tokens, training losses, caches, bookkeeping.
_WITHOUT_WORK = re.compile(
    r"_.*|model_type|architectures|auto_map|transformers_version|torch_dtype|dtype|name|id2label|label2id|problem_type"
    r"|.*_token_ids?|.*_token_index|tokenizer_class|.*rope.*|rotary.*|partial_rotary_factor|max_position_embeddings"
    r"|model_max_length|original_max_.*|max_seq_len.*|seq_length|n_positions|n_ctx|position_embedding_type|alibi.*"
    r"|initializer.*|init_std|.*_init_.*|.*dropout.*|.*_pdrop|layerdrop|.*_eps|.*_epsilon|.*norm_topk_prob|use_.*cache"
    r"|.*hidden_act|.*activation.*|hidden_act|.*_coef|.*_coeff|.*_coefficient|aux_loss.*|seq_aux|.*jitter.*|output_.*"
    r"|return_dict|routed_scaling_factor|router_scale.*|n_group|topk_group|topk_method|scoring_func|num_expert_group"
    r"|moe_renormalize|moe_router_activation_func|use_grouped_topk|moe_router_enable_expert_bias|ep_size|pretraining_tp"
    r"|.*_multipliers?|.*_scaling|logit_scale|.*_softcapping|query_pre_attn_scalar|attn_scale|attn_temperature_tuning"
    r"|floor_scale|attention_multiplier|scale_attn.*|attention_value_scale|clip_qkv|quantization_config|summary_.*"
    r"|task_specific_params|swiglu_.*|.*(alpha|beta)_factor|time_step_.*|.*chunk_size|residual_in_fp32|num_logits_to_keep"
    r"|rescale_prenorm_residual|use_mamba_kernels|use_mambapy|use_associative_scan|mamba_ssm_cache_dtype|mamba_norm.*"
    r"|scale_emb.*|scale_depth|dim_model_base|embedding_multiplier|reorder_and_upcast_attn|gradient_checkpointing|moe_norm_min|moe_shared_expert_overlap|unsloth.*|chat_template.*"
    r"|is_decoder|is_encoder_decoder|add_cross_attention|cross_attention_hidden_size|tie_encoder_decoder|mup_.*"
    r"|nextn.*mode|pad_.*|bos_.*|eos_.*|sep_.*|layer_norm_elementwise_affine|use_expert_bias|scoring.*|fused_.*"
    r"|use_parallel_residual|do_layer_norm_before|mtp_layers_block_type|router_.*|moe_router_.*|rms_norm.*|layernorm_.*|.*_dtype|mlp_hidden_act|block_size|no_rope_layer.*"
)
