"""Wording of checks and comparisons: values, changes and intervals with units, and a plain table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from usp_prof.gate.facts import BARRED, MEASURED_PEAK, PEAK, UNRECORDED, Difference
from usp_prof.gate.judge import SIGN
from usp_prof.gate.judgment import Judgment, Scale, Verdict
from usp_prof.gate.measured import SeenFinding
from usp_prof.gate.verdict import Report
from usp_prof.gate.why import COPIES, PartChange, Why, WorkChange
from usp_prof.model.files import json_object
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted, first_and_more, first_few, shortened
from usp_prof.report.figures import label_of
from usp_prof.report.format import quantity
from usp_prof.report.format import signed as signed_quantity
from usp_prof.report.words import title_and_place

_WIDEST = 10.0
"""The end of an interval beyond this relative change is shown as a limit, unless the change itself is beyond it."""
_LOWEST = -0.95
"""A change with an interval from below this to above `_WIDEST` is undetermined."""


def change(judgment: Judgment) -> str:
    """Format a change: in percent of the baseline, in percentage points, or in the unit; "-" if noise hides it."""
    return "-" if is_undetermined(judgment) else signed(judgment.change, judgment)


def is_undetermined(judgment: Judgment) -> bool:
    """Return whether the interval of a relative change is so wide that nearly any change is possible."""
    return judgment.scale is Scale.RELATIVE and judgment.low <= _LOWEST and judgment.high > _WIDEST


def interval(judgment: Judgment) -> str:
    """Format the interval of a change, limited to a readable range."""
    if not (math.isfinite(judgment.low) and math.isfinite(judgment.high)):
        return "-"
    if is_undetermined(judgment):
        return "too wide"
    low, high = ends(judgment)
    if judgment.scale is Scale.RELATIVE:
        beyond = "> " if judgment.high > high else ""
        return f"{_bound(low)} .. {beyond}{_bound(high)}%"
    if judgment.unit is Unit.FRACTION:
        return f"{_bound(low)} .. {_bound(high)} pp"
    return f"{signed(judgment.low, judgment)} .. {signed(judgment.high, judgment)}"


def ends(judgment: Judgment) -> tuple[float, float]:
    """Return the ends of an interval of relative changes or of points, limited to a readable range."""
    if judgment.scale is not Scale.RELATIVE:
        return max(judgment.low, -1.0), min(judgment.high, 1.0)
    is_beyond = judgment.low > _WIDEST or judgment.change > _WIDEST
    return max(judgment.low, -1.0), judgment.high if is_beyond else min(judgment.high, _WIDEST)


def _bound(value: float) -> str:
    """Format an end of an interval in hundredths: two decimals for narrow ones, none for wide ones."""
    places = 2 if abs(value) < 0.1 else 1 if abs(value) < 0.9995 else 0
    return f"{value * 100:+z.{places}f}"


def signed(value: float, judgment: Judgment) -> str:
    """Format a change in the scale of the judgment."""
    if not math.isfinite(value):
        return "-"
    if judgment.scale is Scale.RELATIVE:
        return f"{value * 100:+z.{2 if abs(value) < 1 else 0}f}%"
    if judgment.unit is Unit.FRACTION:
        return f"{value * 100:+z.2f} pp"
    return signed_quantity(value, judgment.unit)


def signed_time(value_ns: float) -> str:
    """Format a change of time with its sign."""
    return signed_quantity(value_ns, Unit.NS)


# Tables of the gate on a terminal: no lines, and tight columns on narrow terminals.


_ROOMY = 100
"""Minimum width for two blanks between columns."""


def metric_cell(key: str, width: int) -> Text:
    """Format a metric's name; on narrow terminals its dimensions are on a second line."""
    return Text(key if width >= _ROOMY else key.replace("[", "\n["))


def bare_table(width: int) -> Table:
    """Return an empty table without lines for a terminal of this width."""
    return Table(
        box=None,
        pad_edge=False,
        collapse_padding=width < _ROOMY,
        header_style="bold",
    )


# Sentences of a check that every writer shares.

_PARTS_NAMED = 4
_MOST_NAMED = 3
"""Number of metrics that are named with a reason."""
_NAME_WIDTH = 80


