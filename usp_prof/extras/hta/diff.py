"""Comparison of two traces' ops and kernels by name, like HTA's TraceDiff."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import numpy as np
import pandas as pd

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import lookup, range_at
from usp_prof.extras.hta.trace_analysis import TraceAnalysis
from usp_prof.extras.hta.window import Window
from usp_prof.model.errors import UsageError

_LEFT_OUT = ("Trace", "overhead", "cpu_instant_event", "")


class DeviceType(Enum):
    """Which events are compared."""

    CPU = 1
    GPU = 2
    ALL = 3


class TraceDiff:
    """HTA's TraceDiff: counts and durations by name, for one rank and step of each trace unless others are given."""

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
        """Return one row per name: counts and total duration (us) in both traces, and their differences.

        By default, the first rank and the first step of each trace are compared.
        """
        sides = ((control, control_rank, control_iteration), (test, test_rank, test_iteration))
        summaries = []
        for label, (trace, rank, step) in zip(("Control", "Test"), sides, strict=True):
            window = (trace if isinstance(trace, TraceAnalysis) else TraceAnalysis(trace_dir=trace)).window
            summaries.append(_summary(window, rank, step, device_type).add_prefix(f"{label}_"))
        compared = pd.concat(summaries, axis=1).fillna(0).sort_index()
        compared["diff_counts"] = compared["Test_counts"] - compared["Control_counts"]
        compared["diff_duration"] = compared["Test_total_duration"] - compared["Control_total_duration"]
        sign = np.sign(compared["diff_counts"].to_numpy()).astype(int)  # -1, 0 or 1
        compared["counts_change_categories"] = np.asarray(["-", "=", "+"], object)[sign + 1]
        return compared.rename_axis("name")

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
        """Return the names that were added, deleted, that occur more or less often, and that occur equally often."""
        compared = cls.compare_traces(
            control, test, control_rank, test_rank, control_iteration, test_iteration, device_type
        )
        before, after = compared["Control_counts"], compared["Test_counts"]
        kinds = {
            "added": (before == 0) & (after > 0),
            "deleted": (before > 0) & (after == 0),
            "increased": (before > 0) & (after > before),
            "decreased": (after > 0) & (after < before),
            "unchanged": (after > 0) & (after == before),
        }
        return {kind: compared.index[chosen].tolist() for kind, chosen in kinds.items()}


def _summary(
    window: Window, rank: int | list[int] | None, step: int | list[int] | None, device: DeviceType
) -> pd.DataFrame:
    """Count events by name. Device work belongs to its device step, a host event to the step in which it starts."""
    ranks = [window.ranks[0]] if rank is None else [rank] if isinstance(rank, int) else rank
    if missing := sorted(set(ranks) - set(window.ranks)):
        raise UsageError(f"the run has no rank {missing}", hint=f"recorded ranks: {window.ranks}")
    steps = window.steps(ranks[0])
    wanted = steps[:1] if step is None else [step] if isinstance(step, int) else step
    if not wanted or set(wanted) - set(steps):
        raise UsageError(f"the trace has no step {wanted or '(none is known)'}", hint=f"its steps are {steps}")
    return (
        pd.concat([_events(window, one_rank, wanted, device) for one_rank in ranks])
        .groupby("name")
        .agg(counts=("dur", "count"), total_duration=("dur", "sum"))
    )


def _events(window: Window, rank: int, wanted: list[int], device: DeviceType) -> pd.DataFrame:
    """Return name and duration of a rank's events in the selected steps."""
    every_event = window.tables.columns("events", rank)
    is_compared = every_event.matches("phase", "X") & ~every_event.matches("category", *_LEFT_OUT)
    events = every_event.take(np.flatnonzero(is_compared))
    kernel_events = window.tables.columns("kernels", rank)["event"]
    on_device = np.isin(events["event"], kernel_events) | events.matches("category", "gpu_user_annotation")
    device_step = _steps_of_device_work(window, rank, len(every_event))[events["event"]]
    step = np.where(on_device, device_step, _steps_of_host(window, rank, events["start_ns"]))
    is_selected = np.isin(step, wanted)
    if device is not DeviceType.ALL:
        is_selected &= on_device if device is DeviceType.GPU else ~on_device
    chosen = events.take(np.flatnonzero(is_selected))
    return pd.DataFrame({"name": chosen["name"], "dur": chosen["dur_ns"] / 1000})


def _steps_of_device_work(window: Window, rank: int, events: int) -> Ints:
    """Return the step of each event (by its number) that is a kernel or an annotation; -1 for other events."""
    step_of_event = np.full(events, -1, np.int64)
    for table in ("kernels", "annotations"):
        rows = window.tables.columns(table, rank)
        step_of_event[rows["event"]] = rows["step"]
    return step_of_event


def _steps_of_host(window: Window, rank: int, start_ns: Ints) -> Ints:
    """Return the host step that contains each time; -1 outside of all steps."""
    steps = window.tables.columns("steps", rank)
    steps = steps.take(np.argsort(steps["host_start_ns"], kind="stable"))
    return lookup(steps["step"], range_at(steps["host_start_ns"], steps["host_end_ns"], start_ns), missing=-1)
