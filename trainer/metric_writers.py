"""Metric writers: JSON lines on disk, TensorBoard, Weights & Biases, Trackio; each through its own API."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.configuration.config import Config
from trainer.configuration.options import refuse

FILE = "metrics.jsonl"
LIBRARIES = ("tensorboard", "wandb", "trackio")
PROJECT = "usp-prof"


Metrics = dict[str, Any]
Writer = Callable[[int, Metrics], None]
"""Function of a step and its metrics."""


def open_writers(config: Config, folder: Path, stack: ExitStack) -> list[Writer]:
    """Open the writers of `--metrics`, which `stack` closes; JSON on the console needs none."""
    name = config.options.metrics
    if name == "json":
        return []
    folder.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context((folder / FILE).open("a" if config.options.resume else "w", buffering=1))
    writers: list[Writer] = [lambda _, metrics: print(json.dumps(metrics), file=file)]
    if name == "tensorboard":
        summary = import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))
        writers.append(partial(_add_scalars, stack.enter_context(summary)))
    elif name in LIBRARIES:
        library = import_module(name)
        library.init(project=PROJECT, name=folder.name, config=config.options.changed())
        stack.callback(library.finish)
        writers.append(partial(_log, library))
    return writers


def _add_scalars(summary: Any, step: int, metrics: Metrics) -> None:  # noqa: ANN401 - TensorBoard's writer
    for name, value in metrics.items():
        if isinstance(value, (int, float)):
            summary.add_scalar(name, value, step)


def _log(library: Any, step: int, metrics: Metrics) -> None:  # noqa: ANN401 - wandb or trackio, which have one interface
    """Log all metrics that have a value; `step` is a reserved name."""
    values = {name: value for name, value in metrics.items() if value is not None and name != "step"}
    library.log(values, step=step)


def check_installed(name: str) -> None:
    """Refuse a library that is not installed."""
    missing = name in LIBRARIES and find_spec(name) is None
    refuse(missing, f"--log {name}: the library {name} is not installed", f"pip install {name}, or --log text")
