"""Update: forward and backward over all passes, one gradient norm, clipping, AdamW (on the device, or `offload`).

The host does not wait for the device, except for an offloaded optimizer: loss and norm stay on the device until they
are logged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.configuration.config import Config
from trainer.model.decoder import Decoder, Lengths
from trainer.model.experts import Experts
from trainer.parallel.collectives import all_reduce
from trainer.parallel.data_parallel import Bucket, Buckets
from trainer.parallel.mesh import Mesh
from trainer.parallel.offload import HostOptimizer
from trainer.parallel.pipeline_parallel import Pipeline
from trainer.parallel.tensor_parallel import cross_entropy
from usp_prof import record

FORMS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False, "fused": False}}
"""AdamW over its tensors: all in one kernel, each operation over all tensors, or one tensor after another."""
BIAS_STEP = 1e-3
"""Change of an expert's bias in one update, against its load."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one update, still on the device."""

    loss: torch.Tensor
    norm: torch.Tensor
    load: torch.Tensor
    """Tokens sent to each expert, ``[layers, experts]``; empty in a dense model."""
    dropped: torch.Tensor
    """Number of these tokens beyond an expert's capacity."""
    learning_rate: float


class DeviceOptimizer:
    """AdamW on the device, all buckets in one call."""

    def __init__(self, buckets: list[Bucket], adamw: torch.optim.Optimizer) -> None:
        self.buckets, self.adamw = buckets, adamw

    def step(self) -> None:
        """Update all weights."""
        for bucket in self.buckets:
            bucket.master.grad = bucket.gradient
        self.adamw.step()
        self.adamw.zero_grad()
        self.publish()

    def publish(self) -> None:
        """Round the masters to the type that the layers compute in."""
        for bucket in self.buckets:
            if bucket.local is not bucket.master:
                bucket.local.copy_(bucket.master)


