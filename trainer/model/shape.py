"""How large is the model, and how much arithmetic does one of its tokens cost?"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.errors import OptionError, refuse
from usp_prof.contract import ModelEntry
from usp_prof.conventions import complete
from usp_prof.record.description import describe_model


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder (RMS norm, rotary positions, grouped queries, SwiGLU, optional routed experts)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    sequence: int
    experts: int = 0
    top_k: int = 2
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    def layer_parameters(self, experts: int) -> int:
        """Weights of one layer, counting `experts` of its routed experts: all there are, or those a token meets."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        ffn = max(min(experts, self.experts), 1) * 3 * self.hidden * self.ffn
        return attention + ffn + self.experts * self.hidden + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All weights: embedding, layers, last norm, head."""
        return self._with(self.experts)

    @property
    def active_parameters(self) -> int:
        """The weights that one token meets; all of them in a dense model."""
        return self._with(self.top_k)

    def _with(self, experts: int) -> int:
        return self.layers * self.layer_parameters(experts) + 2 * self.vocab * self.hidden + self.hidden

    def entry(self) -> ModelEntry:
        """Describe the model for the manifest."""
        alike = ("name", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "sequence", "experts")
        entry = ModelEntry(
            **{field: getattr(self, field) for field in alike},
            ffn_hidden=self.ffn,
            experts_per_token=self.top_k if self.experts else 0,
            expert_ffn_hidden=self.ffn if self.experts else 0,
            moe_layers=self.layers if self.experts else 0,
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


def load_shape(name: str, **changes: Any) -> ModelShape:  # noqa: ANN401 - the sizes of a shape
    """Find a preset or read a `config.json` of the Hugging Face kind; `changes` that are not `None` override."""
    if name.endswith(".json"):
        shape = _read_config(Path(name))
    elif name in PRESETS:
        shape = PRESETS[name]
    else:
        raise OptionError(f"--model {name}: no such model", hint=f"one of {', '.join(PRESETS)}, or a config.json")
    return replace(shape, **{key: value for key, value in changes.items() if value is not None})


def _read_config(path: Path) -> ModelShape:
    hint = "a Hugging Face config.json of a Llama-like model"
    try:
        data = json.loads(path.read_text())
        read = describe_model(data)
    except (OSError, ValueError, TypeError) as error:
        raise OptionError(f"--model {path}: {error}", hint) from error
    for size in ("layers", "hidden", "heads", "ffn_hidden", "vocab"):
        refuse(not getattr(read, size), f"--model {path}: it gives no {size}", hint)
    other = read.heads * read.head_dim != read.hidden
    refuse(other, f"--model {path}: {read.heads} heads of {read.head_dim} do not make up hidden = {read.hidden}", hint)
    return ModelShape(
        name=read.name or path.stem,
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        kv_heads=read.kv_heads,
        ffn=read.expert_ffn_hidden or read.ffn_hidden,
        vocab=read.vocab,
        sequence=min(data.get("max_position_embeddings", 4096), 4096),
        experts=read.experts,
        top_k=read.experts_per_token or 2,
        rope_theta=float(data.get("rope_theta", 10_000.0)),
        norm_eps=float(data.get("rms_norm_eps", 1e-5)),
    )
