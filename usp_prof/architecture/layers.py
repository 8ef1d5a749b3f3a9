"""Layers: the blocks of each layer, in the various notations of configurations.

`fields.layer_words` returns one word per layer for the block that mixes its tokens: full, sliding or chunked attention,
a recurrence, or none. This module converts these words, and whether the layer is a mixture, to blocks.
"""

from __future__ import annotations

from usp_prof.architecture import blocks
from usp_prof.architecture.families import HEAD, WIDTH, Family
from usp_prof.architecture.fields import (
    CHUNKED,
    DENSE_ONLY,
    LINEAR,
    MIXTURE_ONLY,
    SLIDING,
    ArchitectureError,
    Fields,
    expert_count,
    layer_words,
    mixture_layers,
)
from usp_prof.contract import BlockEntry, LayerEntry


def layers_of(f: Fields, family: Family) -> tuple[list[LayerEntry], list[int]]:
    """Return the kinds of layers, and the index of each layer's kind, first to last."""
    single = f.has("layers_block_type", "hybrid_override_pattern")
    words = layer_words(f, family)
    is_mixture = mixture_layers(f, len(words))
    build = _Builder(f, family)
    kinds: list[LayerEntry] = []
    order: list[int] = []
    for word, mixed in zip(words, is_mixture, strict=True):
        layer = build.single(word) if single else build.layer(word, is_mixture=mixed)
        if layer not in kinds:
            kinds.append(layer)
        order.append(kinds.index(layer))
    return kinds, order


_FIELD_OF_RECURRENCE = (
    ("gated_delta_net", "linear_num_value_heads"),
    ("mamba2", "mamba_n_heads"),
    ("mamba", "mamba_dt_rank"),
)
"""Recurrences and their identifying fields, used if the model type does not decide; the first match counts."""


