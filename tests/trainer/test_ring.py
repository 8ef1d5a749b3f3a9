"""Ring attention: tiles merged by log-sum-exp equal attention to all keys at once, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from trainer.parallel.context_parallel import runs
from trainer.parallel.ring_attention import (
    Tile,
    _tiles,
    attend,
    attend_backward,
    has_flash_attention,
    plain,
    plain_backward,
)

CASES = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)]


def tensors(number: int, length: int, dtype: torch.dtype) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(length)
    return [torch.randn(2, 3, length, 16, generator=draw, dtype=torch.float64).to(dtype) for _ in range(number)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), CASES)
def test_the_fused_kernel_equals_attention_with_stored_scores(dtype: torch.dtype, bound: float, causal: bool) -> None:
    q, k, v, grad = tensors(4, 24, dtype)
    assert has_flash_attention(q)
    for fused, written in zip(attend(q, k, v, causal=causal), plain(q, k, v, causal=causal), strict=True):
        assert fused.dtype == written.dtype
        assert torch.allclose(fused.double(), written.double(), rtol=bound, atol=bound)
    out, lse = plain(q, k, v, causal=causal)
    fused = attend_backward(grad, (q, k, v), out, lse, causal=causal)
    for result, expected in zip(fused, plain_backward(grad, (q, k, v), out, lse, causal=causal), strict=True):
        assert torch.allclose(result.double(), expected.double(), rtol=bound, atol=2 * bound)


@pytest.mark.parametrize("split", [8, 16])
def test_gradients_of_two_tiles_equal_those_of_all_keys(split: int) -> None:
    q, k, v, grad = (x.requires_grad_() for x in tensors(4, 24, torch.float64))
    full_output = F.scaled_dot_product_attention(q, k, v)
    expected = torch.autograd.grad(full_output, [q, k, v], grad)
    parts = [slice(0, split), slice(split, 24)]
    with torch.no_grad():
        outs, lses = zip(*(attend(q, k[:, :, part], v[:, :, part], causal=False) for part in parts), strict=True)
        lse = torch.logaddexp(*lses)
        out = sum(
            tile_output * (its_lse - lse).exp().unsqueeze(-1) for tile_output, its_lse in zip(outs, lses, strict=True)
        )
        assert torch.allclose(out, full_output, rtol=0, atol=1e-12)
        grads = [attend_backward(grad, (q, k[:, :, part], v[:, :, part]), out, lse, causal=False) for part in parts]
    gradients = (grads[0][0] + grads[1][0], *(torch.cat([gradient[i] for gradient in grads], 2) for i in (1, 2)))
    for near, true in zip(gradients, expected, strict=True):
        assert torch.allclose(near, true, rtol=0, atol=1e-12)


def area(tile: Tile) -> float:
    pairs = (tile.rows.stop - tile.rows.start) * (tile.columns.stop - tile.columns.start)
    return pairs / 2 if tile.causal else pairs


@pytest.mark.parametrize(("layout", "areas"), [("contiguous", [128, 384]), ("zigzag", [256, 256])])
def test_zigzag_gives_each_rank_the_same_work(layout: str, areas: list[int]) -> None:
    """Of 32 tokens over 2 ranks: what each computes, in pairs of a query and a key."""
    held = [runs(32, 2, rank, layout) for rank in range(2)]
    assert [sum(area(tile) for source in held for tile in _tiles(own_part, source)) for own_part in held] == areas


def test_blocks_of_later_tokens_are_skipped() -> None:
    early, late = (runs(32, 2, rank, "contiguous") for rank in range(2))
    assert _tiles(early, late) == []
    assert _tiles(late, early) == [Tile(slice(0, 16), slice(0, 16), causal=False)]
    assert _tiles(late, late) == [Tile(slice(0, 16), slice(0, 16), causal=True)]
