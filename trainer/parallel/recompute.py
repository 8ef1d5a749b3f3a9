"""Activation recomputation: keep the input of a function instead of what its backward needs, and run it again.

A layer's forward leaves many tensors for backward: inputs of products, scores of attention, masks. Recomputation
(Chen et al., arXiv:1604.06174) keeps the layer's input alone. When backward arrives, forward runs again and makes them.

    full        every layer runs forward twice: a third more compute, the least memory
    selective   attention alone runs again, which keeps most and costs little (Korthikanti et al., arXiv:2205.05198)

In the trace, the ops of forward appear a second time within backward.

Playbook: Activation Recomputation (gradient checkpointing), full and selective.
Messages: those within the function run again too, except what comes after the last tensor that backward needs.
Called by: `decoder.py`, around a layer or around its attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint


def recompute(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - those of the function
    """Return the function's result; tensors that its backward needs are computed again in backward.

    torch stops the second run once it has every tensor. No state of random numbers is restored, because nothing in
    training draws any.
    """
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False, **options)
