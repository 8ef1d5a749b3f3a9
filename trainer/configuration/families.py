"""Model families: fields of their files, implied properties, and features that the trainer does not support."""

from __future__ import annotations

import re
from typing import Any

BIASES = {"qkv_bias": True, "out_bias": True, "ffn_bias": True}
_LLAMA = {"norm_eps": 1e-6, "positions": 2048}
_QWEN = {"norm_eps": 1e-6, "positions": 32768, "kv_heads": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {"norm_eps": 1e-6, "positions": 131072, "kv_heads": 8, "window": 4096},
    "qwen2": {**_QWEN, "qkv_bias": True},
    "qwen3": {**_QWEN, "qk_norm": True, "head_dim": 128},
    "mixtral": {"norm_eps": 1e-5, "positions": 131072, "kv_heads": 8, "rope_theta": 1e6, "experts": 8, "top_k": 2},
    "qwen2_moe": {
        **_QWEN, "kv_heads": 16, "qkv_bias": True, "experts": 60, "top_k": 4, "expert_ffn": 1408, "shared_ffn": 5632,
        "shared_gate": True, "renormalize": False,
    },
    "qwen3_moe": {
        **_QWEN, "kv_heads": 4, "qk_norm": True, "experts": 128, "top_k": 8, "expert_ffn": 768, "renormalize": False,
    },
    "deepseek": {**_LLAMA, "expert_ffn": 1407, "renormalize": False},
    "dots1": {
        **_LLAMA, "kv_heads": 32, "qk_norm": True, "expert_ffn": 1408, "renormalize": False, "scoring": "sigmoid",
    },
    "gpt2": {
        "norm": "layer", "gated": False, "tied": True, "activation": "gelu_new", "positions": 1024, **BIASES,
    },
}  # fmt: skip
"""Supported model types, each with its implied properties and the defaults of its class in transformers.

`positions` is the longest sequence; the other names are those of a shape."""

FIELDS = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "norm_eps": ("rms_norm_eps", "layer_norm_epsilon"),
    "activation": ("hidden_act", "activation_function"),
    "tied": ("tie_word_embeddings",),
    "qkv_bias": ("qkv_bias",),
    "ffn_bias": ("mlp_bias",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "first_dense": ("first_k_dense_replace",),
    "scoring": ("scoring_func",),
    "renormalize": ("norm_topk_prob",),
    "routed_scale": ("routed_scaling_factor",),
}
"""Fields of a shape, and their names in files."""
DERIVED = (
    "model_type", "max_position_embeddings", "n_positions", "n_ctx", "attention_bias", "n_shared_experts",
    "mlp_only_layers", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "rope_theta",
    "rope_scaling", "rope_parameters",
)  # fmt: skip
"""Fields that `load` reads in other ways."""
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip

OFF = (None, False, 0, [], {}, "")
ONE = (None, 1)
REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "kv_lora_rank": ("MLA", OFF),
    "q_lora_rank": ("MLA", OFF),
    "partial_rotary_factor": ("rotary positions on a part of each head", ONE),
    "rotary_pct": ("rotary positions on a part of each head", ONE),
    "no_rope_layers": ("layers without positions", OFF),
    "alibi": ("ALiBi", OFF),
    "n_group": ("routing within groups of experts", ONE),
    "topk_group": ("routing within groups of experts", ONE),
    "decoder_sparse_step": ("experts in every so many layers", ONE),
    "moe_layer_freq": ("experts in every so many layers", ONE),
    "num_nextn_predict_layers": ("multi-token prediction", OFF),
    "attn_logit_softcapping": ("soft-capped scores", OFF),
    "final_logit_softcapping": ("soft-capped logits", OFF),
    "query_pre_attn_scalar": ("scores scaled otherwise", OFF),
    "attention_multiplier": ("scores scaled otherwise", OFF),
    "scale_attn_by_inverse_layer_idx": ("scores scaled by layer", OFF),
    "scale_attn_weights": ("scores that are not scaled", (None, True)),
    "clip_qkv": ("clipped queries and keys", OFF),
    "embedding_multiplier": ("scaled embeddings", ONE),
    "residual_multiplier": ("scaled residuals", ONE),
    "logits_scaling": ("scaled logits", ONE),
    "use_parallel_residual": ("attention and feed-forward side by side", OFF),
    "parallel_attn": ("attention and feed-forward side by side", OFF),
    "use_qk_norm": ("norms of queries and keys, which its model_type fixes here", OFF),
    "use_bidirectional_attention": ("attention to later tokens", OFF),
    "is_encoder_decoder": ("an encoder", OFF),
    "add_cross_attention": ("cross-attention", OFF),
    "vision_config": ("images", OFF),
    "mamba_d_state": ("state-space layers", OFF),
    "quantization_config": ("quantized weights", OFF),
}
"""Fields for features that the trainer does not support: the feature, and the values that do not ask for it."""
SILENT = re.compile(
    r"_.*|architectures|auto_map|.*token_id|chunk_size_feed_forward|(torch_)?dtype|ep_size|id2label|label2id|name"
    r"|output_.*|pretraining_tp|problem_type|reorder_and_upcast_attn|return_dict|summary_.*|task_specific_params"
    r"|tokenizer_class|topk_method|(transformers|unsloth)_version|use_cache"
)
"""Fields without an effect on training here."""
