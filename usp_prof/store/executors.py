"""Executors that run rank jobs: worker processes of this machine, or a cluster's that a command line names.

On this machine loky starts as many processes as cores and memory allow; unlike the standard pool it never imports the
caller's main module, so a script or a notebook needs no main guard. On a cluster, Dask's client gives an executor whose
workers lie on other machines; they must see the traces and the store under the same paths.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    from usp_prof.inputs.remote import Location
    from usp_prof.store.rank_jobs import RankJob

_WORKER_BYTES = 200 << 20
"""Memory of a worker that reads nothing yet: the interpreter and its libraries."""
_UNPACKED = 12
"""A packed trace unpacks to about this many times its size; a reader needs about the unpacked size."""
_MEMORY_SHARE = 0.8
_DASK = "dask:"


@contextmanager
def local_executor(jobs: Sequence[RankJob], most: int = 0) -> Iterator[Executor]:
    """Give a pool of worker processes (at most `most`, if given), and end them afterwards."""
    from loky import ProcessPoolExecutor  # noqa: PLC0415 - a run that is cached starts no process

    pool = ProcessPoolExecutor(max_workers=workers_for(jobs, most))
    try:
        yield pool
    finally:
        # Without a failure nothing is running any more; after Ctrl-C nobody waits for what is.
        pool.shutdown(wait=True, kill_workers=True)


@contextmanager
def named_executor(name: str) -> Iterator[Executor]:
    """Give the executor that a command line names: `dask:tcp://HOST:PORT`, the address of a Dask scheduler."""
    if not name.startswith(_DASK):
        raise UsageError(f"no executor is named {name!r}", hint="--executor dask:tcp://HOST:8786")
    try:
        from distributed import Client  # noqa: PLC0415 - the extra `cluster`
    except ImportError:
        raise UsageError("Dask is not installed", hint="pip install 'usp-prof[cluster]'") from None
    address = name.removeprefix(_DASK)
    try:
        client = Client(address, timeout="30s")  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {address}: {error}", hint="dask scheduler") from None
    with client:
        yield client.get_executor(pure=False)  # type: ignore[no-untyped-call]


def workers_for(jobs: Sequence[RankJob], most: int = 0) -> int:
    """Say how many local workers can read at once: bounded by jobs, processors and memory."""
    bounds = [len(jobs), processors(), *([most] if most > 0 else [])]
    need = _WORKER_BYTES + max((_reading_bytes(job.path) for job in jobs), default=0)
    if (free := free_memory()) is not None:
        bounds.append(int(free * _MEMORY_SHARE / need))
    return max(1, min(bounds))


def _reading_bytes(path: Location) -> int:
    size = path.stat().st_size if path.exists() else 0
    return size if path.suffix == ".json" else size * _UNPACKED


def free_memory() -> int | None:
    """Say how many bytes of memory are free for this process, by the system and its container; None: not known."""
    bounds = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        bounds.append(int(lines["MemAvailable"].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit.isdecimal():
            bounds.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, KeyError, ValueError):
        pass
    return max(0, min(bounds)) if bounds else None


def processors() -> int:
    """Count the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
