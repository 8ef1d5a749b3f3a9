"""Train a small decoder on a five-axis mesh: ``torchrun --nproc-per-node 8 trainer/run.py --profile``.

`main` reads the options (`options`), checks whether they can be trained together (`rules`), and connects the processes.
`train` opens the mesh (`parallel/mesh`), builds the model on it (`build`), and loops over updates (`step`).
"""

# ruff: noqa: E402 - the path and the environment have to be set before torch and the trainer are imported
from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

# torchrun puts this folder first on the path, where its modules would hide others of the same name.
sys.path[0] = str(Path(__file__).resolve().parents[1])
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is loaded

import torch
import torch.distributed as dist

from trainer import checkpoint
from trainer.batches import Batches
from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.configuration.config import Config
from trainer.configuration.options import OptionError
from trainer.device import claim_device, count_gpus, peak
from trainer.instrumentation.injection import Faults
from trainer.instrumentation.slow_link import connections, open_sockets
from trainer.parallel.mesh import Mesh
from trainer.reporting import Reporter, folder_of, introduce, open_session, report_to_torchrun
from trainer.rules import check_gloo, check_links, check_memory, resolve
from trainer.step import Update
from trainer.unused_options import check_window
from trainer.watchdog import ENDING, Heartbeat, stopped_by, watched
from usp_prof import record


def main() -> int:
    """Run the trainer; return the exit status."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    recorded = ""
    try:
        options = parse(sys.argv[1:])
        if options.tp_async:  # read when CUDA starts; otherwise messages queue behind products issued before them
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        config = resolve(options, world)
        check_memory(config)
        recorded = "; whole steps that were recorded are in the traces" if options.profile else ""
        if options.resume:
            check_window(options, begun=checkpoint.check(Path(options.checkpoint), config))
        elif options.checkpoint:
            checkpoint.check_unused(Path(options.checkpoint))
        device = claim_device(config.device)
        gpus, store = connect(config, rank, world, device)
        with watched(rank, world, store) as heartbeat:
            status = train(config, rank, device, gpus, heartbeat)
    except OptionError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # once per host: a file may be missing on one of them
            print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        report_to_torchrun(f"error: {error}", f"hint: {error.hint}")
        return leave(2)
    except BaseException as error:
        stop = stopped_by(error)
        if stop is None:
            raise
        message = f"rank {rank} was {stop}{recorded}"
        if rank == 0 or stop.number in ENDING:
            print(message, file=sys.stderr, flush=True)
        report_to_torchrun(message)
        os._exit(128 + stop.number)  # groups in the middle of a message cannot be closed in order
    return leave(status)


def leave(status: int) -> int:
    """Close the process groups, whose threads may abort the process as it ends; return its exit status."""
    if dist.is_initialized():
        dist.destroy_process_group()
    return status


def connect(config: Config, rank: int, world: int, device: torch.device) -> tuple[int, dist.Store]:
    """Connect to the other processes; return the number of GPUs of the job, and its key-value store.

    Processes that share a GPU use gloo by default.
    """
    if config.options.profile:
        record.prepare()
    timeout = timedelta(seconds=config.options.timeout)
    store = next(dist.rendezvous("env://", timeout=timeout))[0] if "RANK" in os.environ else dist.HashStore()
    store.set_timeout(timeout)
    gpus = count_gpus(store, rank, world, device)
    backend = config.options.backend or ("nccl" if gpus == world else "gloo")
    if backend == "nccl":
        check_links(config)
        if gpus < world:
            # NCCL refuses two processes of one host on one GPU; with different values, they look like two hosts.
            os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{rank}"
    elif gpus:
        check_gloo(config)
    bound = device if backend == "nccl" else None  # NCCL then connects the groups as they are opened
    dist.init_process_group(backend, rank=rank, world_size=world, timeout=timeout, store=store, device_id=bound)
    return gpus, store


def train(config: Config, rank: int, device: torch.device, gpus: int, heartbeat: Heartbeat | None = None) -> int:
    """Build everything and loop over the steps; return the exit status."""
    options = config.options
    faults = Faults(config, rank)
    mesh = Mesh.build(config.layout, rank, wanted_groups(config), timedelta(seconds=options.timeout), faults.opened)
    folder = folder_of(config)
    if rank == 0:
        introduce(config)
    connect_groups(mesh, device)
    by_gloo = heartbeat is not None and dist.get_backend() == "gloo"
    closing = heartbeat.closing(connections_to_ranks()) if by_gloo else nullcontext()
    update = build(config, mesh, device, faults)
    batches = Batches(config, mesh.place, device)
    first = resume(config, update, rank) if options.resume else 0
    steps = range(first, options.steps)
    if rank == 0 and not steps:
        print(f"nothing to do: {first} updates are complete, and --steps is {options.steps}")
    elif rank == 0 and options.profile:
        window = options.recorded_steps(first)
        print(f"recording: steps {window.start} to {window.stop - 1} of every rank, in {folder}", flush=True)
    session = open_session(config, mesh, faults, folder) if options.profile else None
    devices = gpus or config.layout.world
    reporter = Reporter(config, peak(config, device, gpus), devices, folder) if rank == 0 else None
    inputs = batches.ahead(steps)
    with reporter or nullcontext(), session or nullcontext(), closing:
        for step in steps:
            with session.step() if session else nullcontext():
                began = time.perf_counter()
                with record.phase("input"):
                    faults.input(step)
                    passes = next(inputs)
                waited = time.perf_counter() - began
                faults.begin(step)
                outcome = update(step, passes)
                with record.phase("log"):
                    if reporter:
                        reporter.report(step, outcome, began, waited)
                save_if_due(step + 1, config, update)
    if session and steps:
        return report_traces(folder, rank)
    return 0


def report_traces(folder: Path, rank: int) -> int:
    """Print where the traces are; return the exit status, which is 1 if this rank's trace is missing."""
    if not list(folder.glob(f"rank{rank}.json*")):
        print(f"error: no trace of rank {rank} in {folder}\nhint: --output FOLDER with room for it", file=sys.stderr)
        return 1
    if rank == 0:
        print(f"traces: {folder}\nnext: usp-prof analyze {folder}")
    return 0


