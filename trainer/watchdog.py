"""Watchdog: identifies a lost rank when the others cannot continue, and ends the job without losing a trace.

1. Once per second, every rank writes a counter, its heartbeat, to the job's key-value store.
2. A rank that is stopped (SIGTERM, SIGHUP, Ctrl-C) or fails writes `left` and the reason instead.
3. A rank whose communication breaks reads all heartbeats twice, 2.5 seconds apart. A rank is lost if it has not left
   and its heartbeat has not changed. The others report it, or the ranks that left, and end.

Traces come first: the recording session is inside `watched`, so it writes its trace before step 3. Before a rank writes
its trace, it closes its connections (`closing`), so that no other rank waits for it.

Python runs no signal handler while the main thread waits for a device or a message. If such a wait never ends, the
thread that writes the heartbeat closes the connections, which ends a wait for a rank that hangs. If that does not help,
it performs step 3, unless a trace is being written.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

from usp_prof.record import is_writing

BEAT_SECONDS = 1.0
GRACE_SECONDS = 5.0
"""Time that the main thread has to handle a signal."""
WRITING_SECONDS = 60.0
"""Maximum time that a stopped rank continues to write its trace; torchrun kills its ranks after 30 seconds."""
JOIN_SECONDS = 10.0
"""Maximum time that the last heartbeat may take at the end."""
LEFT = "left"
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a job: from torchrun, a scheduler, or a closed terminal."""
HANDLED = (signal.SIGINT, *ENDING)
BROKEN = ("gloo", "Application timeout caused pair closure")
"""What gloo's errors contain; the second is what other messages in flight get when one times out."""
LOST = 3
"""Exit status of a rank that ends because another one is lost or has left."""


class Stopped(BaseException):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __str__(self) -> str:
        return f"stopped by {'Ctrl-C' if self.number == signal.SIGINT else signal.Signals(self.number).name}"


class Heartbeat:
    """This rank's heartbeat in the key-value store, and those of the others."""

    def __init__(self, rank: int, world: int, store: dist.Store) -> None:
        self.rank, self.world, self.store = rank, world, store
        self.count, self.left_because = 0, ""
        self.links: list[socket.socket] = []
        """Connections to other ranks during training."""
        self.launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else 0
        """Process id of torchrun, which ends its ranks; 0 without torchrun."""
        self.stopped, self.main_answered = threading.Event(), threading.Event()
        # Python writes the number of each signal into this pipe immediately, even if its main thread waits.
        self.signals_read, self.signals_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.signals_write, warn_on_full_buffer=False)
        self.write()
        self.thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self.thread.start()

    def write(self) -> None:
        """Write the next heartbeat with this process's id, or the reason why the rank left."""
        self.count += 1
        word = f"{LEFT} {self.left_because}" if self.left_because else f"{self.count} {process_name()}"
        self.store.set(key_of(self.rank), word)

    def leave(self, reason: str) -> None:
        """Report that this rank ends and why, so that the others do not report it as lost."""
        self.left_because = self.left_because or reason
        with suppress(RuntimeError):  # the store may be gone
            self.write()

    def launcher_is_gone(self) -> bool:
        """Return whether torchrun started this rank and has ended since."""
        return self.launcher != 0 and os.getppid() != self.launcher

    def _beat(self) -> None:
        is_stopped = False
        with suppress(RuntimeError):  # the store goes away with the job
            while not self.stopped.is_set():
                has_signal = select.select([self.signals_read], [], [], BEAT_SECONDS)[0]
                numbers = os.read(self.signals_read, 64) if has_signal else b""
                if stops := [str(Stopped(number)) for number in numbers if number in HANDLED]:
                    self.leave(stops[0])
                    if not self._main_answers():
                        self.end_if_lost(stops[0])
                if self.launcher_is_gone() and not is_stopped:
                    is_stopped = True
                    os.kill(os.getpid(), signal.SIGTERM)  # as torchrun would have done
                self.write()

    def _main_answers(self) -> bool:
        """Return whether the main thread handles the signal; wait while it writes a trace."""
        if self.main_answered.wait(GRACE_SECONDS):
            return True
        self._close_links()
        if self.main_answered.wait(GRACE_SECONDS):
            return True
        deadline = time.monotonic() + WRITING_SECONDS
        while is_writing() and time.monotonic() < deadline:
            if self.main_answered.wait(BEAT_SECONDS):
                return True
        return self.main_answered.is_set()

    def stop(self) -> None:
        """End the thread before Python exits; inside the store, it would abort the process."""
        self.stopped.set()
        self.main_answered.set()
        signal.set_wakeup_fd(-1)
        os.write(self.signals_write, b"\0")
        self.thread.join(JOIN_SECONDS)

    def end_if_lost(self, reason: str, patience: float = 0.0) -> None:
        """End this process if other ranks are lost, or left before it failed; report them.

        A rank that has closed its connections may still be writing its trace: wait for it up to `patience` seconds.
        """
        deadline = time.monotonic() + patience
        with suppress(RuntimeError):  # the store may be gone
            lost, left = self.lost_and_left()
            while not lost and not left and time.monotonic() < deadline:
                lost, left = self.lost_and_left()
            if self.left_because:  # this rank was stopped, and maybe others too: report only failures
                left = [rank for rank in left if "failed" in rank]
            if not lost and not left:
                return
            message = f"{', '.join(lost)} is gone; rank {self.rank} gives up ({reason})"
            if not lost:
                message = f"{', '.join(left)}; rank {self.rank} ends too"
            hint = "look at its last output; with --checkpoint FOLDER --resume the run continues where it was saved"
            print(f"error: {message}\nhint: {hint}", file=sys.stderr, flush=True)
            os._exit(LOST)  # process groups with a dead member cannot be closed in order

    @contextmanager
    def closing(self, links: list[socket.socket]) -> Iterator[None]:
        """Close the connections to other ranks on an error, before slow work such as writing a trace.

        Ranks that wait for this one then fail immediately, and all write their traces at the same time. If they wrote
        them one after another, torchrun would kill them after 30 seconds.
        """
        self.links = links
        try:
            yield
        except (Stopped, KeyboardInterrupt, RuntimeError) as error:
            stop = stopped_by(error)
            if stop is not None:
                self.leave(str(stop))
            elif not is_broken_connection(error):
                self.leave(failure(error))
            self._close_links()
            raise

    def _close_links(self) -> None:
        for link in self.links:
            with suppress(OSError):  # the other end may have closed it
                link.shutdown(socket.SHUT_RDWR)

    def lost_and_left(self) -> tuple[list[str], list[str]]:
        """Describe the other ranks that are lost, and those that left."""
        before = self._heartbeats()
        threading.Event().wait(2.5 * BEAT_SECONDS)
        after = self._heartbeats()
        left = [f"rank {rank} {beat.partition(' ')[2]}" for rank, beat in after.items() if beat.startswith(LEFT)]
        lost = [
            f"rank {rank} ({beat.partition(' ')[2]})"
            for rank, beat in before.items()
            if beat == after[rank] and not beat.startswith(LEFT)
        ]
        return lost, left

    def _heartbeats(self) -> dict[int, str]:
        """Read the other ranks' heartbeats; a rank that has not started yet has none."""
        peers = [rank for rank in range(self.world) if rank != self.rank]
        if not self.store.check(list(map(key_of, peers))):  # all of them, in one message
            peers = [rank for rank in peers if self.store.check([key_of(rank)])]
        beats = self.store.multi_get(list(map(key_of, peers)))
        return {rank: beat.decode() for rank, beat in zip(peers, beats, strict=True)}


