"""Dask: an executor whose workers run on other machines.

The workers must see the traces and the store under the same paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from distributed import Client

HOW = "--executor dask:tcp://HOST:8786"
_CONNECT_S = 30
_GREETING_S = 5
"""Extra wait for a server that accepted the connection."""


@contextmanager
def connect(address: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Executor]:
    """Yield the executor of a Dask scheduler, such as `tcp://HOST:8786`.

    `say` receives a message if the scheduler has no workers yet: jobs then wait for the first one.
    """
    try:
        import distributed  # noqa: F401, PLC0415 - the extra `cluster`
    except ImportError:
        raise UsageError("Dask is not installed", hint="pip install 'usp-prof[cluster]'") from None
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
        raise UsageError(f"{address!r} is not an address of a Dask scheduler: {wrong}", hint=HOW)
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
