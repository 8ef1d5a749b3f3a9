"""Several runs of the trainer, recorded in one launch of several processes."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from trainer_fleet import finish, forked, start

from trainer.configuration.command_line import parse
from trainer.rules import resolve
from usp_prof import record

if TYPE_CHECKING:
    from collections.abc import Mapping


def launch(processes: int, cases: Mapping[str, str], folder: Path, seconds: float) -> dict[str, Path]:
    """Record each case (name and options as typed) on several processes, and return its folder."""
    cases_file = folder.resolve() / "cases.json"
    cases_file.write_text(json.dumps(dict(cases)))
    process = start([*forked(processes), __file__, str(cases_file)])
    _, err = finish(process, seconds)
    assert process.returncode == 0, err[-3000:]
    return {name: folder / name for name in cases}


def main() -> None:
    """Train each case as one of the processes."""
    from trainer.run import train  # noqa: PLC0415 - a program, which takes the first place of the path as it is loaded

    cases_file = Path(sys.argv[1])
    record.prepare()
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    for name, options in json.loads(cases_file.read_text()).items():
        output = ["--device", "cpu", "--profile", "--output", str(cases_file.parent / name)]
        config = resolve(parse([*options.split(), *output]), dist.get_world_size())
        if train(config, dist.get_rank(), torch.device("cpu"), gpus=0):
            sys.exit(f"{name} was not recorded")


if __name__ == "__main__":
    main()
