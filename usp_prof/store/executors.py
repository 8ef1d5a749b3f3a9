"""Executors that run rank jobs: worker processes of this machine, or of a cluster named on the command line.

On this machine loky starts as many processes as cores and memory allow. Unlike the standard pool it never imports the
caller's main module, so a script or notebook needs no main guard. On a cluster, Dask's client provides an executor
whose workers run on other machines. They must see the traces and the store under the same paths.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor

    from distributed import Client

    from usp_prof.inputs.remote import Location
    from usp_prof.store.rank_jobs import RankJob

_WORKER_BYTES = 200 << 20
"""Memory of an idle worker: the interpreter and its libraries."""
_UNPACKED = 12
"""Typical ratio of unpacked to packed trace size; a reader needs about the unpacked size."""
_MEMORY_SHARE = 0.8
_DASK = "dask:"
_HOW = "--executor dask:tcp://HOST:8786"
_CONNECT_S = 30
_GREETING_S = 5
"""Extra wait for a server that accepted the connection."""


@contextmanager
def local_executor(workers: int) -> Iterator[Executor]:
    """Yield a pool of worker processes, and stop them afterwards."""
    from loky import ProcessPoolExecutor  # noqa: PLC0415 - a run that is cached starts no process

    pool = ProcessPoolExecutor(max_workers=workers)
    try:
        yield pool
    finally:
        # Without a failure nothing is running here; after Ctrl-C no result is needed.
        pool.shutdown(wait=True, kill_workers=True)


@contextmanager
def named_executor(name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Executor]:
    """Yield the executor for a command-line name: `dask:tcp://HOST:PORT`, the address of a Dask scheduler.

    `say` receives a message if the scheduler has no workers yet: jobs then wait for the first one.
    """
    if not name.startswith(_DASK):
        raise UsageError(f"no executor is named {name!r}", hint=_HOW)
    try:
        import distributed  # noqa: F401, PLC0415 - the extra `cluster`
    except ImportError:
        raise UsageError("Dask is not installed", hint="pip install 'usp-prof[cluster]'") from None
    address = name.removeprefix(_DASK)
    with _client(address) as client:
        if not client.scheduler_info()["workers"]:
            say(f"the Dask scheduler at {address} has no workers yet: waiting for them")
        yield client.get_executor(pure=False)


def _client(address: str) -> Client:
    """Connect to a Dask scheduler.

    Dask waits without limit for the greeting of a server that is no scheduler, such as the scheduler's dashboard. So it
    connects in a thread, which is abandoned if the greeting does not arrive.
    """
    from distributed import Client  # noqa: PLC0415 - the extra `cluster`

    if (wrong := _what_is_wrong(address)) is not None:
        raise UsageError(f"{address!r} is not an address of a Dask scheduler: {wrong}", hint=_HOW)
    connected: Future[Client] = Future()

    def connect() -> None:
        try:
            connected.set_result(Client(address, timeout=_CONNECT_S))  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - returned to the waiting thread
            connected.set_exception(error)

    Thread(target=connect, daemon=True).start()
    try:
        return connected.result(_CONNECT_S + _GREETING_S)
    except TimeoutError:
        why = "the server there does not answer as a scheduler does"
    except (OSError, ValueError) as error:
        why = str(error)
    raise UsageError(
        f"no Dask scheduler answers at {address}: {why}",
        hint="give the address that `dask scheduler` prints, not its dashboard's",
    )


def _what_is_wrong(address: str) -> str | None:
    """Return why this is not a scheduler address. Dask would retry an address without a port for 30 s."""
    _, _, place = address.rpartition("://")
    try:
        return None if urlsplit(f"//{place}").port else "it has no port"
    except ValueError as error:
        return str(error)


def workers_for(jobs: Sequence[RankJob]) -> int:
    """Return how many local processes can read at once: limited by jobs, processors and memory."""
    bounds = [len(jobs), processors()]
    need = _WORKER_BYTES + max((unpacked_bytes(job.path) for job in jobs), default=0)
    if (free := free_memory()) is not None:
        bounds.append(int(free * _MEMORY_SHARE / need))
    return max(1, min(bounds))


def unpacked_bytes(path: Location) -> int:
    """Return the size of a trace as JSON, estimated where it is packed."""
    size = path.stat().st_size if path.exists() else 0
    return size if path.suffix == ".json" else size * _UNPACKED


def free_memory() -> int | None:
    """Return the bytes of memory free for this process and its container; None: unknown."""
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
    """Return the number of processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
