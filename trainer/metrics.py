"""How is the training going, live? Loss, speed, MFU, memory, input share, one line a step on rank 0.

MFU is by a named convention, against the device's peak; on a CPU that is the peak measured for the machine, divided
over the processes that share it. Reading a loss waits for the device, so it is done here, after the step, and once.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trainer.device import memory
from trainer.settled import Settled
from trainer.step import Outcome


class Reporter:
    """Prints rank 0's metrics as text with a progress bar, or as JSON lines."""

    def __init__(self, settled: Settled, peak: float) -> None:
        """`peak` is in FLOP/s of all ranks together, zero where nobody knows."""
        self.settled, self.peak = settled, peak
        self.flop = settled.shape.entry().flop_per_token[settled.options.flop_convention]
        self.bar: Progress | None = None
        if settled.options.metrics == "text":
            console = Console(file=sys.stdout)
            columns = (TextColumn("step"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
            self.bar.add_task("train", total=settled.options.steps)
            self.bar.start()

    def report(self, step: int, outcome: Outcome, began: float, waited: float) -> None:
        """Read a step's outcome and print it."""
        load = outcome.load if outcome.load.numel() else outcome.loss.new_ones(1, 1)
        fullest = (load.amax(1) / load.mean(1)).max()
        loss, norm, most = torch.stack([outcome.loss, outcome.norm, fullest]).tolist()
        seconds, options = time.perf_counter() - began, self.settled.options
        speed = self.settled.tokens / seconds
        line = {
            "step": step,
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": outcome.rate,
            "seconds": seconds,
            "tokens_per_second": speed,
            # Of all ranks together; none where no peak is known or compute is waits.
            "mfu": speed * self.flop / self.peak if self.peak and not options.pace else None,
            "mfu_convention": options.flop_convention,
            "memory_bytes": memory(outcome.loss.device),
            "input_fraction": waited / seconds,
            # The fullest expert of any layer over the mean.
            "expert_load_max": most if outcome.load.numel() else None,
        }
        if self.bar is None:
            print(json.dumps(line), flush=True)
            return
        self.bar.console.print(text(line, paced=bool(options.pace)), highlight=False, soft_wrap=True)
        self.bar.advance(self.bar.task_ids[0])

    def close(self) -> None:
        """Put the bar away."""
        if self.bar is not None:
            self.bar.stop()


def text(line: dict[str, Any], *, paced: bool) -> str:
    """Write a step's metrics for people."""
    parts = [
        f"step {line['step']:>4}  loss {line['loss']:.4f}  norm {line['grad_norm']:.3f}",
        f"{line['seconds'] * 1e3:.0f} ms  {line['tokens_per_second']:,.0f} tokens/s",
        f"MFU {line['mfu']:.2%} ({line['mfu_convention']})" if line["mfu"] is not None else "",
        "paced" if paced else "",
        f"{line['memory_bytes'] / 2**20:.0f} MiB  input {line['input_fraction']:.1%}",
        f"fullest expert {line['expert_load_max']:.2f} x mean" if line["expert_load_max"] is not None else "",
    ]
    return "  ".join(filter(None, parts))