class Update:
    """One update of the weights, repeated."""

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        chunks: dict[int, Decoder],
        data: Buckets,
        packing: Callable[[int], list[Lengths]],
    ) -> None:
        """Train `chunks`; `packing` returns the lengths of the documents in each micro-batch of a step."""
        self.config, self.mesh, self.chunks, self.data = config, mesh, chunks, data
        options = config.options
        self.pipeline = (
            Pipeline(config, (mesh["pp"], mesh["pp_backward"]), chunks, data, self.loss) if config.schedule else None
        )
        self.packing = packing
        self.buckets = list(data)
        self.optimizer: DeviceOptimizer | HostOptimizer
        if options.offload == "optimizer":
            self.adamws = [self._adamw([bucket]) for bucket in self.buckets]
            self.optimizer = HostOptimizer(self.buckets, self.adamws, next(iter(chunks.values())).rotary.device)
        else:
            self.adamws = [self._adamw(self.buckets)]
            self.optimizer = DeviceOptimizer(self.buckets, self.adamws[0])
        self.experts = {
            int(name): layer.ffn
            for chunk in chunks.values()
            for name, layer in chunk.layers.items()
            if isinstance(layer.ffn, Experts)
        }

    def _adamw(self, buckets: list[Bucket]) -> torch.optim.AdamW:
        options = self.config.options
        return torch.optim.AdamW(
            [bucket.master for bucket in buckets],
            lr=options.lr,
            betas=(0.9, 0.95),
            weight_decay=options.weight_decay,
            **FORMS[options.adamw],
        )

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return this micro-batch's part of the mean loss over all tokens of the update."""
        return cross_entropy(logits, targets.t(), self.mesh["tp"]).sum() / self.config.tokens

    def __call__(self, step: int, passes: list[tuple[torch.Tensor, torch.Tensor]]) -> Outcome:
        """Run the update."""
        with record.phase("fwd_bwd"):
            losses = []
            micro_batches, packed = self.config.options.micro_batches, self.packing(step)
            for index, (tokens, targets) in enumerate(passes):
                lengths = packed[index * micro_batches : (index + 1) * micro_batches]
                losses.append(self.run_pass(tokens, targets, lengths, last=index + 1 == len(passes)))
        with record.mark("dp", "finish"):
            self.data.finish()
        self._sum_tied_gradients()
        with record.phase("grad_norm"):
            outcome = self._sum_over_world(torch.stack(losses).sum(), step)
            self._clip(outcome.norm)
        with record.phase("optimizer"):
            for adamw in self.adamws:
                adamw.param_groups[0]["lr"] = outcome.learning_rate
            self.optimizer.step()
            self.data.publish()
            self._balance(outcome.load)
        return outcome

    def initialize_state(self, updates: int) -> None:
        """Create the optimizer's state after a number of updates; a checkpoint can then be read into it."""
        for bucket in self.buckets:
            bucket.master.grad = torch.zeros_like(bucket.master)
        for adamw in self.adamws:
            adamw.step()
            adamw.zero_grad()
        for bucket in self.buckets:
            self.state_of(bucket)["step"].fill_(updates)

    def state_of(self, bucket: Bucket) -> dict[str, torch.Tensor]:
        """Return the optimizer's state of a bucket: `exp_avg`, `exp_avg_sq` and `step`."""
        return next(adamw.state[bucket.master] for adamw in self.adamws if bucket.master in adamw.state)

    def publish(self) -> None:
        """Copy the masters to the model after a checkpoint was read."""
        self.optimizer.publish()
        self.data.publish()

    def run_pass(
        self, tokens: torch.Tensor, targets: torch.Tensor, lengths: list[Lengths], *, last: bool
    ) -> torch.Tensor:
        """Run forward and backward of one pass; return this rank's share of the loss."""
        if self.pipeline is not None:
            return self.pipeline.run(tokens, targets, lengths, last_round=last)
        with record.phase("forward"):
            loss = self.loss(self.chunks[0](tokens, lengths[0]), targets)
        self.data.begin(0, last=last)
        with record.phase("backward"):
            loss.backward()
        return loss.detach()

    def _sum_tied_gradients(self) -> None:
        """Add the gradients of the two copies of a tied embedding; a V-shaped schedule has both on one rank."""
        copies = [bucket.gradient for bucket in self.buckets if bucket.is_tied]
        if not copies:
            return
        total = torch.stack(copies).sum(0)
        if len(copies) == 1:
            all_reduce(total, self.mesh["tied"])
        for gradient in copies:
            gradient.copy_(total)

    def _sum_over_world(self, loss: torch.Tensor, step: int) -> Outcome:
        """Sum over the world, in one message: squares of gradients, losses, loads of experts."""
        shape = self.config.shape
        wide_dtype = torch.float64 if self.config.options.dtype == "fp64" else torch.float32
        load = torch.zeros(shape.layers, shape.experts, dtype=wide_dtype, device=loss.device)
        dropped = load.new_zeros(())
        for layer, experts in self.experts.items():
            load[layer] = experts.load
            experts.load.zero_()
            dropped += experts.dropped
            experts.dropped.zero_()
        # All tensor-parallel ranks of the last stage have the same loss.
        message = torch.cat(
            [
                torch.stack([self._squares(wide_dtype), loss.to(wide_dtype) / self.mesh["tp"].size, dropped]),
                load.flatten(),
            ]
        )
        all_reduce(message, self.mesh["log"])
        squares, loss, dropped = message[:3].unbind()
        return Outcome(loss, squares.sqrt(), message[3:].view_as(load), dropped, learning_rate(self.config, step))

    def _squares(self, wide_dtype: torch.dtype) -> torch.Tensor:
        """Sum the squares of this rank's gradients, divided by the number of ranks that update the same part.

        `get_total_norm` would be one kernel, but on a CPU, its sum of 5e5 squares in fp32 has an error of 1e-5.
        """
        squares = [bucket.gradient.to(wide_dtype).square().sum() / bucket.copies for bucket in self.buckets]
        return torch.stack(squares).sum()

    def _clip(self, norm: torch.Tensor) -> None:
        """Scale all gradients down if their norm exceeds the limit, like torch's `clip_grad_norm_`."""
        limit = self.config.options.clip
        if limit > 0:
            factor = (limit / (norm + 1e-6)).clamp(max=1.0)
            for bucket in self.buckets:
                bucket.gradient.mul_(factor)

    def _balance(self, load: torch.Tensor) -> None:
        for layer, experts in self.experts.items():
            excess = load[layer] - load[layer].mean()
            experts.bias -= BIAS_STEP * excess.sign()


def learning_rate(config: Config, step: int) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine down to a tenth."""
    options = config.options
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    progress = (step - options.warmup) / max(options.steps - options.warmup, 1)
    return options.lr * (0.1 + 0.9 * (1 + math.cos(math.pi * min(progress, 1.0))) / 2)
