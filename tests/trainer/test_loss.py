"""Loss of a token: equal to torch's, without a copy of all logits in fp32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.autograd.graph import saved_tensors_hooks

from trainer.parallel.collectives import Group
from trainer.parallel.tensor_parallel import WIDENED_NUMBERS, cross_entropy

ALONE = Group("tp", ("tp",), (0,), 0, None)


@pytest.mark.parametrize(
    ("sequence", "vocab", "dtype", "tolerance"),
    [(5, 7, torch.float64, 1e-12), (3, WIDENED_NUMBERS // 4, torch.float32, 1e-5)],
)
def test_loss_and_gradient_equal_those_of_torch(
    sequence: int, vocab: int, dtype: torch.dtype, tolerance: float
) -> None:
    logits = torch.randn(sequence, 2, vocab, dtype=dtype, requires_grad=True)
    targets = torch.randint(vocab, (2, sequence)).t()
    weights = torch.rand(sequence, 2, dtype=dtype)
    loss = cross_entropy(logits, targets, ALONE)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    assert torch.allclose(loss, expected, rtol=tolerance)
    gradients = [torch.autograd.grad((x * weights).sum(), logits)[0] for x in (loss, expected)]
    assert torch.allclose(*gradients, rtol=tolerance, atol=1e-15)


def test_backward_keeps_the_logits_in_their_own_type() -> None:
    saved: list[torch.Tensor] = []
    logits = torch.randn(3, 2, 64, dtype=torch.bfloat16, requires_grad=True)
    with saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        loss = cross_entropy(logits, torch.zeros(3, 2, dtype=torch.int64), ALONE)
    assert loss.dtype == torch.float32
    assert {x.dtype for x in saved if x.numel() == logits.numel()} == {torch.bfloat16}
    loss.sum().backward()
    assert logits.grad.dtype == torch.bfloat16
