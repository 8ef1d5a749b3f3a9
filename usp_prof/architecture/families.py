"""Families: properties that a model type implies beyond its configuration: biases, norms, gates, defaults.

Most types are Llama's block with one or two differences, and so are their records. A type that is not listed is read as
such a block from its fields; the reading notes this. Defaults are those of the type's configuration class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

HEAD = "head"
WIDTH = "width"


@dataclass(frozen=True, slots=True)
class Family:
    """How the layers of a model type are built, as far as its configuration does not say."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    matrices: int = 3
    """Matrices of a feed-forward block: three with a gate, two without."""
    norms: int = 2
    """Norms per layer, each as wide as the hidden states."""
    norm_values: int = 1
    """Parameters per channel of a norm: 2 if norms have a bias, 0 if they have no parameters."""
    qkv_bias: bool = False
    out_bias: bool | None = None
    """Whether attention's output projection has a bias; `None`: like its other projections."""
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: str = ""
    """Norm of queries and keys: one shared by all heads ("head"), or as wide as all of them ("width")."""
    output_gate: bool = False
    """Whether attention's output is gated by a projection as wide as the queries."""
    sinks: bool = False
    """Whether each head has a learned sink."""
    shared_gate: bool = False
    """Whether a single-row gate weighs the shared expert."""
    expert_bias: bool = False
    correction_bias: bool = False
    """Whether the router's balancing bias is a parameter (in other types it is a buffer)."""
    activation_parameters: int = 0
    """Parameters of a feed-forward block's activation function."""
    linear: str = ""
    """Recurrence of layers that are not attention."""
    parallel: bool = False
    """Whether attention and recurrence run in parallel in every layer."""
    full_every: int = 1
    """With a window: every n-th layer has full attention; 1: every layer has the window."""
    expert_width: bool = False
    """Whether experts have a separate width (`moe_intermediate_size`), which is then required."""
    wide: bool = False
    """Whether the default width of feed-forward blocks is four times that of the hidden states."""
    positions: int = 0
    """Rows of learned positions beyond the configuration's; -1: positions are not learned."""


_TIED = {"tie_word_embeddings": True}
_LLAMA = Family(positions=-1)
_BIASED = replace(_LLAMA, wide=True, matrices=2, norm_values=2, qkv_bias=True, mlp_bias=True)
_QWEN2_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_QWEN3 = replace(_LLAMA, qk_norm=HEAD, defaults={**_QWEN2_WINDOW, "head_dim": 128})
_GEMMA = {**_TIED, "head_dim": 256}
_GEMMA3 = Family(
    defaults={**_GEMMA, "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
              "sliding_window": 4096, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
    norms=4, qk_norm=HEAD, full_every=6, positions=-1,
)  # fmt: skip
_LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
           "v_head_dim": 128}  # fmt: skip
_DEEPSEEK = replace(
    _LLAMA, expert_width=True, defaults={**_LATENT, "first_k_dense_replace": 3, "n_routed_experts": 256,
                                         "n_shared_experts": 1},
)  # fmt: skip
_MAMBA2 = {"mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 128,
           "mamba_d_head": 64, "mamba_conv_bias": True, "mamba_rms_norm": True}  # fmt: skip
_DELTA_NET = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
              "linear_num_key_heads": 16, "linear_num_value_heads": 32, "head_dim": 256,
              "full_attention_interval": 4, "num_key_value_heads": 2}  # fmt: skip
_QWEN3_NEXT = replace(
    _LLAMA, qk_norm=HEAD, output_gate=True, shared_gate=True, linear="gated_delta_net", defaults=_DELTA_NET
)
_QWEN_MIXTURE = {"num_experts": 512, "shared_expert_intermediate_size": 512}
_QWEN3_5 = replace(_QWEN3_NEXT, defaults={**_DELTA_NET, "num_key_value_heads": 4})
_QWEN3_5_MOE = replace(_QWEN3_NEXT, expert_width=True,
                       defaults={**_DELTA_NET, **_QWEN_MIXTURE, "num_experts": 256})  # fmt: skip
_LLAMA4 = replace(
    _LLAMA, defaults={"num_key_value_heads": 8, "num_local_experts": 16,
                      "attention_chunk_size": 8192, "no_rope_layer_interval": 4, "interleave_moe_layer_step": 1,
                      "num_experts_per_tok": 1, "head_dim": 128},
)  # fmt: skip
_OLMO2 = replace(_LLAMA, qk_norm=WIDTH)
_GLM4_MOE = replace(
    _LLAMA, qk_norm=HEAD, out_bias=False, expert_width=True,
    defaults={"use_qk_norm": False, "first_k_dense_replace": 1, "num_key_value_heads": 8, "n_routed_experts": 128,
              "n_shared_experts": 1},
)  # fmt: skip
_LFM2 = replace(_LLAMA, qk_norm=HEAD, linear="short_conv", defaults={
    **_TIED, "conv_L_cache": 3, "num_key_value_heads": 8, "num_dense_layers": 2})  # fmt: skip
