"""Comparison of two traces' ops and kernels by name, as HTA's TraceDiff gives it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from usp_prof.columns.rows import lookup
from usp_prof.hta.trace_analysis import TraceAnalysis
from usp_prof.model.errors import UsageError
from usp_prof.tables.events.frame import DEVICE_WORK

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.hta.window import Window

_LEFT_OUT = ("Trace", "overhead", "cpu_instant_event", "")


class DeviceType(Enum):
    """Which events are compared."""

    CPU = 1
    GPU = 2
    ALL = 3


class TraceDiff:
    """HTA's TraceDiff: counts and durations by name, of one rank and step of each trace unless others are named."""

    @classmethod
    def compare_traces(
        cls,
        control: TraceAnalysis | str | Path,
        test: TraceAnalysis | str | Path,
        control_rank: int | list[int] | None = None,
        test_rank: int | list[int] | None = None,
        control_iteration: int | list[int] | None = None,
        test_iteration: int | list[int] | None = None,
        device_type: DeviceType = DeviceType.ALL,
    ) -> pd.DataFrame:
        """Give a row for each name: counts and total duration (us) in both traces, and their differences.

        By default the first rank and the first step of each are compared.
        """
        sides = ((control, control_rank, control_iteration), (test, test_rank, test_iteration))
        summaries = []
        for label, (trace, rank, step) in zip(("Control", "Test"), sides, strict=True):
            window = (trace if isinstance(trace, TraceAnalysis) else TraceAnalysis(trace_dir=trace)).window
            summaries.append(_summary(window, rank, step, device_type).add_prefix(f"{label}_"))
        found = pd.concat(summaries, axis=1).fillna(0).sort_index()
        found["diff_counts"] = found["Test_counts"] - found["Control_counts"]
        found["diff_duration"] = found["Test_total_duration"] - found["Control_total_duration"]
        signs = np.sign(found["diff_counts"].to_numpy()).astype(int) + 1
        found["counts_change_categories"] = np.asarray(["-", "=", "+"], object)[signs]
        return found.rename_axis("name")

    @classmethod
    def ops_diff(
        cls,
        control: TraceAnalysis | str | Path,
        test: TraceAnalysis | str | Path,
        control_rank: int | list[int] | None = None,
        test_rank: int | list[int] | None = None,
        control_iteration: int | list[int] | None = None,
        test_iteration: int | list[int] | None = None,
        device_type: DeviceType = DeviceType.ALL,
    ) -> dict[str, list[str]]:
        """Give the names that were added, deleted, that occur more or less often, and that occur as often."""
        found = cls.compare_traces(
            control, test, control_rank, test_rank, control_iteration, test_iteration, device_type
        )
        before, after = found["Control_counts"], found["Test_counts"]
        kinds = {
            "added": (before == 0) & (after > 0),
            "deleted": (before > 0) & (after == 0),
            "increased": (before > 0) & (after > before),
            "decreased": (after > 0) & (after < before),
            "unchanged": (after > 0) & (after == before),
        }
        return {kind: found.index[chosen].tolist() for kind, chosen in kinds.items()}


def _summary(
    window: Window, rank: int | list[int] | None, step: int | list[int] | None, device: DeviceType
) -> pd.DataFrame:
    """Count events by name. A kernel belongs to the step that launched it, a host event to the step it begins in."""
    ranks = [window.ranks[0]] if rank is None else [rank] if isinstance(rank, int) else rank
    steps = window.steps(ranks[0])
    wanted = steps[:1] if step is None else [step] if isinstance(step, int) else step
    if not wanted or set(wanted) - set(steps):
        raise UsageError(f"the trace has no step {wanted or '(none is known)'}", hint=f"its steps are {steps}")
    return (
        pd.concat([_events(window, each, wanted, device) for each in ranks])
        .groupby("name")
        .agg(counts=("dur", "count"), total_duration=("dur", "sum"))
    )


def _events(window: Window, rank: int, wanted: list[int], device: DeviceType) -> pd.DataFrame:
    events = window.tables.columns("events", rank)
    count = len(events)  # an event's number is its place in the file
    events = events.take(np.flatnonzero(events.matches("phase", "X") & ~events.matches("category", *_LEFT_OUT)))
    on_device = events.matches("category", *DEVICE_WORK, "gpu_user_annotation")
    marks = window.tables.columns("steps", rank)
    order = np.argsort(marks["host_start_ns"], kind="stable")
    place = np.searchsorted(marks["host_start_ns"][order], events["start_ns"], side="right") - 1
    row = order[np.maximum(place, 0)] if len(order) else np.zeros(len(events), np.int64)
    inside = (place >= 0) & (events["start_ns"] < marks["host_end_ns"][row])
    step = np.where(inside, marks["step"][row], -1)
    step_of_event = np.full(count, -1, np.int64)
    for table in ("kernels", "annotations"):
        rows = window.tables.columns(table, rank)
        step_of_event[rows["event"]] = rows["step"]
    step = np.where(on_device, step_of_event[events["event"]], step)
    kept = np.isin(step, wanted)
    if device is not DeviceType.ALL:
        kept &= on_device if device is DeviceType.GPU else ~on_device
    chosen = events.take(np.flatnonzero(kept))
    codes, names = chosen.codes("name")
    return pd.DataFrame({"name": lookup(names, codes, missing=""), "dur": chosen["dur_ns"] / 1000})
