"""Ring transfer: a tensor goes to the next rank of a ring while one comes from the previous rank.

Ring attention passes on keys and values, asynchronous tensor parallelism chunks of the sequence and sums of them. What
is computed between `shift` and `arrived` hides the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from usp_prof.record import mark

if TYPE_CHECKING:
    from trainer.parallel.collectives import Group


@dataclass(frozen=True, slots=True)
class RingTransfer:
    """A tensor on its way to the next rank, kept until it has left, and the one that comes for it."""

    leaving: torch.Tensor
    arriving: torch.Tensor
    works: list[dist.Work]
    axis: str

    def arrived(self, step: int) -> torch.Tensor:
        """Wait for both; return the tensor that has arrived."""
        with mark(self.axis, "ring_wait", step=step):
            for work in self.works:
                work.wait()
        return self.arriving


class Neighbors:
    """The ranks before and behind this one in a group's ring; `axis` is what the marks say of it."""

    def __init__(self, group: Group, axis: str) -> None:
        self.group, self.axis = group, axis
        self.next = group.ranks[(group.rank + 1) % group.size]
        self.previous = group.ranks[(group.rank - 1) % group.size]

    def shift(self, x: torch.Tensor, step: int) -> RingTransfer:
        """Start passing a tensor on to the next rank, and receiving one from the rank before."""
        arriving = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self.group.before_message()
        with mark(self.axis, "ring_send_recv", step=step):
            out = dist.P2POp(dist.isend, x, self.next, self.group.handle)
            into = dist.P2POp(dist.irecv, arriving, self.previous, self.group.handle)
            return RingTransfer(x, arriving, dist.batch_isend_irecv([out, into]), self.axis)
