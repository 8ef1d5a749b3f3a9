"""Watchdog: find out which rank is lost when the others cannot go on, and name it.

1. Every rank writes a counter, its beat, to the job's key-value store once a second.
2. A rank whose communication breaks, or that gets a SIGTERM, reads all beats twice, 2.5 seconds apart.
3. A rank whose beat has not changed is lost, unless it wrote that it leaves. The others name it and end.
While the main thread waits for a device or a message that will never come, Python runs no signal handler. The thread
that writes the beat then does steps 2 and 3 instead.
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

from trainer.foundation.torch_private import default_store

BEAT_SECONDS = 1.0
GRACE_SECONDS = 5.0
"""How long the main thread has to answer a SIGTERM."""
JOIN_SECONDS = 10.0
"""How long a beat that is on its way may take at the end."""
LEFT = "left"
LOST = 3
"""Exit status of a rank that gives up because of another."""


class Terminated(BaseException):
    """This process was sent SIGTERM."""


class Heartbeat:
    """This rank's beat in the key-value store, and the others' beats."""

    def __init__(self, rank: int, world: int, store: dist.Store) -> None:
        self.rank, self.world, self.store = rank, world, store
        self.count, self.leaving = 0, False
        self.stopped, self.main_answered = threading.Event(), threading.Event()
        # Python leaves the number of each signal in this pipe at once, whatever its main thread waits for.
        self.signals_read, self.signals_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.signals_write, warn_on_full_buffer=False)
        self.say()
        self.thread = threading.Thread(target=self._beat, daemon=True, name="pulse")
        self.thread.start()

    def say(self) -> None:
        """Write the next beat and which process this is, or that the rank leaves of its own accord."""
        self.count += 1
        word = LEFT if self.leaving else f"{self.count} pid {os.getpid()} on {socket.gethostname()}"
        self.store.set(f"pulse/{self.rank}", word)

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store goes away with the job
            while not self.stopped.is_set():
                has_signal = select.select([self.signals_read], [], [], BEAT_SECONDS)[0]
                if has_signal and signal.SIGTERM in os.read(self.signals_read, 64):
                    self.leaving = True
                    self.say()
                    if not self.main_answered.wait(GRACE_SECONDS):
                        self.give_up("told to stop")
                self.say()

    def stop(self) -> None:
        """End the thread before Python ends: caught in the store, it would abort the process."""
        self.stopped.set()
        self.main_answered.set()
        signal.set_wakeup_fd(-1)
        os.write(self.signals_write, b"\0")
        self.thread.join(JOIN_SECONDS)

    def give_up(self, reason: str) -> None:
        """Name the lost ranks and end this process; returns where none is lost."""
        with suppress(RuntimeError):  # the store may be gone
            if lost := self.gone():
                print(
                    f"error: {', '.join(lost)} is gone; rank {self.rank} gives up ({reason})\n"
                    "hint: look at its last output; with --checkpoint FOLDER --resume the run continues where it was "
                    "saved",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(LOST)  # process groups with a dead member cannot be closed in order

    def gone(self) -> list[str]:
        """Name the ranks whose beat has not changed though they never wrote that they leave."""
        self.leaving = True
        self.say()
        before = self._beats()
        threading.Event().wait(2.5 * BEAT_SECONDS)
        after = self._beats()
        lost = [(rank, beat) for rank, beat in before.items() if beat == after[rank] != LEFT]
        return [f"rank {rank} ({beat.partition(' ')[2]})" for rank, beat in lost]

    def _beats(self) -> dict[int, str]:
        keys = {rank: f"pulse/{rank}" for rank in range(self.world) if rank != self.rank}
        return {rank: self.store.get(key).decode() for rank, key in keys.items() if self.store.check([key])}


@contextmanager
def watched(rank: int, world: int) -> Iterator[None]:
    """Name a lost rank instead of failing with a broken connection; does nothing for a single process."""
    signal.signal(signal.SIGINT, _on_interrupt)
    store = default_store()
    if world == 1 or store is None:
        yield
        return
    heartbeat = Heartbeat(rank, world, store)
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    except (KeyboardInterrupt, Terminated, RuntimeError) as error:
        if was_interrupted(error):
            heartbeat.leaving = True  # of its own accord: nobody is lost
            with suppress(RuntimeError):  # the store may be gone
                heartbeat.say()
            raise
        _ignore_sigterm()
        heartbeat.main_answered.set()
        heartbeat.give_up(str(error).splitlines()[0] if str(error) else "told to stop")
        raise
    finally:
        heartbeat.stop()


def _ignore_sigterm() -> None:
    """Ignore further SIGTERMs while the beats are read; one often comes together with a broken connection."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _on_interrupt(number: int, frame: Any) -> None:  # noqa: ANN401, ARG001 - a signal handler's arguments
    """Stop at the first Ctrl-C, and let nothing end this process while it writes its trace.

    torchrun passes on the signal that the terminal has sent already, and sends a SIGTERM to all ranks when the first
    one has left. Ranks that take longer than its 30 seconds are killed all the same.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is behind an error: while one rank leaves, the others' connections break."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _on_sigterm(number: int, frame: Any) -> None:  # noqa: ANN401, ARG001 - a signal handler's arguments
    raise Terminated
