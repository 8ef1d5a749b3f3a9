"""The same decoder and training in plain torch, written separately: no parallelism, no fusion, float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trainer.configuration.shape import ModelShape


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def turn(x: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotate ``[batch, position, head, width]``: pairs are (i, i + width / 2)."""
    length, width = x.shape[1], x.shape[3]
    out = torch.empty_like(x)
    for pair in range(width // 2):
        angle = torch.arange(length, dtype=x.dtype) / theta ** (2 * pair / width)
        cosine, sine = angle.cos()[None, :, None], angle.sin()[None, :, None]
        left, right = x[..., pair], x[..., pair + width // 2]
        out[..., pair] = left * cosine - right * sine
        out[..., pair + width // 2] = right * cosine + left * sine
    return out


class Reference:
    """A decoder as a dictionary of weights."""

    def __init__(self, shape: ModelShape, weights: dict[str, torch.Tensor]) -> None:
        self.shape = shape
        self.weights = {name: value.detach().double().clone().requires_grad_() for name, value in weights.items()}
        self.moments = {
            name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in self.weights.items()
        }
        self.bias = torch.zeros(shape.layers, max(shape.experts, 1), dtype=torch.float64)
        self.updates = 0

    def attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        shape, w = self.shape, self.weights
        batch, length, _ = x.shape
        q = (x @ w[f"{name}.q.weight"].T).view(batch, length, shape.heads, shape.head_dim)
        k = (x @ w[f"{name}.k.weight"].T).view(batch, length, shape.kv_heads, shape.head_dim)
        v = (x @ w[f"{name}.v.weight"].T).view(batch, length, shape.kv_heads, shape.head_dim)
        q, k = turn(q, shape.rope_theta), turn(k, shape.rope_theta)
        out = torch.zeros_like(q)
        hidden_future = torch.ones(length, length, dtype=torch.bool).triu(1)
        for head in range(shape.heads):
            source = head * shape.kv_heads // shape.heads
            scores = q[:, :, head] @ k[:, :, source].transpose(1, 2) / math.sqrt(shape.head_dim)
            out[:, :, head] = scores.masked_fill(hidden_future, -math.inf).softmax(-1) @ v[:, :, source]
        return out.flatten(2) @ w[f"{name}.out.weight"].T

    def dense(self, x: torch.Tensor, name: str) -> torch.Tensor:
        w = self.weights
        gate = x @ w[f"{name}.gate.weight"].T
        return (gate * gate.sigmoid() * (x @ w[f"{name}.up.weight"].T)) @ w[f"{name}.down.weight"].T

    def mixture(self, x: torch.Tensor, layer: int, load: torch.Tensor) -> torch.Tensor:
        w, name = self.weights, f"layers.{layer}.ffn"
        scores = (x @ w[f"{name}.router"].T).softmax(-1)
        chosen = (scores.detach() + self.bias[layer]).topk(self.shape.top_k, -1).indices
        picked = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        gates = scores * picked
        gates = gates / gates.sum(-1, keepdim=True)
        load[layer] += picked.flatten(0, 1).sum(0)
        out = torch.zeros_like(x)
        for expert in range(self.shape.experts):
            gate = x @ w[f"{name}.weights.gate"][expert]
            result = (gate * gate.sigmoid() * (x @ w[f"{name}.weights.up"][expert])) @ w[f"{name}.weights.down"][expert]
            out = out + gates[..., expert, None] * result
        return out

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor, load: torch.Tensor) -> torch.Tensor:
        w, eps = self.weights, self.shape.norm_eps
        x = w["embedding.weight"][tokens]
        for layer in range(self.shape.layers):
            name = f"layers.{layer}"
            x = x + self.attention(norm(x, w[f"{name}.attention_norm.weight"], eps), f"{name}.attention")
            inner = norm(x, w[f"{name}.ffn_norm.weight"], eps)
            x = x + (self.mixture(inner, layer, load) if self.shape.experts else self.dense(inner, f"{name}.ffn"))
        logits = norm(x, w["norm.weight"], eps) @ w["head.weight"].T
        logs = logits - logits.logsumexp(-1, keepdim=True)
        return -logs.gather(-1, targets[..., None]).mean()

    def update(
        self, tokens: torch.Tensor, targets: torch.Tensor, rate: float, clip: float, decay: float
    ) -> tuple[float, float]:
        """Make one step of AdamW; return the loss and the gradient norm before clipping."""
        load = torch.zeros_like(self.bias)
        loss = self.loss(tokens, targets, load)
        gradients = dict(zip(self.weights, torch.autograd.grad(loss, list(self.weights.values())), strict=True))
        size = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
        factor = min(1.0, clip / (size + 1e-6))
        self.updates += 1
        with torch.no_grad():
            for name, weight in self.weights.items():
                gradient = gradients[name] * factor
                first, second = self.moments[name]
                first.mul_(0.9).add_(0.1 * gradient)
                second.mul_(0.95).add_(0.05 * gradient**2)
                weight.mul_(1 - rate * decay)
                mean, square = first / (1 - 0.9**self.updates), second / (1 - 0.95**self.updates)
                weight.sub_(rate * mean / (square.sqrt() + 1e-8))
        self.bias -= 1e-3 * (load - load.mean(1, keepdim=True)).sign()
        return float(loss.detach()), size
