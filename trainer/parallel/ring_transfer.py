"""Ring transfer: a tensor is sent to the next rank of a ring while another is received from the previous rank.

Ring attention sends keys and values. Asynchronous tensor parallelism sends chunks of the sequence, and partial sums.
Compute between `shift` and `arrived` hides the message.

Messages: one send and one receive per shift.
Called by: `ring_attention.py` and `async_tensor_parallel.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.parallel.collectives import Group
from usp_prof.record import mark


@dataclass(frozen=True, slots=True)
class RingTransfer:
    """A tensor that is being sent to the next rank, and the tensor that replaces it."""

    leaving: torch.Tensor
    arriving: torch.Tensor
    works: list[dist.Work]
    axis: str

    def arrived(self, step: int) -> torch.Tensor:
        """Wait for both tensors; return the received one."""
        with mark(self.axis, "ring_wait", step=step):
            for work in self.works:
                work.wait()
        return self.arriving


def shift(x: torch.Tensor, group: Group, step: int) -> RingTransfer:
    """Start to send a tensor to the group's next rank, and to receive one from the previous rank."""
    arriving = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    following, previous = (group.ranks[(group.rank + hop) % group.size] for hop in (1, -1))
    group.before_message()
    with mark(group.name, "ring_send_recv", step=step):
        send = dist.P2POp(dist.isend, x, following, group.handle)
        receive = dist.P2POp(dist.irecv, arriving, previous, group.handle)
        return RingTransfer(x, arriving, dist.batch_isend_irecv([send, receive]), group.name)
