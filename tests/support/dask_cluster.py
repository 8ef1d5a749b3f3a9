"""Dask scheduler and workers in separate processes, as on a cluster: any may be killed or stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed import Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_STARTS_WITHIN_S = 120
_HERE = ("--host", "127.0.0.1", "--no-dashboard")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Operations of a test on the cluster."""

    address: str
    """Of the scheduler, as `--executor dask:ADDRESS` takes it."""
    workers: tuple[int, ...]
    """Process ids; killed processes are not restarted."""


@contextmanager
def dask_cluster(workers: int, folder: Path) -> Iterator[Cluster]:
    """Start a scheduler on a free port and workers with one thread each; end them afterwards.

    Not `LocalCluster`: its scheduler would live in the process of the tests, where Dask's warning that a loaded disk
    is slow to make a folder is an error.
    """
    about = folder / "scheduler.json"
    with ExitStack() as stack:
        _started(stack, "scheduler", "--port", "0", "--scheduler-file", str(about), *_HERE)
        address = _address(about)
        options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(folder), *_HERE)
        pids = tuple(_started(stack, "worker", address, *options) for _ in range(workers))
        with Client(address, timeout=_STARTS_WITHIN_S) as client:
            if workers:
                client.wait_for_workers(workers, timeout=_STARTS_WITHIN_S)
        yield Cluster(address, pids)


def _started(stack: ExitStack, *words: str) -> int:
    process = subprocess.Popen([sys.executable, "-m", "dask", *words], stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid


def _address(about: Path) -> str:
    """Wait for the file with the scheduler's address."""
    until = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < until:
        if about.exists() and (text := about.read_text()):
            return str(json.loads(text)["address"])
        time.sleep(0.1)
    raise TimeoutError("no Dask scheduler has started")
