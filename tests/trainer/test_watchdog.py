"""Watchdog: what it costs to find a lost rank among many."""

from __future__ import annotations

import signal
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist

from trainer.watchdog import HANDLED, Heartbeat, Stopped, is_broken_connection, key_of, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.trainer
WORLD = 512


class CountingStore(dist.HashStore):
    """A store that counts its requests, each of which is a message to the process that has the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def check(self, keys: list[str]) -> bool:
        self.requests["check"] += 1
        return super().check(keys)

    def get(self, key: str) -> bytes:
        self.requests["get"] += 1
        return super().get(key)

    def multi_get(self, keys: list[str]) -> Any:
        self.requests["multi_get"] += 1
        return super().multi_get(keys)


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heartbeat = Heartbeat(0, WORLD, CountingStore())
    yield heartbeat
    heartbeat.stop()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_all_heartbeats_are_read_in_two_messages(heartbeat: Heartbeat) -> None:
    for rank in range(1, WORLD):
        heartbeat.store.set(key_of(rank), f"1 pid {rank}")
    assert set(heartbeat._heartbeats()) == set(range(1, WORLD))
    assert heartbeat.store.requests.total() == 2


def test_a_rank_that_has_not_started_is_not_waited_for(heartbeat: Heartbeat) -> None:
    heartbeat.store.set(key_of(5), "1 pid 5")
    assert heartbeat._heartbeats() == {5: "1 pid 5"}


@pytest.mark.parametrize(
    ("error", "left_because"),
    [
        (Stopped(signal.SIGTERM), "stopped by SIGTERM"),
        (RuntimeError("shapes differ"), "failed: shapes differ"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), ""),
    ],
)
def test_a_rank_that_ends_closes_its_connections_first(
    heartbeat: Heartbeat, error: BaseException, left_because: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as link,
        server.accept()[0] as peer,
    ):
        peer.settimeout(10)
        with pytest.raises(type(error)), heartbeat.closing([link]):
            raise error
        assert peer.recv(1) == b""
    assert left_because in heartbeat.left_because
    assert bool(left_because) == bool(heartbeat.left_because), "a rank that lost a peer is not the one that failed"


def _lose_torchrun() -> None:
    """Fail as a rank does whose peers have closed their connections because torchrun is gone."""
    with watched(0, 2, dist.HashStore()) as heartbeat:
        assert heartbeat is not None
        assert not heartbeat.launcher_is_gone()
        heartbeat.launcher += 1
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")


def test_a_rank_whose_peers_saw_first_that_torchrun_is_gone_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        with pytest.raises(Stopped) as stopped:
            _lose_torchrun()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert stopped.value.number == signal.SIGTERM


@pytest.mark.parametrize(
    "message",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:29501",
        "Application timeout caused pair closure",  # for messages in flight when another one timed out
    ],
)
def test_errors_of_gloo_are_broken_connections(message: str) -> None:
    assert is_broken_connection(RuntimeError(message))


def test_an_error_of_the_program_is_no_broken_connection() -> None:
    assert not is_broken_connection(RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"))
