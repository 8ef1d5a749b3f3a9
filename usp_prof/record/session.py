"""How is a training run recorded? A session around the loop, a step around each step."""

from __future__ import annotations

import atexit
import json
import os
import warnings
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

import torch

from usp_prof.contract import MANIFEST_NAME
from usp_prof.record import _torch_private, export, statement
from usp_prof.record.atomic import whole_file
from usp_prof.record.gathering import Exchange
from usp_prof.record.options import Options, settle
from usp_prof.record.peak import Peak, cpu_peak
from usp_prof.record.surroundings import find_place, uses_cuda
from usp_prof.record.topology import survey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from usp_prof.contract import Manifest
    from usp_prof.record.gathering import Part
    from usp_prof.record.options import Settings
    from usp_prof.record.topology import GroupsLike, MeshLike

_sessions = count()


class RecordingWarning(UserWarning):
    """Something of a recording is missing or failed; the training goes on."""


class Session:
    """A recording; `session` makes one. Use it as a context manager, with `step` around each step of the loop."""

    def __init__(
        self, folder: str | Path, mesh: MeshLike, model: object, groups: GroupsLike | None, settings: Settings
    ) -> None:
        self.folder = Path(folder)
        self._mesh = mesh
        self._model = model
        self._groups = groups
        self._settings = settings
        self._window = 0
        self._cut: int | None = None
        self._profiler: torch.profiler.profile | None = None
        self._part: Part
        self._exchange: Exchange
        self._manifest: Manifest

    def __enter__(self) -> Self:
        settings, place = self._settings, find_place()
        self._place = place
        declared = settings.declared
        self._topology = topology = survey(self._mesh, self._groups, declared.coordinates, place.rank, place.world)
        self._manifest = statement.begin(place, topology, self._model, settings, self._peak())
        self._part = statement.own_part(place, topology, settings)
        self._exchange = Exchange(place.world, next(_sessions), _torch_private.default_store())
        self._exchange.leave(self._part)
        self._profiler = self._make_profiler()
        self._profiler.start()
        atexit.register(self._end_with_the_process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        atexit.unregister(self._end_with_the_process)
        if error is not None:
            if self._settings.window.whole_steps(profiler.step_num):
                self._cut = profiler.step_num
                said = f"the loop ended within step {self._cut}, which counts as none: {type(error).__name__}: {error}"
                self._part.notes.append(said)
            else:
                profiler.on_trace_ready = None  # nothing whole is in this window; those before are on disk already
        with self._surviving("stopping the profiler"):
            profiler.stop()
        if not self._window and error is None:
            last = self._settings.window.last_step
            self._note(f"the loop ended before a window was recorded; it takes {last} steps to record all of it")
        self._part.final = True
        with self._surviving("telling rank 0 about this rank"):
            self._exchange.leave(self._part)
        self._write_manifest(0.0 if error is not None else self._settings.declared.gather_timeout)

    def _end_with_the_process(self) -> None:
        """Save what is whole of a loop that never left its session: a callback hears nothing of an error."""
        self.__exit__(SystemExit, SystemExit("the process ended"), None)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Surround one optimizer step; what the loop does between two steps (input) belongs to the later one."""
        yield
        self.advance()

    def advance(self) -> None:
        """End the step that runs and begin the next; for loops that call back instead of nesting."""
        if self._profiler is not None:
            self._profiler.step()

    @property
    def manifest(self) -> Manifest:
        """What is known of the run so far, in this rank's view."""
        return statement.complete(self._manifest, {self._part.rank: self._part}, self._place.world)

    def _peak(self) -> Peak:
        declared = self._settings.declared
        if declared.peak_flops or uses_cuda():
            return Peak()
        dtype = declared.dtype if isinstance(declared.dtype, torch.dtype) else torch.float32
        peak = Peak()
        with self._surviving("measuring the peak of this machine"):
            peak = cpu_peak(dtype)
        return peak  # noqa: RET504 - the block above may have been left by an exception

    def _make_profiler(self) -> torch.profiler.profile:
        window, content = self._settings.window, self._settings.content
        activities = [torch.profiler.ProfilerActivity.CPU]
        if uses_cuda():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(
                skip_first=window.skip,
                wait=window.wait,
                warmup=window.warmup,
                active=window.active,
                repeat=window.repeat,
            ),
            on_trace_ready=self._save,
            record_shapes=content.shapes,
            profile_memory=content.memory,
            with_stack=content.stack,
            acc_events=True,  # costs nothing as long as nobody asks for events, and spares a warning at each repeat
        )
        export.preset(profiler, self.manifest)
        return profiler

    def _save(self, profiler: torch.profiler.profile) -> None:
        with self._surviving("writing the trace"):
            path = self._window_folder() / export.trace_name(self._place.rank)
            outcome = export.export(
                profiler, path, self.manifest, self._topology.groups, self._place.rank, cut_step=self._cut
            )
            self._part.join_rate = min(outcome.join_rate, 1.0 if self._part.join_rate is None else self._part.join_rate)
            if outcome.note:
                self._note(outcome.note)
        self._window += 1
        with self._surviving("telling rank 0 about this rank"):
            self._exchange.leave(self._part)
        self._write_manifest(None)

    def _window_folder(self) -> Path:
        return self.folder if self._settings.window.repeat == 1 else self.folder / f"window-{self._window}"

    def _write_manifest(self, final_wait_seconds: float | None) -> None:
        """Write what rank 0 has heard; at the end (not `None`) wait for the others and name those that are silent."""
        if self._place.rank != 0:
            return
        with self._surviving("writing the manifest"):
            parts = self._exchange.collect(wait_seconds=final_wait_seconds or 0.0)
            manifest = statement.complete(self._manifest, parts, self._place.world)
            if final_wait_seconds is not None:
                manifest.notes += statement.silent(parts, self._place.world)
            text = json.dumps(manifest.to_dict(), indent=1) + "\n"
            for folder in self._folders():
                folder.mkdir(parents=True, exist_ok=True)
                with whole_file(folder / MANIFEST_NAME) as file:
                    file.write(text.encode())

    def _folders(self) -> list[Path]:
        if self._settings.window.repeat == 1 or not self._window:
            return [self.folder]
        return [self.folder / f"window-{index}" for index in range(self._window)]

    def _note(self, sentence: str) -> None:
        self._part.notes.append(sentence)
        warnings.warn(f"usp_prof.record, rank {self._place.rank}: {sentence}", RecordingWarning, stacklevel=3)

    @contextmanager
    def _surviving(self, what: str) -> Iterator[None]:
        """Turn a failure of the recording into a note: a training run must not die of being watched."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a disk, a profiler or a store may raise
            self._note(f"{what} failed: {type(error).__name__}: {error}")


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
    return Session(folder, mesh, model, groups, settle(options))


def prepare(entries: int = 20_000) -> None:
    """Let PyTorch's flight recorder keep what the recorder joins on gloo; call it before `init_process_group`."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(entries))
