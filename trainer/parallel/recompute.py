"""Activation recomputation: store only the input of a function, and run it again in backward.

A layer's forward stores many tensors for backward: inputs of products, scores of attention, masks. Recomputation
(Chen et al., arXiv:1604.06174) stores only the layer's input. Backward first runs forward again to get the others.

    full        every layer runs forward twice: a third more compute, the least memory
    selective   only attention runs again: most of its memory for little compute (Korthikanti et al., arXiv:2205.05198)

In the trace, the ops of forward appear a second time within backward.

Playbook: Activation Recomputation (gradient checkpointing), full and selective.
Messages: those within the function are sent again, except after the last tensor that backward needs.
Called by: `decoder.py`, around a layer or around its attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint


def recompute(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - those of the function
    """Return the function's result; backward recomputes the tensors that it needs.

    torch stops the second run once it has every tensor. The state of random numbers is not restored, because training
    draws none.
    """
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False, **options)
