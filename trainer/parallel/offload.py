"""Optimizer offload: masters and moments in host memory; gradients go down, weights come back (`--offload optimizer`).

AdamW keeps three numbers in fp32 for each weight: the master and two moments, 12 bytes. In host memory they cost the
device nothing. An update takes three stages for each slice of the weights:

    down      the gradient is copied to the host
    update    the host runs AdamW on the slice
    up        the new weights are copied to the device, in the type that the layers compute in

The copies have a stream each, so while the host updates one slice, the next gradient comes down and the weights of the
one before go up:

    down stream    g0   g1   g2
    host                u0   u1   u2
    up stream                w0   w1   w2

Norm and clipping come before, on the device. It is ZeRO-Offload's split (https://arxiv.org/abs/2101.06840), without its
copies during backward. On a CPU the same lines run: host and device are then the same memory, nothing is page-locked,
and each copy ends where it is issued. In the trace: `train::offload_down`, `offload_update` and `offload_up`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.parallel.weights import Slice, room_on_host
from usp_prof.record import mark


@dataclass(slots=True)
class HostRoom:
    """What the host keeps for a slice beside its masters and moments: the places where copies land and leave."""

    gradient: torch.Tensor
    """As long as the slice, in the masters' type."""
    leaving: torch.Tensor
    """Updated weights in the layers' type; the masters themselves if that is the same."""
    arrived: torch.cuda.Event | None = None
    """When the gradient is here; `None` on a CPU, where it is at once."""


class HostOptimizer:
    """AdamW in host memory, slice by slice."""

    def __init__(self, slices: list[Slice], adamw: torch.optim.Optimizer, device: torch.device) -> None:
        self.slices, self.adamw = slices, adamw
        on_gpu = device.type == "cuda"
        self.down = torch.cuda.Stream(device) if on_gpu else None
        self.up = torch.cuda.Stream(device) if on_gpu else None
        self.rooms = []
        for part in slices:
            same_type = part.weights.dtype == part.master.dtype
            leaving = part.master if same_type else room_on_host(part.weights, part.weights.dtype)
            self.rooms.append(HostRoom(room_on_host(part.weights, part.master.dtype), leaving))

    def step(self) -> None:
        """Update all slices; their gradients are complete on the device."""
        self._fetch_gradients()
        for part, room in zip(self.slices, self.rooms, strict=True):
            if room.arrived is not None:
                room.arrived.synchronize()  # the host waits, for this slice's gradient alone
            with mark("train", "offload_update"):
                part.master.grad = room.gradient
                self.adamw.step()  # which passes over all masters without a gradient: all but this one
                part.master.grad = None
            self._send_weights(part, room)
        self._wait_for_weights()

    def publish(self) -> None:
        """Bring all masters to the device, as after a checkpoint was read."""
        for part, room in zip(self.slices, self.rooms, strict=True):
            self._send_weights(part, room)
        self._wait_for_weights()

    def _fetch_gradients(self) -> None:
        """Issue all copies down, one after another; each says when it has arrived."""
        if self.down is not None:
            self.down.wait_stream(torch.cuda.current_stream())  # the gradients are summed and clipped there
        size = sum(room.gradient.nbytes for room in self.rooms)
        with mark("train", "offload_down", bytes=size), torch.cuda.stream(self.down):  # no stream on a CPU: as ever
            for part, room in zip(self.slices, self.rooms, strict=True):
                room.gradient.copy_(part.gradient, non_blocking=True)
                room.arrived = self.down.record_event() if self.down is not None else None

    def _send_weights(self, part: Slice, room: HostRoom) -> None:
        """Issue one slice's copy up."""
        with mark("train", "offload_up", bytes=room.leaving.nbytes), torch.cuda.stream(self.up):
            if room.leaving is not part.master:
                room.leaving.copy_(part.master)  # rounded here, so that half the bytes travel
            part.weights.copy_(room.leaving, non_blocking=True)

    def _wait_for_weights(self) -> None:
        """Let what the device does next begin when the last weights are there; the host goes on."""
        if self.up is not None:
            torch.cuda.current_stream().wait_stream(self.up)
