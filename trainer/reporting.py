"""Reporting: live metrics of each step on rank 0, and the recording session of a run.

MFU is by a named convention, against the device's peak; on a CPU that is the peak measured for the machine, divided
over the processes that share it. Reading a loss waits for the device, so it is done here, after the step, and once; of
several steps without a line the host may run ahead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trainer.configuration.config import Config
from trainer.device import memory
from trainer.instrumentation.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.step import Outcome
from usp_prof import record


class Reporter:
    """Prints rank 0's metrics as text with a progress bar, or as JSON lines."""

    def __init__(self, config: Config, peak: float) -> None:
        """`peak` is in FLOP/s of all ranks together, zero where nobody knows."""
        self.config, self.peak = config, peak
        self.steps, self.began, self.waited = 0, 0.0, 0.0
        """Steps since the last line, when the first of them began, and how long they waited for input."""
        self.flop = config.shape.entry().flop_per_token[config.options.flop_convention]
        self.bar: Progress | None = None
        if config.options.metrics == "text":
            console = Console(file=sys.stdout)
            columns = (TextColumn("step"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
            self.bar.add_task("train", total=config.options.steps)
            self.bar.start()

    def report(self, step: int, outcome: Outcome, began: float, waited: float) -> None:
        """Count a step that began then; read and print its outcome where a line is due."""
        if not self.steps:
            self.began, self.waited = began, 0.0
        self.steps, self.waited = self.steps + 1, self.waited + waited
        options = self.config.options
        if (step + 1) % options.log_every and step + 1 < options.steps:
            return
        load = outcome.load if outcome.load.numel() else outcome.loss.new_ones(1, 1)
        fullest = (load.amax(1) / load.mean(1)).nan_to_num().max()  # layers without experts have no load
        dropped = outcome.dropped / load.sum()
        loss, norm, most, lost = torch.stack([outcome.loss, outcome.norm, fullest, dropped]).tolist()
        steps, self.steps = self.steps, 0
        seconds = (time.perf_counter() - self.began) / steps
        speed = self.config.tokens / seconds
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
            "input_fraction": self.waited / steps / seconds,
            # The fullest expert of any layer over the mean.
            "expert_load_max": most if outcome.load.numel() else None,
            # Of all pairs of a token and an expert.
            "dropped_fraction": lost if options.capacity else None,
        }
        if self.bar is None:
            print(json.dumps(line), flush=True)
            return
        self.bar.console.print(text(line, paced=bool(options.pace)), highlight=False, soft_wrap=True)
        self.bar.advance(self.bar.task_ids[0], steps)

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
        f"dropped {line['dropped_fraction']:.1%}" if line["dropped_fraction"] is not None else "",
    ]
    return "  ".join(filter(None, parts))


# Recording session: what the recorder is given about this run.


def open_session(config: Config, mesh: Mesh, faults: Faults) -> record.Session:
    """Open the recording of this run; all ranks agree on its folder."""
    options, layout, axes = config.options, config.layout, config.layout.axes()
    return record.session(
        folder_of(config),
        mesh=axes,
        model=config.shape.entry(),
        groups=served(mesh),
        coordinates={axis: mesh.place[axis] for axis in axes},
        stages=config.stages_of(mesh.place["pp"]),
        skip=options.profile_skip,
        wait=0,
        warmup=1,
        active=options.profile_steps,
        memory=options.profile_memory,
        name=layout.title(),
        schedule=config.schedule,
        micro_batches=options.micro_batches,
        gradient_accumulation=options.accumulate,
        tokens_per_step=config.tokens,
        micro_batch_tokens=config.micro_batch * config.shape.sequence,
        recompute=options.recompute,
        dtype=options.dtype,
        zero_stage=options.zero,
        paced=bool(options.pace),
        faults=faults.truth(),
        options=options.changed(),
    )


def served(mesh: Mesh) -> dict[tuple[str, ...], list[dist.ProcessGroup]]:
    """Sort this rank's groups by the axes that they serve; several may serve the same."""
    groups: dict[tuple[str, ...], list[dist.ProcessGroup]] = {}
    for group in mesh.open_groups():
        groups.setdefault(group.axes, []).append(group.handle)
    return groups


def folder_of(config: Config) -> Path:
    """Choose the run's folder; rank 0 reads the clock for all."""
    if config.options.output:
        return Path(config.options.output)
    name = [f"{time.strftime('%Y%m%d-%H%M%S')}-{config.layout.title()}"]
    if config.layout.world > 1:
        dist.broadcast_object_list(name)
    return Path("traces") / name[0]


def tell_torchrun(*lines: str) -> None:
    """Report why this process ends, so that torchrun's report of a failure ends with it.

    torchrun prints a traceback of its own wherever a process fails, and then, as "traceback", what the process has
    left in this file (the protocol of `torch.distributed.elastic.multiprocessing.errors`). Every rank leaves it,
    because torchrun stops the others as soon as it sees one end.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        indented = "".join(f"\n    {line}" for line in lines)
        Path(path).write_text(json.dumps({"message": indented, "timestamp": int(time.time())}))
