"""In which order does a rank work on its stages, and how does the trace say so?

Schedules are those of ``torch.distributed.pipelining``. Its own labels do not tell work from waiting, so the stage
here marks each action (F, B, I, W) around the arithmetic alone, and each transfer where it is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining

from trainer.model.decoder import Decoder
from trainer.parallel.data import DataParallel
from trainer.parallel.mesh import Group
from trainer.settled import Settled
from trainer.torch_private import DualPipeV, Stage
from usp_prof import record

TakeLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "interleaved-zb": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipev": DualPipeV,
}


class MarkedStage(Stage):
    """A pipeline stage that marks what it does and tells data parallelism when its last backward begins."""

    last_round = True
    targets: Sequence[torch.Tensor] = ()

    def __init__(
        self, settled: Settled, module: Decoder, index: int, group: Group, data: DataParallel, take_loss: TakeLoss
    ) -> None:
        self.links, self.data, self.take_loss = group, data, take_loss
        batch, sequence = settled.micro_batch, settled.shape.sequence // settled.layout.cp
        like = partial(torch.empty, device="meta")
        tokens = like(batch, sequence, dtype=torch.int64)
        sizes = (sequence // settled.layout.tp, batch, settled.shape.hidden)
        between = like(sizes, dtype=settled.compute, requires_grad=True)
        logits = like(sequence, batch, module.vocabulary, dtype=settled.compute)
        super().__init__(
            module,
            index,
            settled.stages,
            module.rotary.device,
            input_args=(tokens if module.first else between,),
            output_args=(logits if module.last else between,),
            group=group.handle,
        )

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch has it
        """Mark F; the last stage takes its loss here, where it counts as work, and hands it on in place of logits."""
        with record.pipeline_action("F", stage=self.stage_index, micro_batch=fwd_chunk_id):
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
            return self.take_loss(output, self.targets[fwd_chunk_id]) if self.is_last else output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,  # noqa: ANN401 - as torch has it
        full_backward: bool = True,  # noqa: FBT001, FBT002
        last_backward: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Mark B, or I when the weights' part comes later."""
        if full_backward:
            self.data.begin(self.stage_index, last=last_backward and self.last_round)
        else:
            self.data.begin_half(self.stage_index)
        with record.pipeline_action("B" if full_backward else "I", stage=self.stage_index, micro_batch=bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self.data.end(self.stage_index)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:  # noqa: FBT001, FBT002
        """Mark W."""
        self.data.begin_half(self.stage_index)
        with record.pipeline_action("W", stage=self.stage_index, micro_batch=bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self.data.end(self.stage_index)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Let FSDP2 sum gradients in the last pass of an update only."""
        if self.last_round:
            super().perform_reduce_grad(grad_scale_factor)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Mark the posting of an activation's receive."""
        return self._marked(super().get_fwd_recv_ops(fwd_chunk_id), "recv_f", fwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Mark the posting of an activation's send."""
        return self._marked(super().get_fwd_send_ops(fwd_chunk_id), "send_f", fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Mark the posting of a gradient's receive."""
        return self._marked(super().get_bwd_recv_ops(bwd_chunk_id), "recv_b", bwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Mark the posting of a gradient's send."""
        return self._marked(super().get_bwd_send_ops(bwd_chunk_id), "send_b", bwd_chunk_id)

    def _marked(self, operations: list[dist.P2POp], what: str, mb: int) -> list[dist.P2POp]:
        for operation in operations:
            mark = record.pipeline_transfer(what, stage=self.stage_index, micro_batch=mb, peer=operation.peer)
            operation.op = Posting(operation, mark, self.links)
        return operations


class Posting:
    """Posts an operation as it is, under a mark.

    It equals the function that it stands for: torch sends alone what need not be batched, and looks for that function.
    """

    def __init__(self, operation: dist.P2POp, mark: record.Mark, links: Group) -> None:
        self.operation, self.post, self.mark, self.links = operation, operation.op, mark, links

    def __eq__(self, other: object) -> bool:
        return self.post is getattr(other, "post", other)

    def __hash__(self) -> int:
        return hash(self.post)

    def __call__(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - isend or irecv
        """Post it; the caller's arguments are the operation's own and are passed over."""
        sends, operation = self.post is dist.isend, self.operation
        if sends:
            self.links.leave()
        peer = {"group_dst" if sends else "group_src": operation.group_peer}
        with self.mark:
            return self.post(operation.tensor, group=operation.group, tag=operation.tag, **peer)


def _loss_is_output(loss: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 - torch passes both
    return loss


class Pipeline:
    """The stages of this rank under one schedule."""

    def __init__(
        self, settled: Settled, group: Group, chunks: dict[int, Decoder], data: DataParallel, loss: TakeLoss
    ) -> None:
        name, self.micro_batches = settled.schedule, settled.options.micro_batches
        self.stages = [MarkedStage(settled, module, index, group, data, loss) for index, module in chunks.items()]
        mine = self.stages[0] if name in {"gpipe", "1f1b"} else self.stages
        self.schedule = SCHEDULES[name](mine, self.micro_batches, loss_fn=_loss_is_output, scale_grads=False)
        self.first = any(stage.is_first for stage in self.stages)
        self.last = any(stage.is_last for stage in self.stages)

    def run(self, tokens: torch.Tensor, targets: torch.Tensor, *, last_round: bool) -> torch.Tensor:
        """Run all micro-batches forward and backward; gives the summed loss (zero on ranks without the last stage)."""
        for stage in self.stages:
            stage.last_round, stage.targets = last_round, targets.chunk(self.micro_batches)
        losses: list[torch.Tensor] = []
        self.schedule.step(
            *((tokens,) if self.first else ()),
            target=targets if self.last else None,
            losses=losses if self.last else None,
            return_outputs=False,
        )
        return torch.stack(losses).sum().detach() if losses else tokens.new_zeros((), dtype=torch.float32)
