"""Which rank is gone, when the others find that they cannot go on?

Every rank leaves a beat in the job's key-value store once a second. A rank whose communication breaks (or that is told
to stop because of another) looks whose beat stands still, and names it. Told to stop while it waits for a device or a
message that will never come, Python hears nothing: then the thread of the beat speaks instead.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

from trainer.torch_private import default_store

BEAT = 1.0
"""Seconds between two beats."""
GRACE = 5.0
"""Seconds that the main thread has to hear that it is told to stop."""
PATIENCE = 10.0
"""Seconds that a beat on its way may take at the end."""
LEFT = "left"
LOST = 3
"""Exit status of a rank that gives up because of another."""


class Told(BaseException):
    """Somebody asked this process to stop."""


class Pulse:
    """This rank's beat, and what the others' say."""

    def __init__(self, rank: int, world: int, store: dist.Store) -> None:
        self.rank, self.world, self.store = rank, world, store
        self.count, self.leaving = 0, False
        self.stopped, self.heard = threading.Event(), threading.Event()
        # Python leaves the number of each signal in this pipe at once, whatever its main thread waits for.
        self.ear, self.mouth = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.mouth, warn_on_full_buffer=False)
        self._say()
        self.thread = threading.Thread(target=self._beat, daemon=True, name="pulse")
        self.thread.start()

    def _say(self) -> None:
        """Tell the others that this rank is here, and which process it is, or that it leaves of its own accord."""
        self.count += 1
        word = LEFT if self.leaving else f"{self.count} pid {os.getpid()} on {socket.gethostname()}"
        self.store.set(f"pulse/{self.rank}", word)

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store goes away with the job
            while not self.stopped.is_set():
                if select.select([self.ear], [], [], BEAT)[0] and signal.SIGTERM in os.read(self.ear, 64):
                    self.leaving = True
                    self._say()
                    if not self.heard.wait(GRACE):
                        self.give_up("told to stop")
                self._say()

    def stop(self) -> None:
        """Beat no more; this rank leaves in order. A thread caught in the store as Python ends would abort it."""
        self.stopped.set()
        self.heard.set()
        signal.set_wakeup_fd(-1)
        os.write(self.mouth, b"\0")
        self.thread.join(PATIENCE)

    def give_up(self, reason: str) -> None:
        """Name those that are gone and end this process; comes back where nobody is."""
        with suppress(RuntimeError):  # the store may be gone
            if gone := self.gone():
                print(
                    f"error: {', '.join(gone)} is gone; rank {self.rank} gives up ({reason})\n"
                    "hint: look at its last output; with --checkpoint FOLDER --resume the run continues where it was "
                    "saved",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(LOST)  # process groups with a dead member cannot be closed in order

    def gone(self) -> list[str]:
        """Name the ranks whose beat stands still though they never said that they leave."""
        self.leaving = True
        self._say()
        before = self._beats()
        threading.Event().wait(2.5 * BEAT)
        after = self._beats()
        still = [(rank, beat) for rank, beat in before.items() if beat == after[rank] != LEFT]
        return [f"rank {rank} ({beat.partition(' ')[2]})" for rank, beat in still]

    def _beats(self) -> dict[int, str]:
        keys = {rank: f"pulse/{rank}" for rank in range(self.world) if rank != self.rank}
        return {rank: self.store.get(key).decode() for rank, key in keys.items() if self.store.check([key])}


@contextmanager
def watched(rank: int, world: int) -> Iterator[None]:
    """Name a lost rank instead of failing with a broken connection; does nothing for a single process."""
    store = default_store()
    if world == 1 or store is None:
        yield
        return
    pulse = Pulse(rank, world, store)
    signal.signal(signal.SIGTERM, _told)
    try:
        yield
    except (Told, RuntimeError) as error:
        _deafen()
        pulse.heard.set()
        pulse.give_up(str(error).splitlines()[0] if str(error) else "told to stop")
        raise
    finally:
        pulse.stop()


def _deafen() -> None:
    """Be told no more: the answer takes a moment. A broken connection and the word to stop often come together."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Told:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _told(number: int, frame: Any) -> None:  # noqa: ANN401, ARG001 - a signal handler's arguments
    raise Told