def headline(report: Report) -> str:
    """Return the verdict as one sentence."""
    if report.unusable:
        return f"inconclusive: {report.unusable[0]}"
    if report.unanswered and report.verdict is not Verdict.REGRESSED:
        return f"inconclusive: {report.unanswered[0]}"
    if report.verdict is Verdict.REGRESSED:
        worst = [
            f"{judgment.key} {change(judgment)}" for judgment in worst_first(report.with_verdict(Verdict.REGRESSED))
        ]
        worst += [f"new finding {finding.code}" for finding in report.new_findings]
        return f"regressed: {first_and_more(worst, 3)}"
    if report.verdict is Verdict.INCONCLUSIVE:
        first = worst_first(report.with_verdict(Verdict.INCONCLUSIVE))[0]
        return f"inconclusive: {first.key}{_doubt(first)} {first.reason}"
    if report.verdict is Verdict.IMPROVED:
        best = report.with_verdict(Verdict.IMPROVED)
        return "improved: " + ", ".join(f"{judgment.key} {change(judgment)}" for judgment in best[:3])
    return f"pass: {' and '.join(_passed(report))}"


def _doubt(judgment: Judgment) -> str:
    """Return that a change exceeds the allowed one but may be noise, up to the reason."""
    if judgment.worse <= judgment.allowed or math.isnan(judgment.worse):
        return ":"
    if is_undetermined(judgment):
        return " may have changed by more than allowed;"
    return f" {change(judgment)} exceeds the allowed change and may be noise;"


def _passed(report: Report) -> Iterator[str]:
    """Yield how many metrics match the baseline, and how many meet their lower bound."""
    passed = [SIGN in judgment.key for judgment in report.with_verdict(Verdict.PASS)]
    if as_before := passed.count(False):
        yield f"{counted(as_before, 'metric')} unchanged"
    if bounded := passed.count(True):
        yield f"{counted(bounded, 'lower bound')} met"


class ConditionChange(NamedTuple):
    """A condition that differs between two runs, in words; an empty side was not recorded."""

    kind: str
    name: str
    before: str
    after: str


def condition_changes(differences: Iterable[Difference]) -> list[ConditionChange]:
    """Return the conditions that differ; one with several parts, such as the model, is split into those that differ."""
    return [change for difference in differences for change in _parted(difference)]


def _parted(difference: Difference) -> list[ConditionChange]:
    kind, name = str(difference.kind), difference.name
    before, after = json_object(difference.before), json_object(difference.after)
    if not (before and after):
        return [ConditionChange(kind, name, _condition(name, difference.before), _condition(name, difference.after))]
    return [
        ConditionChange(kind, f"{name} {part.replace('_', ' ')}", str(before.get(part, "")), str(after.get(part, "")))
        for part in {**before, **after}
        if before.get(part) != after.get(part)
    ]


def _condition(name: str, value: str) -> str:
    """Format the value of a condition; peaks are rates."""
    return quantity(float(value), Unit.FLOP_PER_SECOND) if value and name in (PEAK, MEASURED_PEAK) else value


def differing(differences: Iterable[Difference]) -> list[str]:
    """Return one line per kind of condition that differs."""
    changes_of_kind: dict[str, list[str]] = {}
    for change in condition_changes(differences):
        text = f"{change.name} {change.before or UNRECORDED} -> {change.after or UNRECORDED}"
        changes_of_kind.setdefault(change.kind, []).append(text)
    return [f"{kind} differs: {', '.join(changes)}" for kind, changes in changes_of_kind.items()]


def reasons(report: Report) -> list[str]:
    """Return why metrics have no plain verdict: each reason once, with its metrics."""
    keys_of: dict[tuple[str, bool], list[str]] = {}
    for judgment in report.judgements:
        if judgment.reason and judgment.verdict is not Verdict.PASS:
            is_compared = judgment.verdict is not Verdict.NOT_COMPARED
            keys_of.setdefault((judgment.reason, is_compared), []).append(judgment.key)
    lines = [
        f"{first_and_more(keys, _MOST_NAMED)}: {reason}"
        if is_compared
        else f"not compared: {first_and_more(keys, _MOST_NAMED)} ({reason.removeprefix(BARRED)})"
        for (reason, is_compared), keys in keys_of.items()
    ]
    left_out = next((text for judgment in report.judgements if (text := removed(judgment))), "")
    return [*lines, f"steps not counted: {left_out}"] if left_out else lines


