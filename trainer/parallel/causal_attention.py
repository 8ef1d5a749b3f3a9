"""Causal attention of whole sequences, with fewer heads of keys than of queries (grouped queries)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name


def expand(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat keys or values for each head of queries."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor | None = None
) -> torch.Tensor:
    """Attend from each query to the keys up to its own, or to those that `visible` marks."""
    if visible is not None or (q.is_cuda and q.dtype == torch.float32):
        # No lean kernel of a GPU takes fewer heads of keys with a mask, or in fp32.
        k, v = (expand(x, q.shape[1]) for x in (k, v))
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None, enable_gqa=grouped)
