"""The shape of a decoder: its sizes, the variants of its layers, and its number of weights."""

from __future__ import annotations

from dataclasses import dataclass

from usp_prof.contract import ModelEntry
from usp_prof.conventions import complete


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of rotary positions to longer sequences; `kind` determines the fields in use."""

    kind: str
    factor: float
    original: int = 0
    """Longest sequence without scaling."""
    low: float = 1.0
    """llama3: pairs with fewer turns within `original` are scaled fully; yarn's name is `beta_slow`."""
    high: float = 4.0
    """llama3: pairs with more turns within `original` are not scaled; yarn's name is `beta_fast`."""
    attention_factor: float = 1.0
    """yarn: factor of cosines and sines."""
    truncate: bool = True
    """yarn: whether the ramp starts and ends at whole pairs."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes and variants of a decoder; by default a Llama: RMS norm, rotary positions, grouped queries, SwiGLU."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    """Inner width of the feed-forward network, and of an expert if `expert_ffn` is zero."""
    vocab: int
    sequence: int
    experts: int = 0
    """Routed experts in each layer from `first_dense` on."""
    top_k: int = 2
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    head_dim: int = 0
    """Width of one attention head (default: hidden / heads)."""
    rope_scaling: RopeScaling | None = None
    learned_positions: int = 0
    """Rows of a learned position embedding; 0: rotary positions."""
    window: int = 0
    """Sliding window in tokens; the trainer does not support longer sequences than the window."""
    norm: str = "rms"
    """`rms`, or `layer` with mean and bias."""
    qk_norm: bool = False
    """Whether each head's queries and keys are normalized before they are rotated."""
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    activation: str = "silu"
    gated: bool = True
    """Whether the feed-forward network multiplies by a gate (SwiGLU) or has two matrices only."""
    tied: bool = False
    """Whether the head is the embedding."""
    first_dense: int = 0
    """Layers without experts before the first that has them."""
    expert_ffn: int = 0
    shared_ffn: int = 0
    """Inner width of the shared experts, which process all tokens."""
    shared_gate: bool = False
    """Whether a sigmoid per token scales the output of the shared experts."""
    scoring: str = "softmax"
    """How the router scores experts: `softmax` or `sigmoid`."""
    renormalize: bool = True
    """Whether the weights of a token's experts are normalized to a sum of one."""
    routed_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden // self.heads)

    @property
    def expert_width(self) -> int:
        """Inner width of one routed expert."""
        return self.expert_ffn or self.ffn

    def has_experts(self, layer: int) -> bool:
        """Whether a layer routes tokens to experts."""
        return self.experts > 0 and layer >= self.first_dense

    @property
    def can_have_experts(self) -> bool:
        """Whether experts can replace its feed-forward networks: experts are gated and have no biases."""
        return self.gated and not self.ffn_bias

    def layer_parameters(self, experts: int, layer: int | None = None) -> int:
        """Return the weights of a layer (default: the last) with this many routed experts: all, or those in use."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys)
        attention += self.qkv_bias * (queries + 2 * keys) + self.out_bias * self.hidden
        attention += self.qk_norm * 2 * self.head_dim
        matrices = 3 if self.gated else 2
        if self.has_experts(self.layers - 1 if layer is None else layer):
            routed = min(experts, self.experts) * matrices * self.hidden * self.expert_width
            shared = matrices * self.hidden * self.shared_ffn + self.shared_gate * self.hidden
            ffn = routed + shared + self.experts * self.hidden
        else:
            ffn = matrices * self.hidden * self.ffn
            ffn += self.ffn_bias * ((matrices - 1) * self.ffn + self.hidden)
        return attention + ffn + 2 * self.norm_parameters

    @property
    def norm_parameters(self) -> int:
        """Weights of one norm."""
        return (2 if self.norm == "layer" else 1) * self.hidden

    @property
    def parameters(self) -> int:
        """All weights: embeddings, layers, last norm, head."""
        return self._total(self.experts)

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses; all weights in a dense model."""
        return self._total(self.top_k)

    def _total(self, experts: int) -> int:
        embeddings = ((1 if self.tied else 2) * self.vocab + self.learned_positions) * self.hidden
        dense = min(self.first_dense, self.layers)
        layers = dense * self.layer_parameters(experts, 0) + (self.layers - dense) * self.layer_parameters(experts)
        return layers + embeddings + self.norm_parameters

    def entry(self) -> ModelEntry:
        """Describe the model for the manifest."""
        alike = ("name", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "sequence", "experts")
        entry = ModelEntry(
            **{field: getattr(self, field) for field in alike},
            ffn_hidden=self.ffn,
            gated_ffn=self.gated,
            tied_embeddings=self.tied,
            experts_per_token=self.top_k if self.experts else 0,
            expert_ffn_hidden=self.expert_width if self.experts else 0,
            # The manifest counts shared experts in widths of a routed one.
            shared_experts=round(self.shared_ffn / self.expert_width) if self.experts else 0,
            moe_layers=max(self.layers - self.first_dense, 0) if self.experts else 0,
            parameters=self.parameters,
            active_parameters=self.active_parameters,
        )
        return complete(entry)


PRESETS = {
    shape.name: shape
    for shape in (
        ModelShape("tiny", layers=4, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=256, sequence=64),
        ModelShape("small", layers=8, hidden=256, heads=8, kv_heads=4, ffn=768, vocab=1024, sequence=256),
        ModelShape("100m", layers=12, hidden=768, heads=12, kv_heads=12, ffn=2048, vocab=16384, sequence=1024),
        ModelShape("1b", layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=32768, sequence=2048),
        ModelShape("8b", 32, 4096, 32, 8, 14336, 128256, 4096, rope_theta=500_000.0),
    )
}
