"""Rank record: files and messages that a rank produces: its traces, its part for rank 0, and the manifest on rank 0."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

import torch

from usp_prof.contract import MANIFEST_NAME, Manifest
from usp_prof.record import _torch_private, export, statement
from usp_prof.record.marks import Notes
from usp_prof.record.options import Settings
from usp_prof.record.peak import Peak, cpu_peak
from usp_prof.record.statement import Exchange, Part
from usp_prof.record.surroundings import GroupsLike, MeshLike, Place, Topology, find_place, misfit, survey, uses_cuda
from usp_prof.whole_files import whole_file


class RecordingWarning(UserWarning):
    """Warning that part of a recording is missing or failed; training continues."""


class RankRecord:
    """State and recordings of this rank. Failures become notes, each also raised as a `RecordingWarning`."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self._settings = settings
        self._windows = 0
        self._place = Place(0, 1, "", "", "", 1, 1)
        self._part = Part(0)
        self._topology = Topology()
        self._manifest = Manifest()
        self._exchange = Exchange(1, 0, None)

    def begin(self, index: int, mesh: MeshLike, model: object, groups: GroupsLike | None) -> None:
        """Determine this rank's place in the job, and send it to rank 0; all ranks count sessions (`index`) alike."""
        settings, place = self._settings, find_place()
        self._place, self._part = place, Part(place.rank)
        self._exchange = Exchange(place.world, index, _torch_private.default_store())
        declared, entry = settings.declared, None
        with self.surviving("reading the mesh and the groups"):
            self._topology = survey(mesh, groups, declared.coordinates, place.rank, place.world)
        if isinstance(mesh, Mapping) and (wrong := misfit(mesh, place.world)):
            self._topology.mesh, self._topology.coordinates = {}, {}
            self.note(wrong)
        with self.surviving("reading the model"):
            entry = statement.describe_model(model, declared.sequence)
        self._manifest = statement.begin(place, self._topology, entry, settings, self._peak())
        statement.complete_part(self._part, place, self._topology, settings)
        self._exchange.leave(self._part)

    @property
    def manifest(self) -> Manifest:
        """Current state of the run's manifest, as known to this rank."""
        return statement.complete(self._manifest, {self._part.rank: self._part}, self._place.world)

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a window nor a note that explains its absence."""
        return not self._windows and not self._part.notes

    def time_unrecorded(self, step_ns: float) -> None:
        """Store the mean time of the steps before the recording, if known."""
        self._part.unrecorded_step_ns = step_ns

    def save(self, profile: torch.profiler.profile, cut_steps: AbstractSet[int], notes: Notes | None = None) -> None:
        """Write the trace of a window; `cut_steps` were ended by an error, `notes` are those of light mode."""
        with self.surviving("writing the trace"):
            path = self._window_folder() / export.trace_name(self._place.rank)
            outcome = export.export(
                profile, path, self.manifest, self._topology.groups, self._place.rank, cut_steps=cut_steps, notes=notes
            )
            self._part.join_rate = min(outcome.join_rate, 1.0 if self._part.join_rate is None else self._part.join_rate)
            if outcome.note:
                self.note(outcome.note)
            for step in outcome.empty_steps:
                self.add(f"step {step} counts as none, nothing ran in it")
            if uses_cuda() and _torch_private.collection_stopped():
                self.note("the profiler's buffers were full: device activity is missing from the trace")
        self._windows += 1
        with self.surviving("telling rank 0 about this rank"):
            self._exchange.leave(self._part)
        self._write_manifest(None)

    def end(self, wait_seconds: float) -> None:
        """Report that this rank is done; rank 0 waits for the others and writes the manifest."""
        self._part.final = True
        with self.surviving("telling rank 0 about this rank"):
            self._exchange.leave(self._part)
        self._write_manifest(wait_seconds)

    def add(self, sentence: str) -> None:
        """Add a sentence to the manifest's notes, without a warning."""
        self._part.notes.append(sentence)

    def note(self, sentence: str) -> None:
        """Add a sentence to the manifest's notes, and issue it as a warning."""
        self.add(sentence)
        self.warn(sentence)

    def warn(self, sentence: str) -> None:
        """Issue a warning, once per sentence and place."""
        warnings.warn(f"usp_prof.record, rank {self._place.rank}: {sentence}", RecordingWarning, stacklevel=4)

    @contextmanager
    def surviving(self, action: str) -> Iterator[None]:
        """Convert a failure of the recording to a note and a warning, so that training continues.

        Every `Exception` is caught. The block may call the profiler, a device library, a disk, a key-value store or
        attributes of the user's model, whose exceptions cannot be listed completely. None is silent: the error's type
        and message are noted in `run.json`. Ctrl-C and `SystemExit` are not `Exception`s and pass through.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - see above
            self.note(f"{action} failed: {type(error).__name__}: {error}")

    def _peak(self) -> Peak:
        declared = self._settings.declared
        if declared.peak_flops or uses_cuda():
            return Peak()
        dtype = declared.dtype if isinstance(declared.dtype, torch.dtype) else torch.float32
        peak = Peak()
        with self.surviving("measuring the peak of this machine"):
            peak = cpu_peak(dtype)
        return peak  # noqa: RET504 - the block above may have been left by an exception

    def _window_folder(self) -> Path:
        return self.folder if self._settings.window.repeat == 1 else self.folder / f"window-{self._windows}"

    def _write_manifest(self, final_wait_seconds: float | None) -> None:
        """Write the manifest; at the end (a wait is given) wait for the other ranks and note missing ones."""
        if self._place.rank != 0:
            return
        with self.surviving("writing the manifest"):
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
        if self._settings.window.repeat == 1 or not self._windows:
            return [self.folder]
        return [self.folder / f"window-{index}" for index in range(self._windows)]
