"""Metric writers: JSON lines on disk, TensorBoard, Weights & Biases, Trackio; each through its own API."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.configuration.config import Config
from trainer.configuration.options import refuse

FILE = "metrics.jsonl"
LIBRARIES = ("tensorboard", "wandb", "trackio")
PROJECT = "usp-prof"


class JsonLines:
    """One JSON object per line in the run's folder; a resumed run appends."""

    def __init__(self, config: Config, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / FILE).open("a" if config.options.resume else "w", buffering=1)

    def write(self, step: int, metrics: dict[str, Any]) -> None:  # noqa: ARG002 - the metrics contain it
        """Write a line."""
        self.file.write(json.dumps(metrics) + "\n")

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class TensorBoard:
    """Event files in `tensorboard/` of the run's folder."""

    def __init__(self, config: Config, folder: Path) -> None:  # noqa: ARG002 - like the others
        self.writer = import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Write a scalar per number."""
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self.writer.close()


class Tracker:
    """A run of wandb or trackio, which have the same three functions."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.library = import_module(config.options.metrics)
        self.library.init(project=PROJECT, name=folder.name, config=config.options.changed())

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Log all metrics that have a value; `step` is a reserved name."""
        values = {name: value for name, value in metrics.items() if value is not None and name != "step"}
        self.library.log(values, step=step)

    def close(self) -> None:
        """Finish the run."""
        self.library.finish()


def open_writers(config: Config, folder: Path) -> list[JsonLines | TensorBoard | Tracker]:
    """Return the writers that `--metrics` asks for; JSON on the console needs none."""
    name = config.options.metrics
    if name == "json":
        return []
    library = {"text": [], "tensorboard": [TensorBoard], "wandb": [Tracker], "trackio": [Tracker]}[name]
    return [writer(config, folder) for writer in (JsonLines, *library)]


def check_installed(name: str) -> None:
    """Refuse a library that is not installed."""
    missing = name in LIBRARIES and find_spec(name) is None
    refuse(missing, f"--log {name}: the library {name} is not installed", f"pip install {name}, or --log text")
