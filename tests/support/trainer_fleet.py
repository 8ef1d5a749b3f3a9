"""Several layouts in one launch of several processes: loss and gradient norm of each step, and forwards run."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trainer import checkpoint
from trainer.batches import Batches
from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.instrumentation.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.rules import resolve

if TYPE_CHECKING:
    from trainer.configuration.config import Config
    from trainer.step import Update

ROOT = Path(__file__).resolve().parents[2]
COMMON = "--dtype fp64 --batch 16 --layers 4 --steps 5 --device cpu"


def torchrun(processes: int) -> list[str]:
    """Return the command that starts this number of processes; each launch finds its own port."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]


def forked(processes: int) -> list[str]:
    """Return the command that runs a script like torchrun, in processes that are forked from one.

    Importing torch and the trainer costs each process of torchrun two to four seconds of CPU.
    """
    return [sys.executable, __file__, str(processes)]


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a command in the repository, one thread for each process, its output caught."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "ERROR"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def process_of(launch: subprocess.Popen[str], rank: int) -> int:
    """Find the process of a rank among those that a launch has started."""
    children = Path(f"/proc/{launch.pid}/task/{launch.pid}/children").read_text().split()
    rank_variable = f"RANK={rank}".encode()
    return next(
        int(child) for child in children if rank_variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    )


def finish(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """Wait for a launch's output; one that takes too long is terminated, so that torchrun also ends its ranks."""
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=60)
        raise AssertionError(f"not done after {seconds} s:\n{out[-2000:]}\n{err[-2000:]}") from None


def launch(processes: int, cases: list[str], seconds: float) -> dict[str, Any]:
    """Train each case (options as typed) on several processes, and return each one's curve or error."""
    with tempfile.TemporaryDirectory() as folder:
        cases_file, answer = Path(folder, "cases.json"), Path(folder, "curves.json")
        cases_file.write_text(json.dumps(cases))
        process = start([*forked(processes), __file__, str(cases_file), str(answer)])
        _, err = finish(process, seconds)
        curves = json.loads(answer.read_text()) if answer.exists() else {}
        for case in cases:
            reason = f"not reached; the launch ended with {process.returncode}:\n{err[-3000:]}"
            curves.setdefault(case, {"error": reason})
        return curves


class Forwards:
    """Counts how often each layer's forward really runs, recomputation included."""

    def __init__(self, update: Update) -> None:
        self.runs: Counter[torch.nn.Module] = Counter()
        for chunk in update.chunks.values():
            for layer in chunk.layers.values():
                layer.attention_norm.register_forward_pre_hook(self.count)

    def count(self, norm: torch.nn.Module, _: object) -> None:
        self.runs[norm] += 1

    def per_micro_batch(self, config: Config, updates: int) -> list[float]:
        """Return the distinct counts of all layers on all ranks."""
        options = config.options
        passes = updates * options.accumulate * options.micro_batches
        everywhere: list[list[float]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(everywhere, [count / passes for count in self.runs.values()])
        return sorted({count for counts in everywhere for count in counts})


def curve(case: str) -> dict[str, list[float]]:
    """Train one case in the process group that there is."""
    config = resolve(parse([*COMMON.split(), *case.split()]), dist.get_world_size())
    faults = Faults(config, dist.get_rank())
    mesh = Mesh.build(config.layout, dist.get_rank(), wanted_groups(config), open_link=faults.opened)
    device = torch.device(config.options.device)
    update = build(config, mesh, device, faults)
    batches = Batches(config, mesh.place, device)
    folder = config.options.checkpoint and Path(config.options.checkpoint)
    first = checkpoint.load(folder, config, update) if config.options.resume else 0
    losses, norms = [], []
    forwards = Forwards(update)
    for step in range(first, config.options.steps):
        outcome = update(step, batches.update(step))
        losses.append(float(outcome.loss))
        norms.append(float(outcome.norm))
    runs = forwards.per_micro_batch(config, len(losses))
    if folder and not config.options.resume:
        checkpoint.save(folder, config.options.steps, config, update)
    for group in mesh.open_groups():
        dist.destroy_process_group(group.handle)
    return {"loss": losses, "norm": norms, "forwards": runs}


def train(cases_file: Path, answer: Path) -> None:
    """Train the cases as one of the processes."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    curves: dict[str, Any] = {}
    for case in json.loads(cases_file.read_text()):
        curves[case] = curve(case)
        if dist.get_rank() == 0:
            answer.write_text(json.dumps(curves))
    dist.destroy_process_group()


def run_script(path: str, *arguments: str) -> None:
    """Run a script as one of the processes."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{path} ended with {end.code}") from end


def main() -> None:
    """Fork the processes of a script; `sys.argv` has their number, the script and its arguments."""
    import trainer.run  # noqa: F401, PLC0415 - before the fork; it takes the first place of the path

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=int(sys.argv[1]), run_id=str(os.getpid()), rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", start_method="fork", max_restarts=0,
    )  # fmt: skip
    elastic_launch(config, run_script)(*sys.argv[2:])


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(*map(Path, sys.argv[1:]))
    else:
        main()
