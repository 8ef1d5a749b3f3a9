"""Session: recording of a run, with one session around the loop and one step around each training step."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from usp_prof.contract import Manifest
from usp_prof.record import export
from usp_prof.record.options import Options, Phase, Settings, resolve
from usp_prof.record.rank_record import RankRecord
from usp_prof.record.signals import Termination, held_back
from usp_prof.record.statement import check_model
from usp_prof.record.surroundings import GroupsLike, MeshLike, check_mesh
from usp_prof.record.windows import (
    HOW_TO_HAVE_BOTH,
    NoDeviceError,
    OtherProfilerError,
    OtherThreadError,
    UnrecordedSteps,
    WindowProfiler,
    end_left_behind,
)

_sessions = count()
_open_sessions: list[Session] = []
"""Open session of this process, if any; two cannot record at the same time."""


class _State(Enum):
    NEW = auto()
    OPEN = auto()
    ENDED = auto()


class Session:
    """Recording made by `session`. Use it as a context manager, with `step` around each step of the loop.

    Invalid options raise on creation. Nothing raises later: a failure becomes a `RecordingWarning` and a note, and the
    loop continues without recording.
    """

    def __init__(
        self, folder: str | Path, mesh: MeshLike, model: object, groups: GroupsLike | None, settings: Settings
    ) -> None:
        self.folder = Path(folder)
        self._mesh = mesh
        self._model = model
        self._groups = groups
        self._settings = settings
        self._state = _State.NEW
        self._depth = 0
        self._process = 0
        self._step = 0
        self._next_turn = -1  # the step at which a phase of the window starts or ends; -1 if none is left
        self._whole_steps = 0
        self._cut_steps: set[int] = set()
        self._failure: BaseException | None = None
        self._profiler: WindowProfiler | None = None
        self._phase = Phase.IDLE
        self._record = RankRecord(self.folder, settings)
        self._unrecorded = UnrecordedSteps(settings.window)
        self._termination = Termination(self._end_on_termination)
        self.on_superseded: Callable[[], None] | None = None
        """Called if another session begins while this one is open; for callbacks, which are not notified of errors."""

    def __enter__(self) -> Self:
        self._depth += 1
        if self._state is not _State.NEW:
            self._record.warn(
                "a session records once, and this one was entered before: make another, with another folder"
            )
            return self
        index = next(_sessions)  # also for a session that does not record: ranks count their sessions equally
        self._state = _State.OPEN
        self._process = os.getpid()
        with self._record.surviving("beginning the recording"):
            self._begin(index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth > 0 or self._state is not _State.OPEN or self._process != os.getpid():
            return
        with held_back():
            self._state = _State.ENDED
            self._termination.remove()
            atexit.unregister(self._end_with_the_process)
            if _open_sessions and _open_sessions[-1] is self:
                _open_sessions.pop()
            with self._record.surviving("ending the recording"):
                self._end(error)
            self._profiler = None

    def _begin(self, index: int) -> None:
        if _open_sessions and (end_abandoned := _open_sessions[-1].on_superseded) is not None:
            end_abandoned()
        self._record.begin(index, self._mesh, self._model, self._groups)
        atexit.register(self._end_with_the_process)
        if _open_sessions:
            other = _open_sessions[-1]
            where = "this process" if other._process == self._process else "the process that this one was forked from"  # noqa: SLF001 - of its own class
            self._record.note(f"nothing is recorded: the session of {other.folder} is still open in {where}")
            return
        _open_sessions.append(self)
        self._termination.install()
        self._next_turn = 0
        self._turn()

    def _end(self, error: BaseException | None) -> None:
        end_left_behind()
        if error is not None:
            self._cut(error)
        if self._profiler is not None and self._phase is Phase.RECORD and self._whole_steps:
            self._cut_steps.add(self._step)  # it started when the previous one ended, and never ended
            self._finish_window()
        elif self._profiler is not None:
            self._profiler.drop()
        if error is None and self._record.is_empty:
            last = self._settings.window.last_step
            needed_steps = f"{last} step{'s' if last != 1 else ''}"
            self._record.note(
                f"the loop ended before a window was recorded; it takes {needed_steps} to record all of it"
            )
        self._record.end(0.0 if error is not None else self._settings.declared.gather_timeout)

    def _end_with_the_process(self) -> None:
        """Save complete steps of a loop that never left its session; callbacks are not notified of errors."""
        self.abandon("the process ended")

    def _end_on_termination(self, signal_name: str) -> None:
        self.abandon(f"the process received {signal_name}")

    def abandon(self, reason: str) -> None:
        """End the recording of a loop that stopped within a step, and save its complete steps."""
        self._depth = 1
        self.__exit__(SystemExit, SystemExit(reason), None)

    def close(self) -> None:
        """End the recording without an error; for loops that cannot use `with`, and notebooks."""
        self._depth = 1
        self.__exit__(None, None, None)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Surround one optimizer step; work between two steps (input) belongs to the later one.

        A step that raises does not count. If the loop continues after it, the next step is a new one.
        """
        if self._failure is not None:
            self._cut(self._failure)
            self.advance()
        try:
            yield
        except BaseException as error:
            self._failure = error
            self._unrecorded.spoil()
            raise
        self.advance()

    def advance(self) -> None:
        """End the current step and start the next; for loops with callbacks instead of `with`."""
        self._step += 1
        if self._step in (self._unrecorded.first, self._unrecorded.last):
            self._time_unrecorded()
        if self._phase is Phase.RECORD or self._step == self._next_turn:
            with self._record.surviving("recording a step"):
                self._advance_window()
        elif self._state is _State.NEW and self._step == 1:
            self._record.warn(
                "nothing is recorded: the session was never entered; write `with session:` around the loop"
            )

    def _time_unrecorded(self) -> None:
        """Start or stop the timing of the steps before the first window."""
        if self._state is not _State.OPEN or self._process != os.getpid():
            return
        with self._record.surviving("timing the steps before the recording"):
            if self._step == self._unrecorded.first:
                self._unrecorded.begin()
            else:
                self._record.time_unrecorded(self._unrecorded.end())

    def _advance_window(self) -> None:
        """Advance the window's profiler to the step; an open window ends on any failure."""
        if self._process != os.getpid():
            return
        end_left_behind()
        if self._state is not _State.OPEN:
            return
        self._failure = None
        if self._step == self._next_turn:
            self._turn()
        elif self._profiler is not None:
            self._whole_steps += self._step - 1 not in self._cut_steps
            with self._standing_back():
                self._profiler.next_step(self._step)

    def _turn(self) -> None:
        """End the current phase and start the next one."""
        if self._phase is Phase.RECORD and self._profiler is not None:
            self._finish_window()
        previous, (self._phase, self._next_turn) = self._phase, self._settings.window.place(self._step)
        with self._standing_back():
            if self._phase is Phase.WARMUP:
                self._profiler = self._prepare()
            elif self._phase is Phase.RECORD:
                if previous is not Phase.WARMUP:
                    self._profiler = self._prepare()
                if self._profiler is not None:
                    self._profiler.start(self._step)

    def _prepare(self) -> WindowProfiler:
        return WindowProfiler(self._settings.content, export.metadata(self.manifest))

    def _finish_window(self) -> None:
        """Stop the profiler and write the window's trace."""
        profiler, self._profiler = self._profiler, None
        with held_back(), self._standing_back():
            if profiler is not None:
                self._record.save(profiler.stop(), self._cut_steps, profiler.notes)
        self._whole_steps = 0
        self._cut_steps.clear()

    def _cut(self, error: BaseException) -> None:
        """Report that the current step failed, if it is being recorded."""
        if self._phase is Phase.RECORD and self._profiler is not None and self._step not in self._cut_steps:
            self._cut_steps.add(self._step)
            reason = f"{type(error).__name__}: {error}"
            self._record.add(f"step {self._step} counts as none, it ended with {reason.removesuffix(': ')}")
        self._failure = None

    @contextmanager
    def _standing_back(self) -> Iterator[None]:
        """Abandon the window if another profiler is active, or on any other failure."""
        try:
            yield
        except NoDeviceError as error:
            self._phase, self._next_turn = Phase.IDLE, -1
            self._record.note(f"nothing is recorded: {error}")
        except (OtherProfilerError, OtherThreadError) as reason:
            profiler, self._profiler = self._profiler, None
            if profiler is not None:
                profiler.drop()
            hint = f"; {HOW_TO_HAVE_BOTH}" if isinstance(reason, OtherProfilerError) else ""
            self._record.note(f"a window is not recorded, since {reason}{hint}")
        except Exception:
            # Any kind of error can come from PyTorch's profiler or a device library. The window is abandoned, so that
            # no profiler keeps running unread. `surviving`, which surrounds every call of this, reports the error.
            profiler, self._profiler = self._profiler, None
            if profiler is not None:
                with self._record.surviving("ending the window that failed"):
                    profiler.drop()
            raise

    @property
    def manifest(self) -> Manifest:
        """Current state of the run's manifest, as known to this rank."""
        return self._record.manifest


def session(
    folder: str | Path,
    *,
    mesh: MeshLike = None,
    model: object = None,
    groups: GroupsLike | None = None,
    **options: Unpack[Options],
) -> Session:
    """Record a run into `folder`: one trace per rank and a manifest.

    `mesh` is a DeviceMesh with named dimensions, several of them, sizes by axis (outermost first) or nothing; `model`
    a configuration (dataclass, dict, Hugging Face); `groups` says which process group serves which axis or axes.
    `options` are those of `usp_prof.record.Options`.
    """
    settings = resolve(options)
    check_mesh(mesh, groups, settings.declared.coordinates)
    check_model(model)
    return Session(folder, mesh, model, groups, settings)


def prepare(entries: int = 20_000) -> None:
    """Enable the flight recorder, whose entries the recorder joins on gloo; call before `init_process_group`."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(entries))
