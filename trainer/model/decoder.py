"""Decoder: one pipeline stage, a run of layers with the embedding first and the head last."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from trainer.foundation.weight_gradients import LINEAR, multiply
from trainer.model.experts import Experts
from trainer.model.layers import FeedForward, Norm, PositionEmbedding, SharedExperts
from trainer.model.rope import rotary_table, rotate
from trainer.parallel.context_parallel import positions
from trainer.parallel.recompute import recompute
from trainer.parallel.stage import Plan
from trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from trainer.parallel.weights import tie

Lengths = tuple[int, ...]
"""Lengths of the documents in each sequence, in order; empty if a sequence is one document."""


class Attention(nn.Module):
    """Causal self-attention with rotary positions; heads are split over tp, the sequence over cp."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        shape = plan.config.shape
        self.edges, self.width = plan.edges, shape.head_dim
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q = ColumnParallelLinear(plan, f"{name}.q", shape.hidden, queries, bias=shape.qkv_bias)
        self.k = ColumnParallelLinear(plan, f"{name}.k", shape.hidden, keys, bias=shape.qkv_bias)
        self.v = ColumnParallelLinear(plan, f"{name}.v", shape.hidden, keys, bias=shape.qkv_bias)
        self.out = RowParallelLinear(plan, f"{name}.out", queries, shape.hidden, bias=shape.out_bias)
        self.q_norm = Norm(plan, of_heads=True) if shape.qk_norm else nn.Identity()
        self.k_norm = Norm(plan, of_heads=True) if shape.qk_norm else nn.Identity()
        self.core, self.rotates = plan.attention, not shape.learned_positions
        self.recomputes = plan.config.options.recompute == "selective"

    def forward(self, x: torch.Tensor, rotary: torch.Tensor, lengths: Lengths) -> torch.Tensor:
        """Attend within each document; input and output have the layout between blocks."""
        q, k, v = (self._heads(part) for part in self.edges.project(x, (self.q, self.k, self.v)))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rotates:
            q, k = rotate(q, rotary), rotate(k, rotary)
        attend = partial(recompute, self.attend) if self.recomputes else self.attend
        out = attend(q, k, v, lengths=lengths)
        return self.out(out.permute(2, 0, 1, 3).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (-1, self.width)).permute(1, 2, 0, 3)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, lengths: Lengths) -> torch.Tensor:
        """Attend in ``[batch, heads, sequence, head width]``, within each document."""
        if not lengths:
            return self.core(q, k, v)
        documents = zip(*(x.split(lengths, 2) for x in (q, k, v)), strict=True)
        return torch.cat([self.core(*document) for document in documents], 2)


Load = torch.Tensor | None
"""Tokens sent to each expert of a layer; `None` in a dense layer."""


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, plan: Plan, index: int) -> None:
        super().__init__()
        shape, name = plan.config.shape, f"layers.{index}"
        self.attention_norm = Norm(plan)
        self.attention = Attention(plan, f"{name}.attention")
        self.ffn_norm = Norm(plan)
        self.shared: SharedExperts | None = None
        if shape.has_experts(index):
            self.ffn: nn.Module = Experts(plan, f"{name}.experts")
            if shape.shared_ffn:
                self.shared = SharedExperts(plan, f"{name}.shared")
        else:
            self.ffn = FeedForward(plan, f"{name}.ffn", shape.ffn, bias=shape.ffn_bias)
        self.recomputes = plan.config.options.recompute == "full"

    def forward(self, x: torch.Tensor, rotary: torch.Tensor, lengths: Lengths) -> tuple[torch.Tensor, Load]:
        """Run the layer, and store its activations or recompute them in backward; return its output and load."""
        return recompute(self.run, x, rotary, lengths) if self.recomputes else self.run(x, rotary, lengths)

    def run(self, x: torch.Tensor, rotary: torch.Tensor, lengths: Lengths) -> tuple[torch.Tensor, Load]:
        """Run the layer; it changes no state, because recomputation runs it again."""
        x = x + self.attention(self.attention_norm(x), rotary, lengths)
        inner = self.ffn_norm(x)
        more, load = self.ffn(inner) if isinstance(self.ffn, Experts) else (self.ffn(inner), None)
        if self.shared is not None:
            more = more + self.shared(inner)
        return x + more, load


def layers_of(stage: int, stages: int, layers: int) -> range:
    """Return the layers of a stage: as even as possible, longer stages first."""
    fewest, longer_stages = divmod(layers, stages)
    start = stage * fewest + min(stage, longer_stages)
    return range(start, start + fewest + (stage < longer_stages))


class Decoder(nn.Module):
    """The layers of one stage, from tokens ``[batch, sequence]`` or hidden states to hidden states or logits."""

    def __init__(self, plan: Plan, stage: int) -> None:
        super().__init__()
        config, shape, cp = plan.config, plan.config.shape, plan.mesh["cp"]
        self.edges, self.grad_store = plan.edges, plan.grad_store
        self.first, self.last = stage == 0, stage + 1 == config.stages
        where = positions(shape.sequence, cp.size, cp.rank, config.options.cp_layout)
        self.embedding = self.positions = self.head = None
        if self.first or (self.last and shape.tied):
            self.embedding = VocabParallelEmbedding(plan, "embedding", shape.vocab, shape.hidden)
            if config.stages > 1 and shape.tied:
                tie(self.embedding.weight, stored=self.first)
        if self.first and shape.learned_positions:
            self.positions = PositionEmbedding(plan, where)
        layers = layers_of(stage, config.stages, shape.layers)
        self.layers = nn.ModuleDict({str(index): Block(plan, index) for index in layers})
        if self.last:
            self.norm = Norm(plan)
            if not shape.tied:
                self.head = ColumnParallelLinear(replace(plan, product=LINEAR), "head", shape.hidden, shape.vocab)
        self.rotary = rotary_table(shape, where, config.compute).to(plan.device)

    def forward(self, x: torch.Tensor, lengths: Lengths = ()) -> torch.Tensor:
        """Run the stage; `lengths` are those of the documents in each sequence. Positions count over all documents."""
        if self.first:
            x = self.embedding(x.t())
            x = x if self.positions is None else self.positions(x)
        for layer in self.layers.values():
            x, load = layer(x, self.rotary, lengths)
            if load is not None:
                layer.ffn.count(load)
        if not self.last:
            return x
        x = self.edges.enter(self.norm(x))
        if self.head is None:
            return multiply(x, self.embedding.weight, LINEAR, self.grad_store)
        return self.head(x)
