"""Reporting on rank 0: the configuration, live metrics of each step, and a summary.

Metrics are written to the console and to ``metrics.jsonl`` in the run's folder, or as JSON lines to the console only
(`--log json`). `--log tensorboard`, `wandb` and `trackio` also pass them to that library. MFU uses a named convention
and the device's peak. On a CPU, this is the measured peak of the machine, divided by the processes that share it.
Reading a loss waits for the device, so it happens after the step and once per line.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trainer.configuration.config import Config
from trainer.configuration.load import unread
from trainer.configuration.options import PROFILER_WARMUP
from trainer.device import memory, memory_capacity
from trainer.instrumentation.injection import Faults
from trainer.metric_writers import FILE, Metrics, open_writers
from trainer.parallel.mesh import Mesh
from trainer.step import Outcome
from usp_prof import record

WARMUP = 2
"""First steps, which means leave out: allocators, kernels and connections warm up."""


def introduce(config: Config) -> None:
    """Print the mesh, the model and the batch, and deviations from the requested options."""
    shape, options, layout = config.shape, config.options, config.layout
    experts = f", {shape.experts} experts ({shape.active_parameters:,} active)" if shape.experts else ""
    size = f"{shape.parameters:,} parameters{experts}, {shape.layers} layers, hidden {shape.hidden}"
    passes = f"{_count(options.accumulate, 'pass', 'es')} of {_count(options.micro_batches, 'micro-batch', 'es')}"
    batch = f"{_count(options.batch, 'sequence')} of {shape.sequence} tokens, {config.tokens:,} tokens per step,"
    processes = "" if layout.world == 1 else f", {layout.world} processes"
    print(f"mesh: {layout}{processes} on {config.device} ({dist.get_backend()}), {options.dtype}")
    print(
        f"model: {shape.name}, {size}\nbatch: {batch}\n       in {passes} of {_count(config.micro_batch, 'sequence')}"
    )
    if fields := unread(options.model):
        print(f"note: the trainer does not follow these fields of {options.model}: {', '.join(fields)}")
    if 0 < options.capacity < 1:
        print(f"note: --capacity {options.capacity:g} drops at least {1 - options.capacity:.0%} of tokens")


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


class Reporter:
    """Rank 0's metrics: one line per step or per `--log-every` steps. Use it as a context manager around the loop."""

    def __init__(self, config: Config, peak: float, devices: int, folder: Path) -> None:
        """Take the peak FLOP/s of all devices together (0 if unknown), and the number of devices."""
        self.config, self.peak, self.devices, self.folder = config, peak, devices, folder
        self.flop = config.shape.entry().flop_per_token[config.options.flop_convention]
        self.steps, self.began, self.waited = 0, 0.0, 0.0
        """Steps since the last line, the start of the first one, and their total wait for input."""
        self.lines: list[tuple[range, Metrics]] = []
        """Each line with the steps that it averages."""
        self.open_files = ExitStack()
        self.writers = open_writers(config, folder, self.open_files)
        self.console = Console(file=sys.stdout)
        self.bar: Progress | None = None
        if config.options.metrics != "json":
            columns = (TextColumn("step"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
            self.bar.add_task("train", total=config.options.steps)
            self.open_files.enter_context(self.bar)

    def report(self, step: int, outcome: Outcome, began: float, waited: float) -> None:
        """Count a step; read and report its outcome if a line is due."""
        if not self.steps:
            self.began, self.waited = began, 0.0
        self.steps, self.waited = self.steps + 1, self.waited + waited
        options, device = self.config.options, outcome.loss.device
        if (step + 1) % options.log_every and step + 1 < options.steps:
            return
        has_experts = outcome.load.numel() > 0
        load = outcome.load if has_experts else outcome.loss.new_ones(1, 1)
        fullest = (load.amax(1) / load.mean(1)).nan_to_num().max()  # layers without experts have no load
        values = torch.stack([outcome.loss, outcome.norm, fullest, outcome.dropped / load.sum()])
        loss, norm, fullest_load, dropped_fraction = values.tolist()
        steps, self.steps = self.steps, 0
        seconds = (time.perf_counter() - self.began) / steps
        line = {
            "step": step,
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": outcome.learning_rate,
            **self.speeds(seconds),
            "mfu_convention": options.flop_convention,
            "memory_bytes": memory(device),
            "memory_fraction": memory(device) / memory_capacity(device.type),
            "consumed_tokens": (step + 1) * self.config.tokens,
            "input_fraction": self.waited / steps / seconds,
            # Load of the fullest expert of any layer, relative to the mean.
            "expert_load_max": fullest_load if has_experts else None,
            # Share of all pairs of a token and an expert.
            "dropped_fraction": dropped_fraction if options.capacity else None,
        }
        self.lines.append((range(step + 1 - steps, step + 1), line))
        for write in self.writers:
            write(step, line)
        if self.bar is None:
            print(json.dumps(line), flush=True)
            return
        self.show(parts_of(line))
        self.bar.advance(self.bar.task_ids[0], steps)

    def speeds(self, seconds: float) -> Metrics:
        """Return the step time and the speeds computed from it; a paced run has no FLOP/s."""
        tokens_per_second = self.config.tokens / seconds
        flops = None if self.config.options.pace else tokens_per_second * self.flop
        return {
            "seconds": seconds,
            "tokens_per_second": tokens_per_second,
            "tokens_per_second_per_device": tokens_per_second / self.devices,
            "tflops_per_device": flops and flops / self.devices / 1e12,
            "mfu": flops / self.peak if flops and self.peak else None,
        }

    def mean(self, lines: list[tuple[range, Metrics]]) -> Metrics:
        """Return the mean step time, the speeds computed from it, and the peak memory."""
        seconds = sum(len(steps) * line["seconds"] for steps, line in lines)
        return {**lines[-1][1], **self.speeds(seconds / sum(len(steps) for steps, _ in lines))}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the writers, and the progress bar, which hides the cursor; summarize a run that did not fail."""
        self.open_files.close()
        if kind is None and self.bar is not None and self.lines:
            self.summarize()

    def summarize(self) -> None:
        """Print means over the unrecorded steps after warm-up, and the path of the metrics.

        The step after the recording is left out too: it waits until every rank has written its trace. If there are no
        other steps, the means are those of the recorded steps.
        """
        options, first = self.config.options, self.lines[0][0].start
        recorded = set(options.recorded_steps(first)) if options.profile else set()
        left_out = {*range(first, first + WARMUP), *recorded}
        if recorded:
            left_out |= {min(recorded) - PROFILER_WARMUP, max(recorded) + 1}
        normal = [(steps, line) for steps, line in self.lines if left_out.isdisjoint(steps)]
        if normal:
            self._print_mean(normal, "after warm-up, not recorded")
        elif recorded_lines := [(steps, line) for steps, line in self.lines if recorded.issuperset(steps)]:
            self._print_mean(recorded_lines, "while recording")
        print(f"metrics: {self.folder / FILE}")

    def _print_mean(self, lines: list[tuple[range, Metrics]], which: str) -> None:
        count = _count(sum(len(steps) for steps, _ in lines), "step")
        step_time, *speeds = _speed(self.mean(lines))
        self.show([f"mean of {count} {which}: {step_time}", *speeds])

    def show(self, parts: list[str]) -> None:
        """Print parts in one line; on a narrow terminal, in several lines that break between parts."""
        text = "  ".join(parts)
        if self.console.is_terminal:
            unbroken = "  ".join(part.replace(" ", "\xa0") for part in parts)
            text = textwrap.fill(unbroken, self.console.width, subsequent_indent=" " * 4, break_on_hyphens=False)
        self.console.print(text.replace("\xa0", " "), highlight=False, soft_wrap=True)


def parts_of(line: Metrics) -> list[str]:
    """Return a step's metrics as text."""
    parts = [
        f"step {line['step']:>4}",
        f"loss {line['loss']:.4f}",
        f"grad norm {line['grad_norm']:.3f}",
        f"lr {line['learning_rate']:.2e}",
        *_speed(line),
        f"consumed {line['consumed_tokens']:,} tokens",
        f"input {line['input_fraction']:.1%}",
        f"fullest expert {line['expert_load_max']:.2f}x mean" if line["expert_load_max"] is not None else "",
        f"dropped {line['dropped_fraction']:.1%}" if line["dropped_fraction"] is not None else "",
    ]
    return list(filter(None, parts))


def _speed(line: Metrics) -> list[str]:
    return [
        f"{line['seconds'] * 1e3:.0f} ms",
        f"{line['tokens_per_second_per_device']:,.0f} tokens/s/device",
        f"{line['tflops_per_device']:.3g} TFLOP/s/device" if line["tflops_per_device"] is not None else "paced",
        *([f"MFU {line['mfu']:.2%} ({line['mfu_convention']})"] if line["mfu"] is not None else []),
        f"memory {line['memory_bytes'] / 2**20:,.0f} MiB ({line['memory_fraction']:.1%})",
    ]


# Recording session: the properties of this run that the recorder stores.


def open_session(config: Config, mesh: Mesh, faults: Faults, folder: Path) -> record.Session:
    """Open the recording of this run."""
    options, layout, axes = config.options, config.layout, config.layout.axes()
    groups: dict[tuple[str, ...], list[dist.ProcessGroup]] = {}
    for group in mesh.open_groups():
        groups.setdefault(group.axes, []).append(group.handle)
    return record.session(
        folder,
        mesh=axes,
        model=config.shape.entry(),
        groups=groups,
        coordinates={axis: mesh.place[axis] for axis in axes},
        stages=config.stages_of(mesh.place["pp"]),
        skip=options.profile_skip,
        wait=0,
        warmup=PROFILER_WARMUP,
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


def folder_of(config: Config) -> Path:
    """Return the run's folder; if all ranks write to it, rank 0 reads the clock for all."""
    if config.options.output:
        return Path(config.options.output)
    name = [f"{time.strftime('%Y%m%d-%H%M%S')}-{config.layout.title()}"]
    if config.layout.world > 1 and config.options.profile:
        dist.broadcast_object_list(name)
    return Path("traces") / name[0]


def report_to_torchrun(*lines: str) -> None:
    """Report why this process ends, so that torchrun's report of a failure ends with the reason.

    If a process fails, torchrun prints its own traceback, and then, as "traceback", the content of this file (the
    protocol of `torch.distributed.elastic.multiprocessing.errors`). Every rank writes it, because torchrun stops the
    other ranks as soon as one has ended.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        indented = "".join(f"\n    {line}" for line in lines)
        Path(path).write_text(json.dumps({"message": indented, "timestamp": int(time.time())}))
