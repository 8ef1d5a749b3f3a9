"""What does one pipeline stage compute? A run of decoder layers, with the embedding first and the head last."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from trainer.model.experts import Experts
from trainer.model.plan import Plan
from trainer.model.shape import ModelShape
from trainer.pace import Pace
from trainer.parallel.collectives import gather, reduce_scatter
from trainer.parallel.context import positions
from trainer.parallel.tensor import SplitLinear, VocabEmbedding, replicated

again_later = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Computes its result again in backward instead of keeping what led to it; nothing here draws random numbers."""


class Norm(nn.Module):
    """RMS norm; on each tensor-parallel rank it sees a slice of the sequence."""

    def __init__(self, plan: Plan, pace: Pace | None = None) -> None:
        super().__init__()
        shape = plan.settled.shape
        self.weight = replicated(plan, torch.ones(shape.hidden))
        self.eps, self.pace = shape.norm_eps, pace

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale each token to unit root mean square."""
        weight = self.weight if self.pace is None else self.pace.weight(self.weight)
        return F.rms_norm(x, weight.shape, weight, self.eps)


class Attention(nn.Module):
    """Causal self-attention with rotary positions; heads are split over tp, the sequence over cp."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        shape = plan.settled.shape
        self.tp, self.width, self.documents = plan.mesh["tp"], shape.head_dim, plan.documents
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q = SplitLinear(plan, f"{name}.q", shape.hidden, queries)
        self.k = SplitLinear(plan, f"{name}.k", shape.hidden, keys)
        self.v = SplitLinear(plan, f"{name}.v", shape.hidden, keys)
        self.out = SplitLinear(plan, f"{name}.out", queries, shape.hidden, dim=1)
        self.core = plan.attention
        self.recompute = plan.settled.options.recompute == "selective"

    def forward(self, x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
        """Attend; takes and gives a slice of the sequence."""
        x = gather(x, self.tp)
        q, k, v = (self._heads(layer(x)) for layer in (self.q, self.k, self.v))
        q, k = rotate(q, rotary), rotate(k, rotary)
        out = again_later(self._attend, q, k, v) if self.recompute else self._attend(q, k, v)
        return reduce_scatter(self.out(out.permute(2, 0, 1, 3).flatten(2)), self.tp)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (-1, self.width)).permute(1, 2, 0, 3)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.documents <= 1:
            return self.core(q, k, v)
        parts = zip(*(x.chunk(self.documents, 2) for x in (q, k, v)), strict=True)
        return torch.cat([self.core(*part) for part in parts], 2)


def rotary_table(shape: ModelShape, where: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Compute the cosines and sines of the given positions, ``[2, sequence, head width / 2]``."""
    precise = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, shape.head_dim, 2, dtype=precise) / shape.head_dim
    angles = where.to(precise).unsqueeze(1) / shape.rope_theta**exponents
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """Turn ``[batch, heads, sequence, width]`` by the angles of its positions."""
    cosine, sine = rotary
    left, right = x.to(rotary.dtype).chunk(2, -1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1).to(x.dtype)


class FeedForward(nn.Module):
    """SwiGLU, split over tp."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        shape, self.tp = plan.settled.shape, plan.mesh["tp"]
        self.gate = SplitLinear(plan, f"{name}.gate", shape.hidden, shape.ffn)
        self.up = SplitLinear(plan, f"{name}.up", shape.hidden, shape.ffn)
        self.down = SplitLinear(plan, f"{name}.down", shape.ffn, shape.hidden, dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the network; takes and gives a slice of the sequence."""
        x = gather(x, self.tp)
        return reduce_scatter(self.down(F.silu(self.gate(x)) * self.up(x)), self.tp)


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, plan: Plan, index: int) -> None:
        super().__init__()
        shape, name = plan.settled.shape, f"layers.{index}"
        self.attention_norm = Norm(plan, plan.pace)
        self.attention = Attention(plan, f"{name}.attention")
        self.ffn_norm = Norm(plan)
        self.ffn = Experts(plan, f"{name}.experts") if shape.experts else FeedForward(plan, f"{name}.ffn")
        self.recompute = plan.settled.options.recompute == "full"
        self.pace, self.brake = plan.pace, plan.brake

    def forward(self, x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
        """Run the layer, keeping its insides or computing them again in backward."""
        if self.recompute:
            with set_checkpoint_early_stop(self.pace is None):  # the paced wait stands at the layer's very end
                return again_later(self._run, x, rotary)
        return self._run(x, rotary)

    def _run(self, x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
        for clock in (self.pace, self.brake):
            x = clock.enter(x) if clock is not None else x
        x = x + self.attention(self.attention_norm(x), rotary)
        more = self.ffn(self.ffn_norm(x))
        for clock in (self.pace, self.brake):
            more = clock.leave(more) if clock is not None else more
        return x + more


def layers_of(stage: int, stages: int, layers: int) -> range:
    """Give the layers of a stage: as even as can be, the longer ones first."""
    each, more = divmod(layers, stages)
    start = stage * each + min(stage, more)
    return range(start, start + each + (stage < more))


class Decoder(nn.Module):
    """The layers of one stage; takes ``[batch, sequence]`` tokens first, gives logits last, hidden states between."""

    def __init__(self, plan: Plan, stage: int) -> None:
        super().__init__()
        settled, shape, tp, cp = plan.settled, plan.settled.shape, plan.mesh["tp"], plan.mesh["cp"]
        self.tp, self.vocabulary = tp, shape.vocab // tp.size
        self.first, self.last = stage == 0, stage + 1 == settled.stages
        if self.first:
            self.embedding = VocabEmbedding(plan, "embedding", shape.vocab, shape.hidden)
        layers = layers_of(stage, settled.stages, shape.layers)
        self.layers = nn.ModuleDict({str(index): Block(plan, index) for index in layers})
        if self.last:
            self.norm = Norm(plan)
            self.head = SplitLinear(replace(plan, multiply=F.linear), "head", shape.hidden, shape.vocab)
        # Documents of equal length start their positions anew.
        where = positions(shape.sequence, cp.size, cp.rank, settled.options.cp_layout)
        self.rotary = rotary_table(shape, where % (shape.sequence // plan.documents), plan.dtype).to(plan.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the stage."""
        if self.first:
            x = self.embedding(x.t())
        for layer in self.layers.values():
            x = layer(x, self.rotary)
        return self.head(gather(self.norm(x), self.tp)) if self.last else x