def resume(config: Config, update: Update, rank: int) -> int:
    """Continue from the newest checkpoint; return the number of updates made so far."""
    folder = Path(config.options.checkpoint)
    changed = checkpoint.changes(folder, config)
    if rank == 0 and changed:
        print(f"note: the curve differs from that of one uninterrupted run: {', '.join(changed)}")
    return checkpoint.load(folder, config, update)


def connect_groups(mesh: Mesh, device: torch.device) -> None:
    """Make NCCL connect each group while all its members take part: a pipeline's first message has only two."""
    if device.type == "cuda" and dist.get_backend() == "nccl":
        for group in mesh.open_groups():
            dist.all_reduce(torch.zeros(1, device=device), group=group.handle)


def connections_to_ranks() -> list[socket.socket]:
    """Return this process's network connections, except those to the job's key-value store."""
    store_port = int(os.environ.get("MASTER_PORT", "0"))
    links = [link for link in connections(open_sockets()) if link.family != socket.AF_UNIX]
    return [link for link in links if store_port not in {link.getpeername()[1], link.getsockname()[1]}]


def save_if_due(done: int, config: Config, update: Update) -> None:
    """Write a checkpoint every `--checkpoint-every` updates and at the end."""
    options = config.options
    due = done == options.steps or (options.checkpoint_every and done % options.checkpoint_every == 0)
    if options.checkpoint and due:
        with record.phase("checkpoint"):
            checkpoint.save(Path(options.checkpoint), done, config, update)


if __name__ == "__main__":
    sys.exit(main())
