"""Slow link: sockets of a process group, slowed down by the Linux kernel.

The host does not wait: a message is posted when it is ready, and arrives later, as over a bad cable. Gloo opens its
sockets with the group, so new sockets belong to the group. NCCL has its own sockets, so the fault is refused there.
"""

from __future__ import annotations

import os
import socket
import weakref
from pathlib import Path
from threading import Lock, Timer

SO_MAX_PACING_RATE = 47
"""Linux: maximum bytes per second of a socket; after a pause, a packet of up to 64 KB is charged half."""
TCP_CORK = 3
"""Linux: a socket keeps the unfinished packet at the end of a message until it is uncorked, or for 200 ms."""
LONGEST_MS = 200


class SlowLink:
    """The sockets of one group; each posted message is delayed."""

    def __init__(self, links: list[socket.socket], *, bytes_per_second: int, delay_seconds: float) -> None:
        self.links, self.delay_seconds = links, delay_seconds
        self.lock, self.delayed = Lock(), 0
        weakref.finalize(self, _close, links)
        if bytes_per_second:
            for link in links:
                link.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_second)

    def hold(self) -> None:
        """Delay the next message; messages posted during the delay extend it."""
        if not self.delay_seconds:
            return
        with self.lock:
            self.delayed += 1
            self._cork(1)
        timer = Timer(self.delay_seconds, self._release)
        timer.daemon = True
        timer.start()

    def _release(self) -> None:
        with self.lock:
            self.delayed -= 1
            if not self.delayed:
                self._cork(0)

    def _cork(self, on: int) -> None:
        for link in self.links:
            link.setsockopt(socket.IPPROTO_TCP, TCP_CORK, on)


def _close(links: list[socket.socket]) -> None:
    for link in links:
        link.close()


def open_sockets() -> set[str]:
    """List this process's sockets, as ``descriptor socket:[inode]``."""
    sockets: set[str] = set()
    if not Path("/proc/self/fd").is_dir():  # not Linux
        return sockets
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of the listing itself is closed by now
            continue
        if target.startswith("socket:"):
            sockets.add(f"{entry.name} {target}")
    return sockets


def connections(names: set[str]) -> list[socket.socket]:
    """Return the sockets that are connected, each under a second descriptor that keeps it open."""
    links = []
    for name in sorted(names):
        link = socket.socket(fileno=os.dup(int(name.split()[0])))
        try:
            link.getpeername()
        except OSError:  # a listening socket
            link.close()
            continue
        links.append(link)
    return links