def worst_first(judgments: tuple[Judgment, ...]) -> tuple[Judgment, ...]:
    """Sort judgments by their change relative to the allowed one; unmeasured ones come last."""
    return tuple(sorted(judgments, key=lambda judgment: (-_times_allowed(judgment), judgment.key)))


def _times_allowed(judgment: Judgment) -> float:
    return -math.inf if math.isnan(judgment.worse) else judgment.worse / max(judgment.allowed, 1e-9)


def consequence(report: Report) -> str:
    """Return the consequence of an inconclusive check, and how to decide it."""
    if report.unusable and not report.is_comparable:
        return "save a baseline of runs like this one, or list what may differ in `across` of a policy file"
    if report.verdict is not Verdict.INCONCLUSIVE or report.unusable or report.unanswered:
        return ""
    if all(math.isnan(judgment.change) for judgment in report.with_verdict(Verdict.INCONCLUSIVE)):
        return ""
    code = report.exit_code
    means = f"NOT DECIDED, exit code {code}"
    ways = ["--judge medians decides by the recorded steps"]
    if code == 0:
        ways.append("--inconclusive fail exits with 1")
    return f"{means}: {'; '.join(ways)}"


def sentence(judgment: Judgment) -> str:
    """Return one judgment as a line."""
    before, after = quantity(judgment.before, judgment.unit), quantity(judgment.after, judgment.unit)
    text = f"{judgment.key}: {before} -> {after}, {change(judgment)} ({interval(judgment)})"
    return f"{text}: {judgment.reason}" if judgment.reason else text


def removed(judgment: Judgment) -> str:
    """Return which steps were left out."""
    parts = []
    if judgment.warm_up:
        parts.append(f"warm-up {_steps(judgment.warm_up)}")
    if judgment.odd:
        parts.append(f"outlier {_steps(judgment.odd)}")
    return ", ".join(parts)


def why_of(report: Report) -> tuple[str, ...]:
    """Return why the step changed, or nothing if no metric could be compared."""
    return why_lines(report.why) if report.is_comparable else ()


def why_lines(why: Why) -> tuple[str, ...]:
    """Return why the step changed: the sum, the parts, the work and the findings."""
    lines = []
    if why.parts:
        parts = ", ".join(f"{signed_time(part.delta_ns)} {_part(part)}" for part in why.parts[:_PARTS_NAMED])
        lines.append(f"{signed_time(why.delta_ns)} per step: {parts}")
    if why.work:
        lines.append("work that changed most (calls that run at the same time are added up):")
    lines += [work_line(work) for work in why.work]
    lines += [f"new finding {new.code} ({new.level}): {finding_words(new)}" for new in why.new_findings]
    lines += [f"finding disappeared: {old.code}: {finding_words(old)}" for old in why.gone_findings]
    return tuple(lines)


def _part(part: PartChange) -> str:
    label = part_label(part.name)
    return f"{label} (mostly {part.mostly})" if part.mostly else label


def part_label(name: str) -> str:
    """Return the name of a part of the step as in the report: `idle host` is idle: host, `copies` is memcpy."""
    if name == COPIES:
        return "memcpy"
    family, _, which = name.partition(" ")
    role = {"idle": "idle", "exposed": "comm"}.get(family)
    return label_of(f"{role}:{which}") if role and which else name


def finding_words(finding: SeenFinding) -> str:
    """Return title and place of a finding; `where` has the form `axis=dp rank=2`."""
    place = dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", finding.where))
    return title_and_place(finding.title, {key: int(text) if text.isdigit() else text for key, text in place.items()})


def work_line(change: WorkChange) -> str:
    """Return how one op, kernel or call changed."""
    shape = f" {change.shape}" if change.shape else ""
    phase = f" in {change.phase}" if change.phase else ""
    text = f"{signed_time(change.delta_ns)} {change.sort} {shortened(change.name, _NAME_WIDTH)}{shape}{phase}"
    if not change.before_count:
        return f"{text} (new, {change.after_count:g} per step)"
    if not change.after_count:
        return f"{text} (removed)"
    if change.before_count != change.after_count:
        return f"{text} ({change.before_count:g} -> {change.after_count:g} per step)"
    return text


def _steps(numbers: tuple[int, ...]) -> str:
    return f"step{'s' if len(numbers) > 1 else ''} {first_few(numbers, 6, ', ...')}"