def key_of(rank: int) -> str:
    """Return the store's key of a rank's heartbeat."""
    return f"heartbeat/{rank}"


def process_name() -> str:
    """Return this process's id and host."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


def failure(error: BaseException) -> str:
    """Return this process's name and the reason why it fails, in one line."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"({process_name()}) failed: {reason}"


def is_broken_connection(error: BaseException) -> bool:
    """Return whether an error means that another rank cannot be reached."""
    return isinstance(error, dist.DistError) or any(words in str(error) for words in BROKEN)


@contextmanager
def watched(rank: int, world: int, store: dist.Store) -> Iterator[Heartbeat | None]:
    """Raise `Stopped` on a signal or Ctrl-C; on a broken connection, report the lost rank."""
    for number in HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` does with SIGHUP
            signal.signal(number, _stop)
    if world == 1:
        yield None
        return
    heartbeat = Heartbeat(rank, world, store)
    try:
        yield heartbeat
    except (Stopped, RuntimeError) as error:
        with suppress(Stopped):  # a signal often comes together with a broken connection
            _ignore_signals()
        _ignore_signals()
        heartbeat.main_answered.set()
        stop = stopped_by(error)
        if stop is None:
            if is_broken_connection(error):
                if heartbeat.launcher_is_gone():  # ranks that saw this first have closed their connections
                    raise Stopped(signal.SIGTERM) from error
                heartbeat.end_if_lost(str(error).splitlines()[0], WRITING_SECONDS)
            heartbeat.leave(failure(error))
        else:
            heartbeat.leave(str(stop))
            if stop.number in ENDING:
                heartbeat.end_if_lost(str(stop))
        raise
    finally:
        heartbeat.stop()


def stopped_by(error: BaseException | None) -> Stopped | None:
    """Return the signal that stopped this process, even as the context of a broken connection, or `None`."""
    while error is not None:
        if isinstance(error, (Stopped, KeyboardInterrupt)):
            return error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
        error = error.__cause__ or error.__context__
    return None


def _stop(number: int, frame: Any) -> None:  # noqa: ANN401, ARG001 - a signal handler's arguments
    """Stop at the first signal, and ignore further signals while this process writes its trace.

    torchrun forwards a Ctrl-C that the terminal has already sent, and sends SIGTERM to all ranks when the first one has
    left. It kills ranks that take longer than 30 seconds.
    """
    _ignore_signals()
    raise Stopped(number)


def _ignore_signals() -> None:
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)
