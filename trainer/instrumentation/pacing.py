"""Layer pacing: waits (`Pace`) or extra arithmetic (`ExtraWork`) that make a layer last longer."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial

import torch

from trainer.configuration.options import OptionError
from trainer.configuration.shape import ModelShape
from trainer.foundation.weight_gradients import Multiply, Product, WeightGradStore
from trainer.instrumentation.injection import Slowdown
from trainer.parallel.collectives import observe
from usp_prof import record


class LayerTimer(ABC):
    """Two hooks around a layer, at the start and the end of its work; subclasses act at the end.

    The hooks read clocks and wait, which cannot be compiled. With `--compile`, the ops between them are compiled.
    """

    began = 0.0
    """This thread's CPU time at the start of work."""

    def start(self) -> None:
        """Read the clock at the start of work."""
        self.began = time.thread_time()

    @abstractmethod
    def forward_ends(self) -> None:
        """Act after the layer's forward."""

    @abstractmethod
    def backward_ends(self) -> None:
        """Act after the gradient of its input."""

    @torch.compiler.disable
    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Attach to the layer's input: here forward begins and backward ends."""
        return observe(x, self.start, self.backward_ends)

    @torch.compiler.disable
    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """Attach to the layer's output: here forward ends and backward begins."""
        return observe(x, self.forward_ends, self.start)


# Pace: compute replaced by timed waits, so that many ranks on few cores behave like a cluster.
#
# Each layer takes as long as on a device: forward, input gradient, weight gradient. A waiting process uses no core, so
# pipelines, bubbles and stragglers look as on real devices, while the ranks train a small model. Every wait has a mark
# ``pace::...``, and the manifest has ``paced``.


ACHIEVED = {"h100": 600e12, "a100": 200e12, "b200": 1300e12}
"""Assumed bf16 FLOP/s of large products on a device, about 60% of its dense peak."""


@dataclass
class Pace(LayerTimer):
    """Time of one layer on the simulated device, in seconds; `slowdown` makes it slower."""

    forward: float
    input_gradient: float
    weight_gradient: float
    attention: float = 0.0
    """Forward of attention if its work varies, in addition to the rest of the layer.

    This is the time for equal shares of a ring, or for a sequence that is one document.
    """
    experts: float = 0.0
    """Forward of the routed experts with equal loads, in addition to the rest of the layer."""
    slowdown: Slowdown | None = None
    grad_store: WeightGradStore | None = None
    """Stores the wait for weight gradients, if backward is split."""
    ahead: float = 0.0
    """Seconds of the current pass that its chunks have already waited."""

    @classmethod
    def parse(cls, device: str, shape: ModelShape, tokens: int, *, attention_apart: bool = False) -> Pace:
        """Compute the waits from a layer's arithmetic, or read ``F,I,W[,A[,E]]`` in milliseconds."""
        if device in ACHIEVED:
            projections = 2.0 * (shape.layer_parameters(shape.top_k) - 2 * shape.hidden) * tokens
            attention = 2.0 * shape.heads * shape.head_dim * shape.sequence * tokens
            second = ACHIEVED[device]
            apart = attention if attention_apart else 0.0
            forward, input_gradient = projections + attention - apart, projections + 2 * (attention - apart)
            return cls(forward / second, input_gradient / second, projections / second, apart / second)
        try:
            times = [float(part) / 1e3 for part in device.split(",")]
        except ValueError:
            times = []
        if not 3 <= len(times) <= 5:
            hint = f"{', '.join(ACHIEVED)}, or times such as 20,20,20"
            raise OptionError(f"--pace {device} is neither a device nor three to five times", hint)
        return cls(*times)

    @torch.compiler.disable
    def work(self, x: torch.Tensor, seconds: float) -> torch.Tensor:
        """Wait for work that differs between ranks; backward takes twice as long as forward."""
        return observe(x, partial(self.wait, "fwd", seconds), partial(self.wait, "dgrad", 2 * seconds))

    def pace_chunks(self, product: Product, layer_parameters: int) -> Product:
        """Return a product that waits for each chunk's share of the layer (asynchronous tensor parallelism).

        A rank has 1/n of a weight, and a chunk has 1/n of the rows; the layer's time is that of all rows on this rank.
        """

        def paced(phase: str, multiply: Multiply, layer_seconds: float) -> Multiply:
            def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
                out = multiply(x, weight)
                seconds = layer_seconds * weight.numel() / layer_parameters
                self.ahead += seconds  # the layer's end waits for the rest
                self.wait(phase, seconds)
                return out

            return run

        forward = paced("fwd", product.forward, self.forward)
        input_gradient = paced("dgrad", product.input_gradient, self.input_gradient)
        return replace(product, forward=forward, input_gradient=input_gradient)

    def forward_ends(self) -> None:
        """Wait for the rest of the layer's forward."""
        self.wait("fwd", self.forward - self.ahead)
        self.ahead = 0.0

    def backward_ends(self) -> None:
        """Wait for the rest of the input gradient, then for the weight gradients: now, or in their W."""
        self.wait("dgrad", self.input_gradient - self.ahead)
        self.ahead = 0.0
        if self.grad_store is None:
            self.weight_ends()
        else:
            self.grad_store.run(self.weight_ends)

    def weight_ends(self) -> None:
        """Wait for the weight gradients."""
        self.start()
        self.wait("wgrad", self.weight_gradient)

    def wait(self, phase: str, seconds: float) -> None:
        """Wait, with a mark, until the layer has taken as long as on the simulated device.

        This includes the CPU time of the small model's arithmetic, but not communication.
        """
        spent = time.thread_time() - self.began
        self.start()
        with record.mark("pace", phase):
            time.sleep(max(seconds * (self.slowdown.factor if self.slowdown is not None else 1.0) - spent, 0.0))


# ExtraWork: additional arithmetic in the layers, in forward and backward (`--fault slow-rank`).
#
# On a CPU, the extra work takes the layer's own CPU time multiplied by the factor minus one. On a GPU, for which the
# host must not wait, it repeats the layer's FLOPs. With pacing, the waits are longer instead.


class ExtraWork(LayerTimer):
    """Slows the layers of a stage by the slowdown's current factor."""

    def __init__(self, slowdown: Slowdown, layer_flop: float, device: torch.device, dtype: torch.dtype) -> None:
        self.slowdown, self.layer_flop = slowdown, layer_flop
        # On a GPU the extra work is several products, for a fine resolution of the factor.
        size = 64 if device.type == "cpu" else min(max(int((layer_flop / 16) ** (1 / 3)), 64), 4096)
        self.matrix = torch.zeros(size, size, device=device, dtype=dtype)

    def forward_ends(self) -> None:
        """Repeat the work of forward."""
        self.compute_more(self.layer_flop)

    def backward_ends(self) -> None:
        """Repeat the work of backward."""
        self.compute_more(2 * self.layer_flop)

    def compute_more(self, flop: float) -> None:
        """Do the extra work."""
        more = self.slowdown.factor - 1
        if more <= 0:
            return
        with record.mark("fault", "slow_rank"), torch.no_grad():
            if self.matrix.is_cuda:
                for _ in range(round(more * flop / (2 * self.matrix.shape[0] ** 3))):
                    torch.mm(self.matrix, self.matrix)
                return
            end = time.thread_time() + more * (time.thread_time() - self.began)
            while time.thread_time() < end:
                torch.mm(self.matrix, self.matrix)
