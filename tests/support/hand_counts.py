"""Current models with FLOPs counted by hand, layer by layer, from their published dimensions.

`multiplying` are the weights that a token meets as factors of a product, the head among them. `beside` are those that
it meets and that multiply nothing: the input embedding (where it is not the head), norms, biases. `idle` are the
experts that it does not meet. Each attention is (layers, heads, query/key size, value size, window or 0).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HandCount:
    """One model: its configuration and the FLOPs of a token."""

    config: dict[str, Any]
    multiplying: int
    beside: int
    attention: tuple[tuple[int, int, int, int, int], ...]
    idle: int = 0
    state_products: int = 0
    lengths: tuple[int, int] = (2048, 32768)
    kin: str = ""
    """Model type of the class in transformers, where the published one has none there."""
    more: dict[str, Any] = field(default_factory=dict)
    """Settings of that class that differ from the published configuration."""


MODELS: dict[str, HandCount] = {}

MODELS["llama-3-8b"] = HandCount(
    {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
     "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False},
    # q and o, k and v, three matrices of the feed-forward block; the head
    multiplying=32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096,
    # input embedding; two norms per layer and the last one
    beside=128256 * 4096 + (2 * 32 + 1) * 4096,
    attention=((32, 32, 128, 128, 0),),
)  # fmt: skip

MODELS["llama-4-scout"] = HandCount(
    {"model_type": "llama4", "vision_config": {"hidden_size": 1408}, "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192, "no_rope_layers": []}},
    # attention; router, one expert and one shared expert of 8192 each, in every layer
    multiplying=48 * (2 * 5120 * 5120 + 2 * 5120 * 1024 + 5120 * 16 + (1 + 1) * 3 * 5120 * 8192) + 202048 * 5120,
    beside=202048 * 5120 + (2 * 48 + 1) * 5120,
    idle=48 * 15 * 3 * 5120 * 8192,
    # three layers of four attend within chunks of 8192, the fourth to everything
    attention=((36, 40, 128, 128, 8192), (12, 40, 128, 128, 0)),
)  # fmt: skip

MODELS["llama-4-maverick"] = HandCount(
    {"model_type": "llama4", "vision_config": {"hidden_size": 1408}, "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 202048, "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192}},
    multiplying=48 * (2 * 5120 * 5120 + 2 * 5120 * 1024)
    + 24 * 3 * 5120 * 16384  # every other layer is dense
    + 24 * (5120 * 128 + (1 + 1) * 3 * 5120 * 8192)
    + 202048 * 5120,
    beside=202048 * 5120 + (2 * 48 + 1) * 5120,
    idle=24 * 127 * 3 * 5120 * 8192,
    attention=((36, 40, 128, 128, 8192), (12, 40, 128, 128, 0)),
)  # fmt: skip

MODELS["mistral-7b-v0.1"] = HandCount(
    {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
     "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 32000,
     "tie_word_embeddings": False},
    multiplying=32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 32000 * 4096,
    beside=32000 * 4096 + 65 * 4096,
    attention=((32, 32, 128, 128, 4096),),
)  # fmt: skip

MODELS["mixtral-8x7b"] = HandCount(
    {"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
     "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
     "sliding_window": None, "vocab_size": 32000, "tie_word_embeddings": False},
    # attention; router; two of eight experts
    multiplying=32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 3 * 4096 * 14336) + 32000 * 4096,
    beside=32000 * 4096 + 65 * 4096,
    idle=32 * 6 * 3 * 4096 * 14336,
    attention=((32, 32, 128, 128, 0),),
)  # fmt: skip

MODELS["phi-3-mini-4k"] = HandCount(
    {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
     "num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 2047, "vocab_size": 32064,
     "tie_word_embeddings": False},
    multiplying=32 * (4 * 3072 * 3072 + 3 * 3072 * 8192) + 32064 * 3072,
    beside=32064 * 3072 + 65 * 3072,
    attention=((32, 32, 96, 96, 2047),),
    lengths=(1024, 4096),
)  # fmt: skip

MODELS["phi-4"] = HandCount(
    {"model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
     "num_attention_heads": 40, "num_key_value_heads": 10, "sliding_window": None, "vocab_size": 100352,
     "tie_word_embeddings": False},
    multiplying=40 * (2 * 5120 * 5120 + 2 * 5120 * 1280 + 3 * 5120 * 17920) + 100352 * 5120,
    beside=100352 * 5120 + 81 * 5120,
    attention=((40, 40, 128, 128, 0),),
)  # fmt: skip

MODELS["gemma-2-2b"] = HandCount(
    {"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
     "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
     "vocab_size": 256000},
    multiplying=26 * (2 * 2304 * 8 * 256 + 2 * 2304 * 4 * 256 + 3 * 2304 * 9216) + 256000 * 2304,
    # the embedding is the head; four norms per layer
    beside=(4 * 26 + 1) * 2304,
    # every other layer has the window
    attention=((13, 8, 256, 256, 4096), (13, 8, 256, 256, 0)),
)  # fmt: skip

MODELS["gemma-3-4b"] = HandCount(
    {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024}},  # as published: heads, their size and the vocabulary are the class's own
    multiplying=34 * (2 * 2560 * 8 * 256 + 2 * 2560 * 4 * 256 + 3 * 2560 * 10240) + 262208 * 2560,
    # four norms per layer, one each for queries and keys
    beside=(4 * 34 + 1) * 2560 + 34 * 2 * 256,
    # five layers with a window, then one without
    attention=((29, 8, 256, 256, 1024), (5, 8, 256, 256, 0)),
    lengths=(512, 32768),
)  # fmt: skip

MODELS["qwen2.5-7b"] = HandCount(
    {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
     "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
     "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28},
    multiplying=28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944) + 152064 * 3584,
    # q, k and v have biases
    beside=152064 * 3584 + 57 * 3584 + 28 * (3584 + 2 * 512),
    attention=((28, 28, 128, 128, 0),),
)  # fmt: skip

MODELS["qwen2.5-vl-7b"] = HandCount(
    {**MODELS["qwen2.5-7b"].config, "model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280}},
    multiplying=MODELS["qwen2.5-7b"].multiplying,  # the language model is the same; its vision part is left out
    beside=MODELS["qwen2.5-7b"].beside,
    attention=MODELS["qwen2.5-7b"].attention,
    kin="qwen2",
)  # fmt: skip

MODELS["qwen3-8b"] = HandCount(
    {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
     "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
     "tie_word_embeddings": False, "use_sliding_window": False, "max_window_layers": 36},
    multiplying=36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288) + 151936 * 4096,
    beside=151936 * 4096 + 73 * 4096 + 36 * 2 * 128,
    attention=((36, 32, 128, 128, 0),),
)  # fmt: skip

MODELS["qwen3-30b-a3b"] = HandCount(
    {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
     "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
     "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
     "vocab_size": 151936, "tie_word_embeddings": False},
    # 32 heads of 128 are wider than the hidden states
    multiplying=48 * (2 * 2048 * 4096 + 2 * 2048 * 512 + 2048 * 128 + 8 * 3 * 2048 * 768) + 151936 * 2048,
    beside=151936 * 2048 + 97 * 2048 + 48 * 2 * 128,
    idle=48 * 120 * 3 * 2048 * 768,
    attention=((48, 32, 128, 128, 0),),
)  # fmt: skip

# Gated delta net: 16 key heads and 32 value heads of 128, so keys are 2048 wide and values 4096.
_DELTA_NET = (
    2048 * (2 * 2048 + 2 * 4096)  # q and k, v and the output gate
    + 2048 * 2 * 32  # beta and decay of each value head
    + 4 * (2 * 2048 + 4096)  # a convolution of four taps over q, k and v
    + 4096 * 2048  # out
)
MODELS["qwen3-next-80b-a3b"] = HandCount(
    {"model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
     "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4,
     "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
     "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512, "num_experts": 512,
     "num_experts_per_tok": 10, "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1,
     "mlp_only_layers": [], "vocab_size": 151936, "tie_word_embeddings": False},
    multiplying=36 * _DELTA_NET
    + 12 * (3 * 2048 * 4096 + 2 * 2048 * 512)  # q, its gate and o; k and v
    + 48 * (2048 * 512 + 10 * 3 * 2048 * 512 + 3 * 2048 * 512 + 2048)  # router, ten experts, the shared one, its gate
    + 151936 * 2048,
    beside=151936 * 2048 + 97 * 2048 + 36 * (2 * 32 + 128) + 12 * 2 * 256,
    idle=48 * 502 * 3 * 2048 * 512,
    attention=((12, 16, 256, 256, 0),),
    # the state is read before and after it is written: three products of 128 x 128 for each value head
    state_products=36 * 3 * 32 * 128 * 128,
)  # fmt: skip

# MLA of DeepSeek-V3: queries through 1536, keys and values through 512 plus a rotated part of 64.
_MLA = 7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168
_DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "num_nextn_predict_layers": 1, "vocab_size": 129280, "tie_word_embeddings": False,
}  # fmt: skip
MODELS["deepseek-v3"] = HandCount(
    _DEEPSEEK,
    # 3 dense layers; 58 with a router, eight experts and a shared one
    multiplying=61 * _MLA + 3 * 3 * 7168 * 18432 + 58 * (7168 * 256 + 9 * 3 * 7168 * 2048) + 129280 * 7168,
    beside=129280 * 7168 + (2 * 61 + 1) * 7168 + 61 * (1536 + 512),
    idle=58 * 248 * 3 * 7168 * 2048,
    attention=((61, 128, 192, 128, 0),),
    lengths=(4096, 32768),
)

MODELS["deepseek-v3 with multi-token prediction"] = HandCount(
    {**_DEEPSEEK, "mtp_layers": 1},
    # one more layer, the projection that joins its two inputs, and the head again
    multiplying=MODELS["deepseek-v3"].multiplying
    + _MLA + 7168 * 256 + 9 * 3 * 7168 * 2048 + 2 * 7168 * 7168 + 129280 * 7168,
    beside=MODELS["deepseek-v3"].beside + 5 * 7168 + 1536 + 512,
    idle=59 * 248 * 3 * 7168 * 2048,
    attention=((62, 128, 192, 128, 0),),
    lengths=(4096, 32768),
    kin="none",
)  # fmt: skip

# As DeepSeek-V3 with half of the heads, more experts and one dense layer.
_MLA_64 = 7168 * 1536 + 1536 * 64 * 192 + 7168 * (512 + 64) + 512 * 64 * (128 + 128) + 64 * 128 * 7168
MODELS["kimi-k2"] = HandCount(
    {**_DEEPSEEK, "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64,
     "n_routed_experts": 384, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "vocab_size": 163840},
    multiplying=61 * _MLA_64 + 3 * 7168 * 18432 + 60 * (7168 * 384 + 9 * 3 * 7168 * 2048) + 163840 * 7168,
    beside=163840 * 7168 + (2 * 61 + 1) * 7168 + 61 * (1536 + 512),
    idle=60 * 376 * 3 * 7168 * 2048,
    attention=((61, 64, 192, 128, 0),),
    kin="deepseek_v3",
)  # fmt: skip

MODELS["glm-4.5"] = HandCount(
    {"model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
     "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
     "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5, "n_routed_experts": 160,
     "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1,
     "vocab_size": 151552, "tie_word_embeddings": False},
    multiplying=92 * (2 * 5120 * 12288 + 2 * 5120 * 1024)
    + 3 * 3 * 5120 * 12288
    + 89 * (5120 * 160 + 9 * 3 * 5120 * 1536)
    + 151552 * 5120,
    # biases of q, k and v; norms of queries and keys
    beside=151552 * 5120 + 185 * 5120 + 92 * (12288 + 2 * 1024 + 2 * 128),
    idle=89 * 152 * 3 * 5120 * 1536,
    attention=((92, 96, 128, 128, 0),),
)  # fmt: skip

MODELS["gpt-oss-120b"] = HandCount(
    {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
     "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
     "layer_types": ["sliding_attention", "full_attention"] * 18, "num_local_experts": 128,
     "num_experts_per_tok": 4, "experts_per_token": 4, "attention_bias": True, "vocab_size": 201088,
     "tie_word_embeddings": False},
    multiplying=36 * (2 * 2880 * 4096 + 2 * 2880 * 512 + 2880 * 128 + 4 * 3 * 2880 * 2880) + 201088 * 2880,
    # biases of q, k, v and o, one sink per head; biases of the router and of four experts
    beside=201088 * 2880 + 73 * 2880 + 36 * (4096 + 2 * 512 + 2880 + 64 + 128 + 4 * 3 * 2880),
    idle=36 * 124 * 3 * (2880 * 2880 + 2880),
    attention=((18, 64, 64, 64, 128), (18, 64, 64, 64, 0)),
    lengths=(8192, 131072),
)  # fmt: skip

# Mamba-2 with 128 heads of 64 and a state of 128 that one group shares: 8192 channels.
_GRANITE_MAMBA = (
    4096 * (8192 + 8192 + 2 * 128 + 128)  # gate, x, B and C, the step of each head
    + 4 * (8192 + 2 * 128)  # a convolution of four taps over x, B and C
    + 8192 * 4096  # out
)
MODELS["granite-4.0-h-small"] = HandCount(
    {"model_type": "granitemoehybrid", "hidden_size": 4096, "intermediate_size": 768, "num_hidden_layers": 40,
     "num_attention_heads": 32, "num_key_value_heads": 8, "mamba_n_heads": 128, "mamba_d_head": 64,
     "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True,
     "num_local_experts": 72, "num_experts_per_tok": 10, "shared_intermediate_size": 1536,
     "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, "vocab_size": 100352,
     "tie_word_embeddings": True},
    multiplying=36 * _GRANITE_MAMBA
    + 4 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    + 40 * (4096 * 72 + 10 * 3 * 4096 * 768 + 3 * 4096 * 1536)
    + 100352 * 4096,
    # A, D and the step's bias of each head, the gated norm, the convolution's bias
    beside=81 * 4096 + 36 * (3 * 128 + 8192 + 8192 + 2 * 128),
    idle=40 * 62 * 3 * 4096 * 768,
    attention=((4, 32, 128, 128, 0),),
    # state += x B and y = state C, for each channel and each of 128 values
    state_products=36 * 2 * 8192 * 128,
)  # fmt: skip

_FALCON_MAMBA = 2048 * (2 * 3072 + 2 * 256 + 48) + 4 * (3072 + 2 * 256) + 3072 * 2048
MODELS["falcon-h1-1.5b"] = HandCount(
    {"model_type": "falcon_h1", "hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 24,
     "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "mamba_d_ssm": 3072, "mamba_n_heads": 48,
     "mamba_d_head": 64, "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
     "mamba_conv_bias": True, "mamba_rms_norm": False, "vocab_size": 65536, "tie_word_embeddings": False},
    # attention and Mamba-2 in parallel in every layer
    multiplying=24 * (2 * 2048 * 1024 + 2 * 2048 * 256 + _FALCON_MAMBA + 3 * 2048 * 4096) + 65536 * 2048,
    beside=65536 * 2048 + 49 * 2048 + 24 * (3 * 48 + 3072 + 2 * 256),
    attention=((24, 8, 128, 128, 0),),
    state_products=24 * 2 * 3072 * 256,
)  # fmt: skip

# Mamba: 8192 channels with 16 values of state each; the step goes through a rank of 256.
_JAMBA_MAMBA = 4096 * 2 * 8192 + 4 * 8192 + 8192 * (256 + 2 * 16) + 256 * 8192 + 8192 * 4096
MODELS["jamba-v0.1"] = HandCount(
    {"model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
     "num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4,
     "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 16, "num_experts_per_tok": 2,
     "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256, "vocab_size": 65536,
     "tie_word_embeddings": False},
    multiplying=28 * _JAMBA_MAMBA
    + 4 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    + 16 * 3 * 4096 * 14336
    + 16 * (4096 * 16 + 2 * 3 * 4096 * 14336)
    + 65536 * 4096,
    # biases of the step and the convolution, D, A; norms of the step, B and C
    beside=65536 * 4096 + 65 * 4096 + 28 * (3 * 8192 + 8192 * 16 + 256 + 2 * 16),
    idle=16 * 14 * 3 * 4096 * 14336,
    attention=((4, 32, 128, 128, 0),),
    state_products=28 * 2 * 8192 * 16,
)  # fmt: skip

_NEMOTRON_MAMBA = 4096 * (2 * 8192 + 2 * 8 * 128 + 128) + 4 * (8192 + 2 * 8 * 128) + 8192 * 4096
_NEMOTRON_PATTERN = "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-"
MODELS["nemotron-h-8b"] = HandCount(
    {"model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 52,
     "hybrid_override_pattern": _NEMOTRON_PATTERN, "num_attention_heads": 32, "num_key_value_heads": 8,
     "attention_head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
     "conv_kernel": 4, "expand": 2, "use_conv_bias": True, "vocab_size": 131072, "tie_word_embeddings": False},
    # every layer is one block: 24 of Mamba-2, 4 of attention, 24 of two matrices without a gate
    multiplying=24 * _NEMOTRON_MAMBA + 4 * (2 * 4096 * 4096 + 2 * 4096 * 1024) + 24 * 2 * 4096 * 21504
    + 131072 * 4096,
    beside=131072 * 4096 + (52 + 1) * 4096 + 24 * (3 * 128 + 8192 + 8192 + 2 * 8 * 128),
    attention=((4, 32, 128, 128, 0),),
    state_products=24 * 2 * 8192 * 128,
    more={"hybrid_override_pattern": None, "num_hidden_layers": None, "layers_block_type": [
        {"M": "mamba", "*": "attention", "-": "mlp"}[letter] for letter in _NEMOTRON_PATTERN]},
)  # fmt: skip

MODELS["olmo-2-7b"] = HandCount(
    {"model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
     "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352, "tie_word_embeddings": False},
    multiplying=32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 100352 * 4096,
    # two norms as wide as the hidden states, two as wide as all queries and all keys
    beside=100352 * 4096 + 65 * 4096 + 32 * 2 * 4096,
    attention=((32, 32, 128, 128, 0),),
)  # fmt: skip

MODELS["gpt-2"] = HandCount(
    {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "n_ctx": 1024,
     "vocab_size": 50257},
    multiplying=12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50257 * 768,
    # learned positions; norms with biases; biases of q, k, v, o and both matrices. The embedding is the head.
    beside=1024 * 768 + 25 * 2 * 768 + 12 * (4 * 768 + 3072 + 768),
    attention=((12, 12, 64, 64, 0),),
    lengths=(512, 1024),
)  # fmt: skip

MODELS["command-r"] = HandCount(
    {"model_type": "cohere", "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
     "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 256000, "use_qk_norm": False},
    multiplying=40 * (4 * 8192 * 8192 + 3 * 8192 * 22528) + 256000 * 8192,
    # attention and feed-forward run in parallel after one norm
    beside=41 * 8192,
    attention=((40, 64, 128, 128, 0),),
)  # fmt: skip

_LIGHTNING = 6144 * 3 * 8192 + 8192 * 6144 + 6144 * 8192  # q, k and v; out; the output gate
MODELS["minimax-01"] = HandCount(
    {"model_type": "minimax_text_01", "hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80,
     "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 32,
     "num_experts_per_tok": 2, "attn_type_list": ([0] * 7 + [1]) * 10, "vocab_size": 200064,
     "tie_word_embeddings": False},
    # seven layers of lightning attention, then one of full attention
    multiplying=70 * _LIGHTNING
    + 10 * (2 * 6144 * 8192 + 2 * 6144 * 1024)
    + 80 * (6144 * 32 + 2 * 3 * 6144 * 9216)
    + 200064 * 6144,
    beside=200064 * 6144 + 161 * 6144 + 70 * 8192,
    idle=80 * 30 * 3 * 6144 * 9216,
    attention=((10, 64, 128, 128, 0),),
    state_products=70 * 2 * 64 * 128 * 128,
    kin="minimax",
    more={"attn_type_list": None, "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10},
)  # fmt: skip

MODELS["minimax-m2"] = HandCount(
    {"model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
     "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 256,
     "num_experts_per_tok": 8, "attn_type_list": [1] * 62, "use_mtp": True, "num_mtp_modules": 3,
     "mtp_transformer_layers": 1, "use_qk_norm": True, "vocab_size": 200064, "tie_word_embeddings": False},
    multiplying=62 * (2 * 3072 * 6144 + 2 * 3072 * 1024 + 3072 * 256 + 8 * 3 * 3072 * 1536) + 200064 * 3072,
    # norms of all queries and all keys
    beside=200064 * 3072 + 125 * 3072 + 62 * (6144 + 1024),
    idle=62 * 248 * 3 * 3072 * 1536,
    attention=((62, 48, 128, 128, 0),),
)  # fmt: skip
