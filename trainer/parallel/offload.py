"""Optimizer offload: masters and moments in host memory; gradients go down, weights come back (`--offload optimizer`).

AdamW stores three fp32 numbers per weight: the master and two moments, 12 bytes. In host memory, they use no device
memory. An update has three stages per bucket of weights:

    down      the gradient is copied to the host
    update    the host runs AdamW on this rank's part of the bucket
    up        the new weights are copied to the device, in the type that the layers compute in

Each direction has its own stream. While the host updates one bucket, the next gradient is copied down and the weights
of the previous one are copied up:

    down stream    g0   g1   g2
    host                u0   u1   u2
    up stream                w0   w1   w2

Norm and clipping come first, on the device. This is the split of ZeRO-Offload (https://arxiv.org/abs/2101.06840), but
without copies during backward. The same code runs on a CPU: there, host and device share memory, nothing is
page-locked, and each copy is synchronous. In the trace: `train::offload_down`, `offload_update` and `offload_up`.

Playbook: not in it; DeepSpeed's name is ZeRO-Offload.
Messages: none. Copies per bucket and step: one down in fp32, one up in the layers' type.
Called by: `step.py`, in place of `DeviceOptimizer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.parallel.weights import empty_on_host
from usp_prof.record import mark

if TYPE_CHECKING:
    from trainer.parallel.data_parallel import Bucket


@dataclass(slots=True)
class HostBuffers:
    """A bucket's optimizer and its host buffers: destinations and sources of copies."""

    bucket: Bucket
    adamw: torch.optim.Optimizer
    gradient: torch.Tensor
    """As long as this rank's part, in the masters' type."""
    leaving: torch.Tensor
    """Updated weights in the layers' type; the masters themselves if that is the same."""
    arrived: torch.cuda.Event | None = None
    """Recorded when the gradient has arrived; `None` on a CPU, where copies are synchronous."""


class HostOptimizer:
    """AdamW in host memory, bucket by bucket."""

    def __init__(self, buckets: list[Bucket], adamws: list[torch.optim.Optimizer], device: torch.device) -> None:
        """Take the optimizer of each bucket."""
        on_gpu = device.type == "cuda"
        self.down = torch.cuda.Stream(device) if on_gpu else None
        self.up = torch.cuda.Stream(device) if on_gpu else None
        self.buffers = []
        for bucket, adamw in zip(buckets, adamws, strict=True):
            local, master = bucket.local, bucket.master
            leaving = master if local.dtype == master.dtype else empty_on_host(local, local.dtype)
            self.buffers.append(HostBuffers(bucket, adamw, empty_on_host(local, master.dtype), leaving))

    def step(self) -> None:
        """Update all weights; their gradients are complete on the device."""
        self._fetch_gradients()
        for buffers in self.buffers:
            if buffers.arrived is not None:
                buffers.arrived.synchronize()  # the host waits only for this bucket's gradient
            with mark("train", "offload_update"):
                buffers.bucket.master.grad = buffers.gradient
                buffers.adamw.step()
                buffers.bucket.master.grad = None
            self._send_weights(buffers)
        self._wait_for_weights()

    def publish(self) -> None:
        """Copy all masters to the device, such as after reading a checkpoint."""
        for buffers in self.buffers:
            self._send_weights(buffers)
        self._wait_for_weights()

    def _fetch_gradients(self) -> None:
        """Issue all copies down, one after another; each records an event on arrival."""
        if self.down is not None:
            self.down.wait_stream(torch.cuda.current_stream())  # the gradients are summed and clipped there
        size = sum(buffers.gradient.nbytes for buffers in self.buffers)
        with mark("train", "offload_down", bytes=size), torch.cuda.stream(self.down):  # a CPU has no stream
            for buffers in self.buffers:
                buffers.gradient.copy_(buffers.bucket.gradient, non_blocking=True)
                buffers.arrived = self.down.record_event() if self.down is not None else None

    def _send_weights(self, buffers: HostBuffers) -> None:
        """Issue one bucket's copy up."""
        with mark("train", "offload_up", bytes=buffers.leaving.nbytes), torch.cuda.stream(self.up):
            if buffers.leaving is not buffers.bucket.master:
                buffers.leaving.copy_(buffers.bucket.master)  # rounded here, so that half the bytes travel
            buffers.bucket.local.copy_(buffers.leaving, non_blocking=True)

    def _wait_for_weights(self) -> None:
        """Make the device's next work wait for the last weights; the host continues."""
        if self.up is not None:
            torch.cuda.current_stream().wait_stream(self.up)
