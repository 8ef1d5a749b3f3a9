"""How is the training going, live? Loss, speed, MFU, memory, input share, one line a step on rank 0.

MFU is by a named convention, against the device's peak; on a CPU that is the peak measured for the machine, divided
over the processes that share it. Reading a loss waits for the device, so it is done here, after the step, and once.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trainer.build import COMPUTE
from trainer.rules import Settled
from trainer.step import Outcome
from usp_prof import record


@dataclass(frozen=True, slots=True)
class Line:
    """The metrics of one step."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    seconds: float
    tokens_per_second: float
    mfu: float | None
    """Of all ranks together; `None` where no peak is known."""
    mfu_convention: str
    memory_bytes: int
    """On the device, or resident on a CPU; of this rank."""
    input_fraction: float
    expert_load_max: float | None
    """Most loaded expert of any layer over the mean; `None` in a dense model."""


@dataclass(slots=True)
class Reporter:
    """Prints rank 0's metrics as text with a progress bar, or as JSON lines."""

    settled: Settled
    peak: float
    """FLOP/s of all ranks together; zero when unknown."""
    quiet: bool
    lines: list[Line] = field(default_factory=list)
    bar: Progress | None = None

    def __post_init__(self) -> None:
        """Open the bar where somebody watches."""
        if not self.quiet and self.settled.options.metrics == "text":
            console = Console(file=sys.stdout)
            columns = (TextColumn("step"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
            self.bar.add_task("train", total=self.settled.options.steps)
            self.bar.start()

    def report(self, step: int, outcome: Outcome, began: float, waited: float) -> None:
        """Take a step's outcome; only rank 0 reads and prints it."""
        if self.quiet:
            return
        line = self._line(step, outcome, began, waited)
        self.lines.append(line)
        if self.bar is None:
            fields = {name: getattr(line, name) for name in Line.__slots__}
            print(json.dumps(fields), flush=True)
            return
        self.bar.console.print(self._text(line), highlight=False, soft_wrap=True)
        self.bar.advance(self.bar.task_ids[0])

    def close(self) -> None:
        """Put the bar away."""
        if self.bar is not None:
            self.bar.stop()

    def _line(self, step: int, outcome: Outcome, began: float, waited: float) -> Line:
        loss, norm = torch.stack([outcome.loss, outcome.norm.to(outcome.loss.dtype)]).tolist()
        seconds = time.perf_counter() - began
        speed = self.settled.tokens / seconds
        options, load = self.settled.options, outcome.load
        flop = self.settled.shape.flop_per_token()[options.flop_convention]
        return Line(
            step=step,
            loss=loss,
            grad_norm=norm,
            learning_rate=outcome.rate,
            seconds=seconds,
            tokens_per_second=speed,
            mfu=speed * flop / self.peak if self.peak and not options.pace else None,
            mfu_convention=options.flop_convention,
            memory_bytes=memory(),
            input_fraction=waited / seconds,
            expert_load_max=float((load.amax(1) / load.mean(1)).max()) if load.numel() else None,
        )

    def _text(self, line: Line) -> str:
        parts = [
            f"step {line.step:>4}  loss {line.loss:.4f}  norm {line.grad_norm:.3f}",
            f"{line.seconds * 1e3:.0f} ms  {line.tokens_per_second:,.0f} tokens/s",
        ]
        if line.mfu is not None:
            parts.append(f"MFU {line.mfu:.2%} ({line.mfu_convention})")
        if self.settled.options.pace:
            parts.append("paced")
        parts.append(f"{line.memory_bytes / 2**20:.0f} MiB  input {line.input_fraction:.1%}")
        if line.expert_load_max is not None:
            parts.append(f"fullest expert {line.expert_load_max:.2f} x mean")
        return "  ".join(parts)


PEAKS = {"H200": 989e12, "H100": 989e12, "B200": 2250e12, "B300": 2250e12, "A100": 312e12, "L40S": 362e12}
"""Dense bf16 FLOP/s by part of the device's name, from the makers' data sheets (SXM parts); in fp8 it is twice that."""


def mesh_peak(settled: Settled, device: torch.device) -> float:
    """Give the FLOP/s of all ranks together; zero where nobody knows. Processes on one CPU share its peak."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    dtype = COMPUTE[settled.options.dtype]
    if device.type == "cpu":
        return record.cpu_peak(dtype).flops * settled.layout.world / here
    name = torch.cuda.get_device_name(device)
    known = max((flops for part, flops in PEAKS.items() if part in name), default=0.0)
    gpus = min(here, torch.cuda.device_count()) * settled.layout.world / here
    eight_bits = 2.0 if settled.options.dtype == "fp8" else 1.0
    return known * gpus * (eight_bits if dtype == torch.bfloat16 else 0.0)


def memory() -> int:
    """Give this process's peak memory in bytes: on its GPU, or resident."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
