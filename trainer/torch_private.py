"""Which parts of torch are private or moved between 2.11 and 2.13, and what do we do without them?

Everything the trainer uses that torch may change without notice stands here, each with its fallback.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gather into one tensor; the older name is deprecated from 2.13 on."""
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Reduce and scatter one tensor; the older name is deprecated from 2.13 on."""


class Stage(PipelineStage):
    """A pipeline stage that opens no connections ahead; the first real messages do, whether or not torch asks here."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        # In torch 2.11 a V-shaped schedule sends to itself here, which gloo refuses.
        return []


class DualPipeV(schedules.ScheduleDualPipeV):
    """DualPipeV with each pair of a forward and a backward as two actions, forward first.

    torch runs a pair as one action though nothing in it overlaps, and sends what its forward made only after its
    backward, so that the next rank waits for both. Where torch no longer asks here, its pairs stay as they are.
    """

    def _prepare_schedule_with_comms(self, actions: dict[int, list[Any]], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        apart = {
            rank: [part for action in order for part in getattr(action, "sub_actions", None) or (action,)]
            for rank, order in actions.items()
        }
        super()._prepare_schedule_with_comms(apart, *args, **kwargs)


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
