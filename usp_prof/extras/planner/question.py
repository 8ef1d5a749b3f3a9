"""Question: a model, a number of devices and a batch to plan for, and settings that are fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.extras.planner.cases import Cases, machine_of, with_columns
from usp_prof.extras.planner.cluster import Cluster, cluster_of
from usp_prof.extras.planner.profiles import DEFAULT_PROFILE, Profile
from usp_prof.model.configuration import Columns
from usp_prof.model.shape import shape_of


@dataclass(frozen=True, slots=True)
class Question:
    """Planning question: `batch` counts sequences per step over all devices; `pinned` knobs are fixed."""

    model: ModelEntry
    cluster: Cluster
    devices: int
    batch: int
    dtype: str = "bf16"
    convention: str = "palm"
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    profile: Profile = DEFAULT_PROFILE
    pinned: Mapping[str, Any] = field(default_factory=dict)
    trainer: str = ""
    """Restricts the search to what this trainer can run, if it can run anything; empty: all legal configurations."""

    def cases(self, columns: Columns) -> Cases:
        """Return configurations of the question's model, with its machine and profile."""
        return with_columns(shape_of(self.model), machine_of(self.cluster), self.profile, columns)


def question_of(
    calibration: Calibration | None,
    model: ModelEntry,
    *,
    device: str,
    devices: int,
    batch: int,
    dtype: str,
    profile: Profile,
) -> Question:
    """Build a question about a model's plans; empty or 0 values are taken from the recorded run.

    Without a recorded run, or on a different device, to which the recorded run's habits do not apply, `profile` is
    used.
    """
    if calibration is None:
        dtype = dtype or "bf16"
        return Question(model, cluster_of(device, dtype), devices, batch, dtype, profile=profile)
    recorded = calibration.configuration
    dtype = dtype or recorded.dtype
    cluster, habits = (cluster_of(device, dtype), profile) if device else (calibration.cluster, calibration.profile)
    return Question(model, cluster, devices or recorded.devices, batch or recorded.batch, dtype, profile=habits)
