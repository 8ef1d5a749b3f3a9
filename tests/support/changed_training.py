"""Changes of made jobs: the simulator of `made_training` with less input time, faster work, or fewer waits.

Each change has the text of the edit that predicts it. The same seeds with and without the change give its true gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from made_training import COMPUTE, Call, Job, Work

if TYPE_CHECKING:
    from made_training import Rank

BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"
CHANGES = (
    "no_input_wait",
    "no_blocking",
    "comm_faster=2",
    "comm_removed",
    "compute_faster=1.5",
    "compute_faster=2,name=gemm",
    f"op_faster=2,op={BACKWARD}",
)


class ChangedJob(Job):
    """A job that names its groups, with at most one change."""

    change = ""

    def __init__(self, layout: str, seed: int) -> None:
        super().__init__(layout, seed)
        self.has_records = True

    def factor(self, rank: Rank, item: Call | Work) -> float:
        """Return by how much the change multiplies the own time of a call or of work."""
        if isinstance(item, Call):
            is_loading = item.step >= 0 and item is rank.calls[rank.steps[item.step][0]]
            return self.gap / (self.gap + self.loading) if self.change == "no_input_wait" and is_loading else 1.0
        is_compute = item.stream == COMPUTE and item.category == "kernel"
        factor_and_reach = {
            "comm_faster=2": (0.5, item.message is not None),
            "comm_removed": (0.0, item.message is not None),
            "compute_faster=1.5": (1 / 1.5, is_compute),
            "compute_faster=2,name=gemm": (0.5, "gemm" in item.name),
            f"op_faster=2,op={BACKWARD}": (0.5, "backward" in item.name),
        }
        factor, is_reached = factor_and_reach.get(self.change, (1.0, False))
        return factor if is_reached else 1.0

    def members(self, work: Work) -> list[Work]:
        """Return the work that must have started before this work ends; removed communication ends alone."""
        return [work] if self.change == "comm_removed" else super().members(work)

    def awaited(self, rank: Rank, call: Call) -> list[Work]:
        """Return the work that a call waits for; without blocking, only the last read of a step remains."""
        if self.change != "no_blocking" or not call.awaited:
            return call.awaited
        first, after = rank.steps[call.step]
        reads = [other for other in rank.calls[first:after] if other.awaited and other.op == "aten::item"]
        return call.awaited if call in reads[-1:] else []
