"""Private PyTorch: what the trainer uses that PyTorch may change without notice, each with its fallback.

It runs with torch 2.11 to 2.13.
"""

from __future__ import annotations

import torch


def has_flash_attention(x: torch.Tensor) -> bool:
    """Return whether the kernel behind `scaled_dot_product_attention` takes heads of this type and width."""
    if not x.is_cuda:
        return True
    return x.dtype in {torch.bfloat16, torch.float16} and x.shape[-1] % 8 == 0 and x.shape[-1] <= 256


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,  # noqa: FBT001 - as the kernel has it
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend by one fused kernel; return the result and the log-sum-exp, which the public function drops."""
    aten = torch.ops.aten
    kernel = aten._scaled_dot_product_flash_attention if q.is_cuda else aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
    out, lse, *_ = kernel(q, k, v, 0.0, causal)
    return out, lse


def flash_attention_backward(
    grad: torch.Tensor,
    tile: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,  # noqa: FBT001 - as the kernel has it
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of queries, keys and values; torch's own ring attention calls the kernel as we do.

    A GPU's kernel reads the log-sum-exp as contiguous memory, whatever its strides: a slice of it would lead to wrong
    gradients without an error.
    """
    q, k, v = tile
    aten = torch.ops.aten
    if not q.is_cuda:
        kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
        return kernel(grad, q, k, v, out, lse, 0.0, causal)  # type: ignore[no-any-return]
    dropout_state = torch.empty(2, dtype=torch.uint64, device=q.device)  # unused without dropout
    kernel = aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001
    lengths = (None, None, q.shape[2], k.shape[2])
    return kernel(grad, q, k, v, out, lse.contiguous(), *lengths, 0.0, causal, dropout_state, dropout_state)  # type: ignore[no-any-return]
