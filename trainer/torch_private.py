"""Private PyTorch: what the trainer uses that PyTorch may change without notice, each with its fallback.

It runs with torch 2.11 to 2.13.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gather into one tensor; the older name is deprecated from 2.13 on."""
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Reduce and scatter one tensor; the older name is deprecated from 2.13 on."""


def reduce_gradients(module: torch.nn.Module) -> None:
    """Let FSDP2 sum a module's gradients outside of a backward, as torch's own pipeline stages do after their W.

    FSDP2 has no public call for it. The stage's method (torch 2.11 to 2.13) reads its module and nothing else.
    """
    PipelineStage.perform_reduce_grad(SimpleNamespace(submod=module), 1)  # type: ignore[arg-type]


def gather_asynchronously(module: torch.nn.Module) -> bool:
    """Let FSDP2 gather parameters while the caller computes on; says whether this torch can.

    Without it, FSDP2 on gloo waits for each gather where it is issued, and prefetching hides nothing.
    """
    setter: Any = getattr(module, "_set_unshard_async_op", None)
    if setter is None:
        return False
    setter(True)  # noqa: FBT003 - its only argument
    return True


def default_store() -> dist.Store | None:
    """Give the key-value store through which the processes found each other; `None` where torch hides it."""
    getter: Any = getattr(dist.distributed_c10d, "_get_default_store", None)
    return None if getter is None else getter()
