"""Window: the part of a run that HTA analyzes, as frames in microseconds from the run's first event.

All steps except the last are included, because the end of the last one may be cut.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import lookup, rows_of
from usp_prof.columns.table import Columns
from usp_prof.tables import clock
from usp_prof.tables.table_set import TableSet

_TYPES = {"compute": "COMPUTATION", "communication": "COMMUNICATION", "memcpy": "MEMORY", "memset": "MEMORY"}


def type_of(kind: str) -> str:
    """Return HTA's name for one of our kinds of device work."""
    return _TYPES.get(kind, "OTHER")


class Window:
    """The selected part of each rank. Times of all ranks are on aligned clocks."""

    def __init__(self, tables: TableSet, *, with_last_step: bool = False) -> None:
        self.tables = tables
        self._with_last_step = with_last_step

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were read."""
        return self.tables.ranks

    def steps(self, rank: int) -> list[int]:
        """Return the selected steps, without the last one if there are several, because its end may be cut."""
        steps = self.tables.columns("steps", rank)
        if not len(steps) or steps["source"][0] == "window":
            return []
        numbers = sorted(steps["step"].tolist())
        return numbers if self._with_last_step or len(numbers) < 2 else numbers[:-1]

    def bounds(self, rank: int) -> tuple[int, int] | None:
        """Return the start and end of the selected steps on the rank's own clock, or None if steps are unknown."""
        steps, selected_steps = self.tables.columns("steps", rank), self.steps(rank)
        if not selected_steps:
            return None
        chosen = np.isin(steps["step"], selected_steps)
        return int(steps["start_ns"][chosen].min()), int(steps["end_ns"][chosen].max())

    def host_length(self, rank: int) -> int:
        """Return the length in ns of the selected steps on the host, or of everything recorded if steps are unknown."""
        steps, selected_steps = self.tables.columns("steps", rank), self.steps(rank)
        if selected_steps:
            chosen = np.isin(steps["step"], selected_steps)
            return int(steps["host_end_ns"][chosen].max() - steps["host_start_ns"][chosen].min())
        events = self.tables.columns("events", rank)
        ends = events["start_ns"] + np.maximum(events["dur_ns"], 0)
        return int(ends.max() - events["start_ns"].min()) if len(events) else 0

    def keeps(self, rank: int, step: Ints, start_ns: Ints) -> NDArray[np.bool_]:
        """Return which rows are selected: those of selected steps, or outside any step and starting before the end."""
        bounds = self.bounds(rank)
        if bounds is None:
            return np.ones(len(step), bool)
        return np.isin(step, self.steps(rank)) | ((step < 0) & (start_ns < bounds[1]))

    def work(self, rank: int) -> Columns:
        """Return the selected activities: device work, or computing and communicating ops on a CPU trace."""
        activities = self.tables.columns("activities", rank)
        return activities.take(self.keeps(rank, activities["step"], activities["start_ns"]))

    def kernels(self, rank: int) -> pd.DataFrame:
        """Return the selected kernels, copies and memsets with their launches (NaN if a launch is not in the trace).

        Columns: event, name, kernel_type, pid, tid, stream, correlation, ts, dur, end, bytes, launch_ts, launch_dur,
        launch_event, launch_kind, op_event; sorted by start.
        """
        kernels = self.tables.columns("kernels", rank)
        selected_rows = np.flatnonzero(self.keeps(rank, kernels["step"], kernels["start_ns"]))
        kernels = kernels.take(selected_rows[np.argsort(kernels["start_ns"][selected_rows], kind="stable")])
        launches = self.tables.columns("launches", rank)
        launch = rows_of(launches["event"], kernels["launch_event"])  # -1: not launched in the window
        process, thread = self._device_threads(rank, kernels["event"])
        start = self.micros(rank, kernels["start_ns"])
        return pd.DataFrame(
            {
                "event": kernels["event"],
                "name": kernels["name"],
                "kernel_type": kernels.by_text("kind", type_of, missing=""),
                "pid": process,
                "tid": thread,
                "stream": kernels["stream"],
                "correlation": kernels["correlation"],
                "ts": start,
                "dur": kernels["dur_ns"] / 1000,
                "end": start + kernels["dur_ns"] / 1000,
                "bytes": kernels["bytes"],
                "launch_ts": lookup(self.micros(rank, launches["start_ns"]), launch, missing=np.nan),
                "launch_dur": lookup(launches["dur_ns"] / 1000, launch, missing=np.nan),
                "launch_event": kernels["launch_event"],
                "launch_kind": lookup(launches["kind"], launch, missing=""),
                "op_event": kernels["op_event"],
            }
        )

    def micros(self, rank: int, start_ns: Ints) -> NDArray[np.float64]:
        """Convert times of a rank's clock to microseconds from the run's first event, on the common clock."""
        aligned = clock.fit_clocks(self.tables).align(rank, start_ns)
        return np.asarray((aligned - self._first) / 1000)

    @cached_property
    def _first(self) -> int:
        firsts = []
        for rank in self.ranks:
            starts = self.tables.columns("events", rank)["start_ns"]
            if len(starts):
                firsts.append(int(clock.fit_clocks(self.tables).align(rank, starts.min())))
        return min(firsts, default=0)

    def _device_threads(self, rank: int, event: Ints) -> tuple[list[Any], list[Any]]:
        """Return the trace's own process and thread of each kernel."""
        events = self.tables.columns("events", rank)
        place = rows_of(events["event"], event)
        columns = []
        for name in ("process", "thread"):
            codes, texts = events.codes(name)
            values = [int(text) if text.lstrip("-").isdigit() else text for text in texts]
            columns.append([values[code] for code in codes[place].tolist()])
        return columns[0], columns[1]