_QWEN2_VL = replace(_LLAMA, qkv_bias=True, out_bias=False, defaults={**_QWEN2_WINDOW, "num_key_value_heads": 8})
_MINIMAX = replace(_LLAMA, linear="lightning", defaults={"num_key_value_heads": 8, "num_local_experts": 8})
_GRANITE_HYBRID = replace(_LLAMA, linear="mamba2", defaults={
    **_MAMBA2, "num_local_experts": 8, "shared_intermediate_size": 1024})  # fmt: skip
_GRANITE_MIXTURE = replace(_LLAMA, defaults={"num_local_experts": 8})

FAMILIES: Mapping[str, Family] = MappingProxyType({
    "apertus": replace(_LLAMA, matrices=2, qk_norm=HEAD, activation_parameters=2),
    "arcee": replace(_LLAMA, matrices=2),
    "bamba": replace(_LLAMA, linear="mamba2", defaults={**_MAMBA2, "num_key_value_heads": 8}),
    "cohere": replace(_LLAMA, norms=1, qk_norm=WIDTH, defaults={**_TIED, "use_qk_norm": False}),
    "cohere2": replace(_LLAMA, norms=1, full_every=4, defaults={**_TIED, "sliding_window": 4096, "head_dim": 128}),
    "deepseek_v2": replace(_DEEPSEEK, defaults={**_LATENT, "n_routed_experts": 64, "n_shared_experts": 2}),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": replace(_DEEPSEEK, defaults={**_DEEPSEEK.defaults, "index_topk": 2048, "index_n_heads": 64,
                                                 "index_head_dim": 128}),
    "dots1": replace(_LLAMA, qk_norm=HEAD, expert_width=True,
                     defaults={"sliding_window": 4096, "max_window_layers": 62}),
    "ernie4_5": replace(_LLAMA, defaults={**_TIED, "head_dim": 128, "num_key_value_heads": 2}),
    "ernie4_5_moe": replace(_LLAMA, correction_bias=True, expert_width=True, defaults={
        **_TIED, "num_key_value_heads": 4, "moe_num_experts": 64, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1}),
    "exaone4": replace(_LLAMA, qk_norm=HEAD, full_every=4, defaults={"sliding_window": 4096}),
    "exaone_moe": replace(_LLAMA, qk_norm=HEAD, full_every=4, expert_width=True, defaults={
        "sliding_window": 4096, "num_experts": 64, "num_shared_experts": 1, "first_k_dense_replace": 1}),
    "falcon_h1": replace(_LLAMA, linear="mamba2", parallel=True, defaults={
        **_MAMBA2, "mamba_rms_norm": False, "num_key_value_heads": 8, "mamba_d_ssm": 1024, "mamba_d_head": "auto"}),
    "flex_olmo": replace(_OLMO2, defaults={"num_experts": 7}),
    "gemma": replace(_LLAMA, defaults=_GEMMA),
    "gemma2": replace(_LLAMA, norms=4, full_every=2, defaults={
        **_GEMMA, "sliding_window": 4096, "num_key_value_heads": 4}),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm": replace(_LLAMA, qkv_bias=True, out_bias=False, defaults={"head_dim": 128, "num_key_value_heads": 2}),
    "glm4": replace(_LLAMA, qkv_bias=True, out_bias=False, norms=4, defaults={
        "head_dim": 128, "num_key_value_heads": 2}),
    "glm4_moe": _GLM4_MOE,
    "glm4_moe_lite": replace(_DEEPSEEK, defaults={
        "first_k_dense_replace": 1, "n_routed_experts": 64, "n_shared_experts": 1, "q_lora_rank": 768,
        "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}),
    "glm4v_moe_text": replace(_GLM4_MOE, qkv_bias=True),
    "glm_moe_dsa": replace(_DEEPSEEK, defaults={**_DEEPSEEK.defaults, "index_topk": 2048, "index_n_heads": 32,
                                                "index_head_dim": 128, "q_lora_rank": 2048, "v_head_dim": 256,
                                                "qk_nope_head_dim": 192}),
    "gpt2": replace(_BIASED, defaults={**_TIED, "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257,
                                       "n_positions": 1024}, positions=0),
    "gpt_neox": replace(_BIASED, defaults={"attention_bias": True}),
    "gpt_oss": replace(_LLAMA, qkv_bias=True, sinks=True, expert_bias=True, full_every=2,
                       defaults={"sliding_window": 128, "head_dim": 64, "num_experts_per_tok": 4,
                                 "num_key_value_heads": 8, "num_local_experts": 128}),
    "granite": _LLAMA,
    "granitemoe": _GRANITE_MIXTURE,
    "granitemoehybrid": _GRANITE_HYBRID,
    "granitemoeshared": _GRANITE_MIXTURE,
    "hunyuan_v1_dense": replace(_LLAMA, qk_norm=HEAD),
    "jais2": replace(_LLAMA, matrices=2, norm_values=2, qkv_bias=True, mlp_bias=True),
    "jamba": replace(_LLAMA, linear="mamba", defaults={
        "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True, "num_experts": 16,
        "num_experts_per_tok": 2, "num_key_value_heads": 8}),
    "kimi_k2": _DEEPSEEK,
    "kimi_linear": replace(_LLAMA, linear="delta_attention", expert_width=True, defaults={
        "num_experts": 256, "num_shared_experts": 1, "kv_lora_rank": 512, "first_k_dense_replace": 1}),
    "lfm2": replace(_LFM2, defaults={**_LFM2.defaults, "block_auto_adjust_ff_dim": True}),
    "lfm2_moe": replace(_LFM2, expert_width=True, defaults={**_LFM2.defaults, "num_experts": 32}),
    "llama": _LLAMA,
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "minicpm3": replace(_LLAMA, defaults={**_TIED, **_LATENT, "q_lora_rank": 768, "kv_lora_rank": 256,
                                          "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}),
    "minimax": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax_m2": replace(_LLAMA, qk_norm=WIDTH, defaults={
        "head_dim": 128, "num_key_value_heads": 8, "num_local_experts": 256}),
    "minimax_text_01": _MINIMAX,
    "ministral3": replace(_LLAMA, defaults={"head_dim": 128, "num_key_value_heads": 8}),
    "mistral": replace(_LLAMA, defaults={"sliding_window": 4096, "num_key_value_heads": 8}),
    "mixtral": replace(_LLAMA, defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "nanochat": replace(_LLAMA, matrices=2, norm_values=0),
    "nemotron": replace(_LLAMA, matrices=2, norm_values=2),
    "nemotron_h": replace(_LLAMA, expert_width=True, matrices=2, norms=1, linear="mamba2", defaults={
                          "mamba_rms_norm": True,
                          "head_dim": 128, "use_conv_bias": True, "mamba_num_heads": 128, "mamba_head_dim": 64,
                          "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
                          "num_key_value_heads": 8, "n_routed_experts": 8}),
    "olmo": replace(_LLAMA, norm_values=0),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, full_every=4, defaults={"sliding_window": 4096}),
    "olmoe": replace(_OLMO2, defaults={"num_experts": 64}),
    "opt": replace(_BIASED, defaults=_TIED, positions=2),
    "phi": replace(_BIASED, norms=1, head_bias=True),
    "phi3": _LLAMA,
    "phimoe": replace(_LLAMA, norm_values=2, defaults={"num_key_value_heads": 8, "num_local_experts": 16}),
    "qwen2": replace(_LLAMA, qkv_bias=True, out_bias=False, defaults=_QWEN2_WINDOW),
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen2_moe": replace(_LLAMA, qkv_bias=True, out_bias=False, shared_gate=True, expert_width=True, defaults={
        **_QWEN2_WINDOW, "num_experts": 60, "shared_expert_intermediate_size": 5632}),
    "qwen2_vl": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen3": _QWEN3,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5_MOE,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_moe": replace(_QWEN3, expert_width=True, defaults={
        "use_sliding_window": False, "num_key_value_heads": 4, "num_experts": 128}),
    "qwen3_next": replace(_QWEN3_NEXT, expert_width=True, defaults={**_DELTA_NET, **_QWEN_MIXTURE}),
    "qwen3_vl_moe_text": replace(_QWEN3, expert_width=True, defaults={
        **_TIED, "head_dim": 128, "num_experts": 60}),
    "qwen3_vl_text": replace(_QWEN3, defaults={"head_dim": 128}),
    "seed_oss": replace(_LLAMA, qkv_bias=True, out_bias=False, defaults={"head_dim": 128, "num_key_value_heads": 8}),
    "smollm3": replace(_LLAMA, defaults={**_TIED, "use_sliding_window": False, "num_key_value_heads": 4}),
    "stablelm": replace(_LLAMA, norm_values=2),
    "starcoder2": replace(_BIASED, defaults={**_TIED, "num_key_value_heads": 2}),
    "vaultgemma": replace(_LLAMA, full_every=2, defaults={**_GEMMA, "sliding_window": 4096, "num_key_value_heads": 4}),
})  # fmt: skip
"""Model types by their name in `config.json`."""

UNLISTED = _LLAMA
