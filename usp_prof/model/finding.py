"""Finding: a named pattern, its place, an edit of the run as plain data, and the gain of the edit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from usp_prof.model.health import HealthRow
from usp_prof.model.metric import Better, Metric, Range, Unit, Value

Plain = str | int | float | bool | None
PlainMap = Mapping[str, Plain]
EMPTY: PlainMap = MappingProxyType({})


class Basis(StrEnum):
    """How a gain was determined."""

    REPLAYED = "replayed"
    MODELLED = "modelled"
    BOUND = "bound"

    @property
    def word(self) -> str:
        """The word that people read."""
        return {"modelled": "modeled", "bound": "upper limit"}.get(self, str(self))


class Level(StrEnum):
    """Importance of a finding."""

    NOTE = "note"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class ChangedPart:
    """A part of the mean rank step (its role: `compute`, `comm:tp`, `idle:host`), before and after a change."""

    role: str
    before_ns: float
    after_ns: float

    @property
    def saved_ns(self) -> float:
        """How much shorter the part gets; negative if it gets longer."""
        return self.before_ns - self.after_ns


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. Gains are fractions of the job's step; `error_fraction` is the uncertainty of the gain.

    `cumulative_gain_fraction` is the largest gain of this and some of the earlier findings together. `part_of` is the
    index of an earlier finding with the same cause, or -1.
    """

    code: str
    title: str
    where: PlainMap
    evidence: PlainMap
    edit: str = ""
    gain_fraction: float = 0.0
    cumulative_gain_fraction: float = 0.0
    basis: Basis = Basis.BOUND
    error_fraction: float = 0.0
    level: Level = Level.WARNING
    advice: str = ""
    settings: PlainMap = field(default_factory=lambda: EMPTY)
    part_of: int = -1
    rows: str = ""
    """A SELECT over the run's tables whose rows prove the finding."""
    is_choice: bool = False
    """Whether the run's configuration costs this time, so that it is not the effect of another finding."""
    step_ns: float = 0.0
    """The step that the gain is a share of: the replayed mean, without the cost of recording if known."""
    span: str = "step"
    """`step`, or `window` if steps are unknown and the gain is a share of everything recorded."""
    without_recording: bool = False
    """Whether `step_ns` excludes a notable cost of recording, which the measured parts of the step include."""
    changed: tuple[ChangedPart, ...] = ()
    """The parts of the step that the change affects most, if they were replayed; see `findings.changed_parts`."""

    @property
    def certain_gain_fraction(self) -> float:
        """Gain minus error; negative if nothing is certain."""
        return self.gain_fraction - self.error_fraction

    @property
    def saved_ns(self) -> float:
        """The gain as a time."""
        return self.gain_fraction * self.step_ns

    @property
    def place(self) -> str:
        """The place in words: `axis tp, rank 3`; empty for the whole run."""
        return ", ".join(f"{key} {value}" for key, value in self.where.items())

    @property
    def is_noise(self) -> bool:
        """Whether the gain does not exceed its error."""
        return self.gain_fraction > 0 and self.certain_gain_fraction <= 0


GAIN = Range(-math.inf, 1.0)
"""Range of a gain: a change saves at most the whole step, but can lengthen it without limit."""

LEAST_LOSS = 0.01
"""Smaller losses, as a share of the step, are not attributed to parts."""


@dataclass(frozen=True, slots=True)
class IdealStep:
    """The measured mean step, and the one with all ranks like their peers; `unknown` is the reason if missing."""

    step_ns: float
    ideal_ns: float
    error_fraction: float = 0.0
    unknown: str = ""

    @property
    def slowdown(self) -> float | None:
        """S: the step divided by its ideal, or `None`."""
        return None if self.unknown or self.ideal_ns <= 0 else self.step_ns / self.ideal_ns

    @property
    def loss_fraction(self) -> float:
        """The share of the step that the ideal step saves; 0 if unknown."""
        return 0.0 if self.unknown or not self.step_ns else 1 - self.ideal_ns / self.step_ns

    @property
    def is_loss(self) -> bool:
        """Whether the step loses more than the prediction's error."""
        return self.loss_fraction > max(LEAST_LOSS, self.error_fraction)


JOB_SLOWDOWN = Metric(
    "job_slowdown", Unit.RATIO, Better.LOWER, "Job slowdown",
    "T / T_ideal: the mean step divided by its replay with all ranks performing like their peers (mean "
    "compute, median transfers and hosts), as in `whatif --ideal`. Omitted if ranks wait in unmatched calls.",
    inputs="measured and replayed steps",
)  # fmt: skip


REPAIR_GAIN = Metric(
    "repair_gain", Unit.FRACTION, Better.NEITHER, "Gain of a repair",
    "Share of the step saved if a late rank performs like its peers, as in `whatif --edit rank_as_peers=RANK`."
    " Omitted if measured lateness and replay disagree.",
    ("rank",),
    inputs="measured and replayed steps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repair:
    """Measured lateness of a rank, and the replayed gain if it performed like its peers; shares of the step."""

    rank: int
    late_fraction: float
    gain_fraction: float
    """0 where the repair saves nothing, NaN where measured lateness and replay disagree."""
    error_fraction: float

    @property
    def disagrees(self) -> bool:
        """Whether measured lateness and replay disagree, so that the gain is unknown."""
        return math.isnan(self.gain_fraction)


def slowdown_values(ideal: IdealStep | None) -> list[Value]:
    """Return the metric value of a run with a known ideal."""
    if ideal is None or ideal.slowdown is None:
        return []
    return [Value(JOB_SLOWDOWN, ideal.slowdown)]


def repair_values(repairs: Iterable[Repair]) -> list[Value]:
    """Return the metric values of late ranks' repairs with a known gain."""
    return [
        Value(REPAIR_GAIN, repair.gain_fraction, {"rank": repair.rank}) for repair in repairs if not repair.disagrees
    ]


@dataclass(frozen=True, slots=True)
class Found:
    """Findings, most important first, skipped rules, and the step with all ranks like their peers."""

    findings: tuple[Finding, ...]
    skipped: tuple[HealthRow, ...]
    ideal: IdealStep | None = None
    """`None` for a single rank, which has no peers."""
    repairs: tuple[Repair, ...] = ()
    """Repairs of the ranks that the others wait for most."""
    unrecorded_step_ns: float = 0.0
    """The mean step without the cost of recording; 0 if this cost is unknown or too small to notice."""


NOTHING_FOUND = Found((), ())
"""No findings, for documents whose rules do not run."""
