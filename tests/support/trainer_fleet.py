"""Several layouts in one launch: loss and gradient norm of each step, and the number of forward passes."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from trainer import checkpoint
from trainer.batches import Batches
from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.instrumentation.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.rules import resolve

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from trainer.configuration.config import Config
    from trainer.step import Update

ROOT = Path(__file__).resolve().parents[2]
Process = get_context("fork").Process
COMMON = "--dtype fp64 --batch 16 --layers 4 --steps 5 --device cpu"


def torchrun(processes: int) -> list[str]:
    """Return the command that starts this number of processes; each launch finds its own port."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]


def forked(processes: int) -> list[str]:
    """Return the command that runs a script like torchrun, in processes forked from one.

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
    """Wait for the output of a launch. Terminate it after a time limit, so that torchrun also ends its ranks."""
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
    """Counter of forward passes per layer, including recomputation."""

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
    """Train one case in the existing process group."""
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


def serve_store(answer: Connection) -> None:
    """Serve the store at which the ranks meet, and send its port."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    answer.send(store.port)
    signal.pause()


def run_rank(rank: int, processes: int, port: int) -> None:
    """Run the script as one of the processes."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Fork the processes of a script; `sys.argv` has their number, the script and its arguments.

    This process has no threads: a lock that another thread holds during a fork is never released in the child.
    """
    import trainer.run  # noqa: F401, PLC0415 - before the fork; it takes the first place of the path

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    processes = int(sys.argv[1])
    receiver, sender = Pipe(duplex=False)
    store = Process(target=serve_store, args=(sender,))
    store.start()
    port = receiver.recv()
    ranks = [Process(target=run_rank, args=(rank, processes, port), name=f"rank {rank}") for rank in range(processes)]
    try:
        for rank in ranks:
            rank.start()
        running = {rank.sentinel: rank for rank in ranks}
        while running:
            for sentinel in wait(list(running)):
                ended = running.pop(sentinel)
                ended.join()
                if ended.exitcode:
                    sys.exit(f"{ended.name} ended with {ended.exitcode}")
    finally:
        for process in (store, *ranks):
            if process.is_alive():
                process.kill()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(*map(Path, sys.argv[1:]))
    else:
        main()
