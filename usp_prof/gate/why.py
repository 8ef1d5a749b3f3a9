"""Explanation of a change: difference of two breakdowns, the work that changed, and new and resolved findings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from usp_prof.gate.judgment import Judgment, Scale, Verdict
from usp_prof.gate.measured import Measured, SeenFinding, Work
from usp_prof.gate.policy import Policy
from usp_prof.gate.sample import Noise, boil_down, t_quantile
from usp_prof.gate.series import STEP_TIME, Series
from usp_prof.model.finding import Level
from usp_prof.model.metric import Better, Unit
from usp_prof.model.printable import numbers_of_spans

TOP = 8
"""Number of changed ops, kernels and calls that are listed."""

COPIES = "copies"
PARTS = (
    ("compute_time", "compute", ""),
    ("exposed_comm_time", "exposed", "axis"),
    ("memcpy_time", COPIES, ""),
    ("unrecorded_time", "not recorded", ""),
    ("idle_time", "idle", "cause"),
)
"""The metrics that partition the step, the name of each part, and the dimension that distinguishes its parts."""

EXPOSED = "exposed "
_Kinds = dict[tuple[str, str], float]

_COORDINATE = re.compile(r"(\w+)=(.*?)(?=\s\w+=|$)")
"""One coordinate in the location of a finding: axis=dp ranks=0-3, 7."""

LEAST_SHARE = 0.0005
"""Changes below this share of the step are not listed."""


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part of the step (`exposed dp`, `idle host`) before and after, in ns per step."""

    name: str
    before_ns: float
    after_ns: float
    mostly: str = ""
    """The collective that accounts for most of the change of an exposed axis."""

    @property
    def delta_ns(self) -> float:
        """The increase from before to after."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True)
class WorkChange:
    """An op, kernel or call before and after; a count of 0 means that it was absent."""

    sort: str
    name: str
    shape: str
    phase: str
    before_ns: float
    after_ns: float
    before_count: float
    after_count: float

    @property
    def delta_ns(self) -> float:
        """The increase in ns per step and rank."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True)
class Why:
    """What changed in the step, largest change first."""

    step_before_ns: float = 0.0
    step_after_ns: float = 0.0
    parts: tuple[PartChange, ...] = ()
    work: tuple[WorkChange, ...] = ()
    new_findings: tuple[SeenFinding, ...] = ()
    gone_findings: tuple[SeenFinding, ...] = ()

    @property
    def delta_ns(self) -> float:
        """The increase of the step time."""
        return self.step_after_ns - self.step_before_ns


EMPTY_WHY = Why()


def explain(before: Measured, after: Measured) -> Why:
    """Compare how two runs spent their step."""
    old, new = _places(before, _center), _places(after, _center)
    step_before, step_after = _center(before.by_key().get(STEP_TIME)), _center(after.by_key().get(STEP_TIME))
    least = LEAST_SHARE * max(step_before, step_after)
    kinds = _exposed_kinds(before), _exposed_kinds(after)
    parts = [_part(name, old.get(name, 0.0), new.get(name, 0.0), *kinds) for name in sorted({*old, *new})]
    moved = sorted(
        (part for part in parts if abs(part.delta_ns) > least), key=lambda part: (-abs(part.delta_ns), part.name)
    )
    return Why(
        step_before,
        step_after,
        tuple(moved),
        changed_work(before.work, after.work, least),
        tuple(finding for finding in after.findings if _mark(finding) not in {_mark(old) for old in before.findings}),
        tuple(finding for finding in before.findings if _mark(finding) not in {_mark(new) for new in after.findings}),
    )


def changed_work(before: tuple[Work, ...], after: tuple[Work, ...], least_ns: float) -> tuple[WorkChange, ...]:
    """Match ops, kernels and calls by name, shape and phase; return those that changed most."""
    old = {_identity(entry): entry for entry in before}
    new = {_identity(entry): entry for entry in after}
    changes = []
    for identity in sorted({*old, *new}):
        was, now = old.get(identity), new.get(identity)
        change = WorkChange(
            *identity,
            was.ns_per_step if was else 0.0,
            now.ns_per_step if now else 0.0,
            was.count_per_step if was else 0.0,
            now.count_per_step if now else 0.0,
        )
        if abs(change.delta_ns) > least_ns:
            changes.append(change)
    return tuple(sorted(changes, key=lambda work: (-abs(work.delta_ns), work.sort, work.name, work.shape))[:TOP])


def waterfall(run: Measured) -> tuple[tuple[str, float], ...]:
    """Return the parts of a run's mean step in ns, as its report shows them, sorted by name."""
    return tuple(sorted(_places(run, lambda series: series.mean).items()))


def _places(run: Measured, value_of: Callable[[Series], float]) -> dict[str, float]:
    names = {(metric, dimension): name for metric, name, dimension in PARTS}
    time_of_place = {}
    for series in run.series:
        dimensions = [name for name, _ in series.place]
        word = names.get((series.metric, dimensions[0] if dimensions else ""))
        if word is not None and len(dimensions) <= 1:
            time_of_place[" ".join([word, *(value for _, value in series.place)])] = value_of(series)
    return time_of_place