class _Builder:
    """Builder of the blocks of one model's layers."""

    def __init__(self, f: Fields, family: Family) -> None:
        self._f = f
        self._family = family
        self._hidden = f.needed("hidden_size", "n_embd", "d_model")
        self._heads = f.size("num_attention_heads", "n_head", "n_heads")
        self._kv_heads = f.size("num_key_value_heads", "num_kv_heads") or self._heads
        self._head_size = f.size("head_dim", "attention_head_dim")
        if not self._head_size and self._heads:
            self._head_size = self._hidden // self._heads
        self._matrices = family.matrices
        self._width = f.size("block_ff_dim", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
        if not self._width and family.wide:
            self._width = 4 * self._hidden
        bias = f.get("attention_bias", "qkv_bias", "use_bias", "enable_bias")
        self._qkv_bias = family.qkv_bias if bias is None else bool(bias)
        bias = f.get("attention_out_bias")
        bias = family.out_bias if bias is None else bias
        self._out_bias = self._qkv_bias if bias is None else bool(bias)
        bias = f.get("mlp_bias", "use_bias")
        self._mlp_bias = family.mlp_bias if bias is None else bool(bias)

    def layer(self, word: str, *, is_mixture: bool) -> LayerEntry:
        """Build a layer that mixes tokens, followed by a feed-forward block."""
        mixers = [self._mixer(word)]
        if self._family.parallel:
            mixers.insert(0, self._recurrence())
        index = self._indexer()
        if index is not None:
            mixers.append(index)
        return LayerEntry([*mixers, self._mixture() if is_mixture else self._dense()], self._norms())

    def single(self, word: str) -> LayerEntry:
        """Build a layer with a single block."""
        if word == MIXTURE_ONLY:
            return LayerEntry([self._mixture()], self._norms())
        return LayerEntry([self._dense() if word == DENSE_ONLY else self._mixer(word)], self._norms())

    def _norms(self) -> int:
        return self._family.norms * self._family.norm_values * self._hidden

    def _mixer(self, word: str) -> BlockEntry:
        if word in {DENSE_ONLY, MIXTURE_ONLY}:
            raise ArchitectureError(f"layer_types mixes a layer of {word} with layers of attention and other work")
        if word == LINEAR:
            return self._recurrence()
        if not self._heads:
            raise ArchitectureError("the configuration gives no num_attention_heads")
        window = 0
        if word == SLIDING:
            window = self._f.needed("sliding_window", "window_size")
        if word == CHUNKED:
            window = self._f.needed("attention_chunk_size")
        if self._f.size("kv_lora_rank"):
            return self._latent()
        return self._attention(word, window)

    def _attention(self, form: str, window: int) -> BlockEntry:
        heads, kv_heads, size = self._heads, self._kv_heads, self._head_size
        value = self._f.size("v_head_dim") or size
        family = self._family
        small = 0
        if self._qkv_bias:
            small += heads * size + kv_heads * (size + value)
        if self._out_bias:
            small += self._hidden
        has_norm = self._f.get("use_qk_norm") is not False
        if family.qk_norm and has_norm:
            small += {HEAD: 2 * size, WIDTH: (heads + kv_heads) * size}[family.qk_norm]
        if family.sinks:
            small += heads
        gate = self._hidden * heads * size if family.output_gate else 0
        return blocks.attention(
            self._hidden, heads, kv_heads, size, value, form=form, window=window, more_weights=gate, small=small
        )

    def _latent(self) -> BlockEntry:
        f = self._f
        f.size("qk_head_dim")  # requested only so that it counts as understood: it is the sum of its two parts
        rank = f.size("q_lora_rank")
        small = (rank or 0) + f.size("kv_lora_rank") + f.size("qk_rope_head_dim") + self._hidden
        return blocks.latent_attention(
            self._hidden,
            self._heads,
            rank,
            f.needed("kv_lora_rank"),
            f.needed("qk_nope_head_dim"),
            f.needed("qk_rope_head_dim"),
            f.needed("v_head_dim"),
            window=f.size("index_topk"),
            small=small if f.flag("attention_bias") else 0,
        )

    def _indexer(self) -> BlockEntry | None:
        f = self._f
        if not f.size("index_topk"):
            return None
        return blocks.indexer(
            self._hidden, f.needed("q_lora_rank"), f.needed("index_n_heads"), f.needed("index_head_dim")
        )

    def _recurrence(self) -> BlockEntry:
        forms = {
            "mamba": self._mamba, "mamba2": self._mamba2, "gated_delta_net": self._gated_delta_net,
            "delta_attention": self._delta_attention, "lightning": self._lightning, "short_conv": self._short_conv,
        }  # fmt: skip
        form = self._family.linear or next((name for name, field in _FIELD_OF_RECURRENCE if self._f.has(field)), "")
        if not form:
            raise ArchitectureError("some layers are recurrent (linear attention), which the model type does not say")
        return forms[form]()

    def _mamba(self) -> BlockEntry:
        f = self._f
        inner, state = f.needed("mamba_expand") * self._hidden, f.needed("mamba_d_state")
        rank = f.get("mamba_dt_rank")
        rank = -(-self._hidden // 16) if rank in (None, "auto") else int(rank)
        biases = inner * f.flag("mamba_conv_bias") + (2 * inner + self._hidden) * f.flag("mamba_proj_bias")
        return blocks.mamba(
            self._hidden, inner, state, f.needed("mamba_d_conv"), rank, biases=biases, small=rank + 2 * state
        )

    def _mamba2(self) -> BlockEntry:
        f = self._f
        heads = f.needed("mamba_n_heads", "mamba_num_heads")
        size = f.get("mamba_d_head", "mamba_head_dim")
        expanded = f.size("mamba_expand", "expand", default=2) * self._hidden
        inner = f.size("mamba_d_ssm") or expanded
        size = inner // heads if size in (None, "auto") else int(size)
        groups, state = f.needed("mamba_n_groups", "n_groups"), f.needed("mamba_d_state", "ssm_state_size")
        inner = heads * size
        channels = inner + 2 * groups * state
        biases = channels * f.flag("mamba_conv_bias", "use_conv_bias")
        biases += (inner + channels + heads + self._hidden) * f.flag("mamba_proj_bias", "use_bias")
        norm = inner if f.flag("mamba_rms_norm") else 0
        taps = f.needed("mamba_d_conv", "conv_kernel")
        return blocks.mamba2(self._hidden, heads, size, groups, state, taps, biases=biases, norm=norm)

    def _gated_delta_net(self) -> BlockEntry:
        f = self._f
        return blocks.gated_delta_net(
            self._hidden,
            f.needed("linear_num_key_heads"),
            f.needed("linear_num_value_heads"),
            f.needed("linear_key_head_dim"),
            f.needed("linear_value_head_dim"),
            f.needed("linear_conv_kernel_dim"),
        )

    def _delta_attention(self) -> BlockEntry:
        f = self._f
        detail = f.get("linear_attn_config")
        own = detail if isinstance(detail, dict) else {}
        heads = int(own.get("num_heads") or f.needed("linear_num_heads"))
        size = int(own.get("head_dim") or f.needed("linear_head_dim"))
        taps = int(own.get("short_conv_kernel_size") or f.needed("linear_conv_kernel_dim"))
        return blocks.delta_attention(self._hidden, heads, size, taps)

    def _lightning(self) -> BlockEntry:
        return blocks.lightning(self._hidden, self._heads, self._head_size)

    def _short_conv(self) -> BlockEntry:
        bias = self._f.flag("conv_bias")
        return blocks.short_conv(self._hidden, self._f.needed("conv_L_cache"), biases=5 * self._hidden * bias)

    def _dense(self) -> BlockEntry:
        f = self._f
        width = f.size("intermediate_size_mlp") or self._width or f.needed("intermediate_size")
        if f.flag("block_auto_adjust_ff_dim"):
            width = _adjusted(f, width)
        # A mixture's configuration without experts has only its shared block (Granite 4).
        shared = f.size("shared_intermediate_size")
        if shared and f.get("num_local_experts") == 0:
            width = shared
        small = self._family.activation_parameters
        small += (width * (self._matrices - 1) + self._hidden) if self._mlp_bias else 0
        return blocks.feed_forward(self._hidden, width, self._matrices, small=small)

    def _mixture(self) -> BlockEntry:
        f, hidden = self._f, self._hidden
        experts = expert_count(f)
        chosen = f.needed("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
        width = f.size("moe_intermediate_size", "expert_ffn_hidden")
        if not width:
            width = f.needed("moe_intermediate_size" if self._family.expert_width else "intermediate_size")
        f.size("intermediate_size_mlp")  # requested only so that it counts as understood: dense layers have it
        shared_experts = f.size("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        shared = f.size("shared_expert_intermediate_size", "shared_intermediate_size")
        one_shared = f.size("moe_shared_expert_intermediate_size")
        if one_shared:
            shared = one_shared * (shared_experts or 1)
        elif shared_experts:
            shared = shared_experts * width
        elif f.has("intermediate_size_mlp") or f.has("interleave_moe_layer_step"):
            shared = width  # Llama 4 has one shared expert, and no field for it
        bias = self._family.expert_bias
        return blocks.mixture(
            hidden, experts, chosen, width, self._matrices, shared_width=shared,
            shared_gate=hidden if self._family.shared_gate and shared else 0,
            expert_small=(self._matrices - 1) * width + hidden if bias else 0,
            small=experts if bias or self._family.correction_bias else 0,
        )  # fmt: skip


def _adjusted(f: Fields, width: int) -> int:
    """Return LFM2's width: two thirds, scaled, rounded up to a multiple."""
    scale = f.get("block_ffn_dim_multiplier")
    multiple = f.size("block_multiple_of", default=256)
    width = int(2 * width / 3)
    if scale is not None:
        width = int(scale * width)
    return multiple * -(-width // multiple)
