"""The critical path under HTA's names: what bounds the chosen steps, as shares and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from usp_prof.hta.window import Window
    from usp_prof.run import Run

_BOUND_BY = {
    "compute": "gpu_compute_bound",
    "memcpy": "gpu_compute_bound",
    "comm": "gpu_communication_bound",
    "idle:host": "cpu_bound",
    "idle:input": "cpu_bound",
    "idle:sync": "cpu_bound",
    "idle:bubble": "gpu_communication_bound",
    "idle:other": "gpu_kernel_kernel_overhead",
}
"""What HTA calls the parts of our path."""


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """The way that bounds the steps; HTA's `CPGraph` answers the same two questions."""

    parts: pd.DataFrame
    """Columns rank, part (compute, comm:axis, idle:cause), duration (us), bound_by."""

    @classmethod
    def of(
        cls, run: Run, window: Window, rank: int, annotation: str, instance_id: int | tuple[int, int] | None
    ) -> tuple[CriticalPath, bool]:
        """Find the path of the chosen instances of the step mark; instances count from 0, both ends included."""
        if annotation not in ("", "ProfilerStep"):
            raise UsageError("only steps can be chosen", hint='annotation="ProfilerStep", or "" for the whole trace')
        steps = window.steps(rank)
        low, high = instance_id if isinstance(instance_id, tuple) else (instance_id or 0,) * 2
        chosen = steps if not annotation else steps[low : high + 1]
        if not chosen and (annotation or steps):
            raise UsageError(f"there is no step {instance_id or 0}", hint=f"there are {len(steps)}, counted from 0")
        found = run.critical_path(steps=(chosen[0], chosen[-1]) if chosen else None).df
        family = found["part"].where(~found["part"].str.startswith("comm"), "comm")
        parts = pd.DataFrame(
            {
                "rank": found["rank"],
                "part": found["part"],
                "duration": found["time_ns"] / 1000,
                "bound_by": family.map(_BOUND_BY),
            }
        )
        return cls(parts), bool(len(parts))

    def get_critical_path_breakdown(self) -> pd.DataFrame | None:
        """Give the time on the path by rank and part; None where no path was found."""
        return self.parts.copy() if len(self.parts) else None

    def summary(self) -> pd.Series[float]:
        """Give the share of the path in per cent by what bounds it, under HTA's names."""
        sums = self.parts.groupby("bound_by")["duration"].sum()
        return 100 * sums / sums.sum()