def _part(name: str, before: float, after: float, old: _Kinds, new: _Kinds) -> PartChange:
    """Return a part's change with the collective that accounts for more than half of it, if any."""
    delta = after - before
    axis = name.removeprefix(EXPOSED)
    changes = {c: new.get((a, c), 0.0) - old.get((a, c), 0.0) for a, c in sorted({*old, *new}) if a == axis}
    most = max(changes, key=lambda collective: abs(changes[collective]), default="")
    return PartChange(name, before, after, most if most and changes[most] * delta > 0.5 * delta * delta else "")


def _exposed_kinds(run: Measured) -> _Kinds:
    """Return the exposed time in ns per step, by axis and collective."""
    exposed: _Kinds = {}
    for series in run.series:
        place = dict(series.place)
        if set(place) == {"axis", "collective"} and series.metric in ("comm_time", "hidden_comm_time"):
            key = (place["axis"], place["collective"])
            exposed[key] = exposed.get(key, 0.0) + (1 if series.metric == "comm_time" else -1) * _center(series)
    return exposed


def _center(series: Series | None) -> float:
    return boil_down(series.samples, series.steps).center if series else 0.0


def _identity(work: Work) -> tuple[str, str, str, str]:
    return (work.sort, work.name, work.shape, work.phase)


def _mark(finding: SeenFinding) -> tuple[str, str]:
    return (finding.code, finding.where)


# New findings that exceed noise: a finding's gain is a share of the step, and step times vary


def new_findings(
    before: Sequence[Measured], after: Measured, policy: Policy, noise: Noise
) -> tuple[tuple[SeenFinding, ...], tuple[Judgment, ...]]:
    """Return the new findings that count, and a judgment for each new finding that noise may explain.

    A finding that costs no more than the allowed slowdown does not count.
    """
    if policy.findings is None:
        return (), ()
    doubt = _doubt(policy, noise, len(before))
    sure, unsure = [], []
    for finding in _fresh(before, after, policy.findings):
        if _is_of_other_ranks(finding, before, policy.findings, doubt):
            continue
        gain_before = max(
            (old.gain for run in before for old in run.findings if _mark(old) == _mark(finding)), default=0.0
        )
        if 0 < finding.gain - gain_before <= policy.allowed_loss:
            continue
        if finding.gain - gain_before > doubt or not finding.gain:
            sure.append(finding)
        else:
            unsure.append(_judgment(finding, gain_before, doubt))
    return tuple(sure), tuple(unsure)


def _fresh(before: Sequence[Measured], after: Measured, least: Level) -> list[SeenFinding]:
    marks_before = {_mark(old) for run in before for old in run.findings if _counts(old, least)}
    return [finding for finding in after.findings if _counts(finding, least) and _mark(finding) not in marks_before]


def _counts(finding: SeenFinding, least: Level) -> bool:
    order = list(Level)
    return order.index(finding.level) >= order.index(least)


def _is_of_other_ranks(finding: SeenFinding, before: Sequence[Measured], least: Level, doubt: float) -> bool:
    """Return whether a baseline has the finding with the same gain on more or fewer of its ranks.

    If several ranks spend time in pauses or input, one of them may stand out in one run and not in another.
    """
    return any(
        old.code == finding.code
        and _has_nested_ranks(finding.where, old.where)
        and _counts(old, least)
        and finding.gain - old.gain <= doubt
        for run in before
        for old in run.findings
    )


def _has_nested_ranks(where: str, other: str) -> bool:
    """Return whether two locations differ only in ranks, and those of one are among those of the other.

    A location without ranks covers all ranks.
    """
    (ranks, rest), (other_ranks, other_rest) = _ranks_of(where), _ranks_of(other)
    covers_all = not ranks or not other_ranks
    return rest == other_rest and (covers_all or ranks <= other_ranks or other_ranks <= ranks)


def _ranks_of(where: str) -> tuple[set[int], dict[str, str]]:
    """Return the ranks of a location as in `SeenFinding.where`, and its other coordinates."""
    coordinates = dict(_COORDINATE.findall(where))
    return numbers_of_spans(coordinates.pop("ranks", coordinates.pop("rank", ""))), coordinates


def _doubt(policy: Policy, noise: Noise, runs: int) -> float:
    """Return the largest difference, as a share of a step, that two runs of one configuration may have."""
    spread = noise.prior.share * noise.step_spread * math.sqrt(1 + 1 / runs)
    return t_quantile(policy.false_alarm / 2, noise.prior.worth) * spread


def _judgment(finding: SeenFinding, gain_before: float, doubt: float) -> Judgment:
    more = finding.gain - gain_before
    reason = f"new, but runs may differ by {100 * doubt:.0f}% of a step: save a baseline of several runs"
    return Judgment(
        f"finding {finding.code}" + (f"[{finding.where.replace(' ', ',')}]" if finding.where else ""),
        finding.title,
        Unit.FRACTION,
        Better.LOWER,
        Verdict.INCONCLUSIVE,
        reason,
        before=gain_before,
        after=finding.gain,
        change=more,
        low=more - doubt,
        high=more + doubt,
        scale=Scale.ABSOLUTE,
        allowed=0.0,
        more_steps=-1,
    )
