"""Windows: which steps are recorded, and the profiler of one window, kept separate from other profilers.

Kineto serves one profiler at a time. Preparing or starting a second one cancels the first, and stopping the canceled
one crashes the process. So every operation first checks for other profilers, and a window taken over by another
profiler is abandoned without a call. A profiler records the thread that started it, and must end on that thread. A
window that continues or ends on another thread is left behind, and ended when its thread runs again. Outside of windows
there is no profiler: a step costs one comparison. In light mode the profiler records device activity only, and the
recorder notes steps and marks (`marks`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

import torch
from torch.profiler import ProfilerActivity, record_function

from usp_prof.record import _torch_private, marks
from usp_prof.record.options import Content, Level, Window
from usp_prof.record.surroundings import uses_cuda

HOW_TO_HAVE_BOTH = (
    "to have both, let one end before the other begins: enter the session after the other profiler's `with` block,"
    " or choose its steps with `skip`; the session's own traces are plain Kineto traces"
)


NO_DEVICE = (
    "level='light' records device activity alone, and this process computes on no GPU;"
    " leave `level` out to record what the host does"
)


class NoDeviceError(Exception):
    """Raised if there is no device whose activity could be recorded alone."""


class OtherProfilerError(Exception):
    """Raised if another profiler is running, waiting, or took over the window; the message says which."""


class OtherThreadError(Exception):
    """Raised if the window continues or ends on another thread than the one it started on; the message names both."""


_left_behind: WindowProfiler | None = None
"""Profiler of a window abandoned on a thread other than its own, while it may still record there."""


class WindowProfiler:
    """Profiler of one window: prepared during the warm-up steps, then recording step by step."""

    __slots__ = ("_is_light", "_profile", "_step", "notes", "thread")

    def __init__(self, content: Content, metadata: tuple[str, str]) -> None:
        self._is_light = content.level == Level.LIGHT
        if self._is_light and not uses_cuda():
            raise NoDeviceError(NO_DEVICE)
        refuse_others()
        let_children_end()
        # Kineto prints `USDT:` lines at its highest level, above errors; KINETO_LOG_LEVEL=4 prints both.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        host, device = [ProfilerActivity.CPU], [ProfilerActivity.CUDA] if uses_cuda() else []
        activities = device if self._is_light else host + device
        self.notes: marks.Notes | None = None
        """Steps and marks of a window in light mode."""
        self._step: marks.Annotation | record_function | None = None
        self.thread: threading.Thread | None = None
        """Recording thread; None before `start`."""
        self._profile = torch.profiler.profile(
            activities=activities,
            record_shapes=content.shapes and not self._is_light,
            profile_memory=content.memory and not self._is_light,
            with_stack=content.stack and not self._is_light,
            experimental_config=_torch_private.naming_waits() if content.waits and uses_cuda() else None,
        )
        _torch_private.forget_profile()  # any profile that exists later was created by other code
        self._profile.preset_metadata_json(*metadata)
        self._profile.prepare_trace()

    def start(self, step: int) -> None:
        """Start recording with this step."""
        refuse_others()
        self._profile.start_trace()
        self.thread = threading.current_thread()
        _torch_private.claim_profiler()
        if self._is_light:
            self.notes = marks.begin_notes()
        self._open(step)

    def next_step(self, step: int) -> None:
        """End the current step and start the next."""
        self._refuse_takeover()
        if _torch_private.profile_waits():
            raise OtherProfilerError("another torch.profiler.profile began during this window")
        self._close()
        self._open(step)

    def stop(self) -> torch.profiler.profile:
        """End the last step and the recording; return the profile, ready to export."""
        self._refuse_takeover()
        self._close()
        marks.end_notes()
        self._profile.stop_trace()
        return self._profile

    def drop(self) -> None:
        """End the recording if this profiler still owns it; one taken over by another profiler must not be touched."""
        if not self._is_elsewhere() and _torch_private.profiler_is_ours():  # not owned before `start`
            self._close()
            marks.end_notes()
            self._profile.stop_trace()

    def _is_elsewhere(self) -> bool:
        """Return whether this records on another thread; if so, abandon it."""
        global _left_behind  # noqa: PLW0603 - there is one window at a time in a process
        if self.thread is None or self.thread is threading.current_thread():
            return False
        marks.end_notes()
        _left_behind = self
        return True

    def _refuse_takeover(self) -> None:
        if self._is_elsewhere():
            raise OtherThreadError(
                f"it began on another thread and continued or ended on {threading.current_thread().name};"
                " enter the session, run its steps and leave it on one thread"
            )
        if not _torch_private.profiler_is_ours():
            if self._step is not None:
                marks.abandon(self._step)
                self._step = None
            marks.end_notes()
            raise OtherProfilerError("another profiler began during this window")

    def _open(self, step: int) -> None:
        annotation = marks.annotation(f"ProfilerStep#{step}")
        annotation.__enter__()
        self._step = annotation

    def _close(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def end_left_behind() -> None:
    """End the profiler of a window that was abandoned on this thread, or on a thread that has ended."""
    global _left_behind  # noqa: PLW0603
    profiler = _left_behind
    if profiler is None or profiler.thread is None:
        return
    if profiler.thread is threading.current_thread():
        _left_behind = None
        profiler.drop()
    elif not profiler.thread.is_alive():
        _left_behind = None
        _torch_private.release_profiler()


def refuse_others() -> None:
    """Raise if another profiler records or waits."""
    end_left_behind()
    if _left_behind is not None and _left_behind.thread is not None and _torch_private.profiler_is_claimed():
        raise OtherProfilerError(f"the window of an earlier session is still open on thread {_left_behind.thread.name}")
    if _torch_private.profiler_enabled() or _torch_private.profiler_enabled_elsewhere():
        raise OtherProfilerError("another profiler is recording")
    if _torch_private.profile_waits():
        raise OtherProfilerError("another torch.profiler.profile is open (or was stopped without leaving its block)")


_guarded = False


def let_children_end() -> None:
    """Guard all children that this process forks from now on; call it before the first profile."""
    global _guarded  # noqa: PLW0603 - a handler of forks is registered for good
    if not _guarded and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_leave_early)
        _guarded = True


def _leave_early() -> None:
    """Make the C library call `_exit` with the exit status, before all handlers registered so far."""
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):  # glibc
        library.on_exit(library._exit, None)  # noqa: SLF001 - the function of C, no private name


# Step time before the recording starts, because recording slows the host. The last steps before the first window are
# timed from the start of the first to the end of the last, on the device if there is one. Individual host times would
# be meaningless there, because the host runs ahead.


UNSETTLED = 2
"""Number of first steps to skip; they allocate memory and compile."""
LEAST, MOST = 3, 32
"""Minimum and maximum number of timed steps: fewer are unreliable, and much earlier ones are less comparable."""


class UnrecordedSteps:
    """Timer of steps `first` to `last`, before the window; a step that raises invalidates it."""

    def __init__(self, window: Window) -> None:
        self.last = window.skip + window.wait
        first = max(UNSETTLED, self.last - MOST)
        self.first = first if self.last - first >= LEAST else -1
        self._begin: torch.cuda.Event | int | None = None

    def begin(self) -> None:
        """Start timing with the current step."""
        self._begin = _moment()

    def spoil(self) -> None:
        """Discard the timing: a step failed."""
        self._begin = None

    def end(self) -> float:
        """Return the mean step in ns, or 0 if unknown. Waits for the device, like the start of the profiler."""
        begin, self._begin = self._begin, None
        if begin is None:
            return 0.0
        steps, end = self.last - self.first, _moment()
        if isinstance(begin, int) and isinstance(end, int):
            return (end - begin) / steps
        if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e6 / steps
        return 0.0  # the device was initialized in between


def _moment() -> torch.cuda.Event | int:
    """Record the current time, on the device if there is one."""
    if not uses_cuda():
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
