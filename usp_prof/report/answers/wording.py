"""Sentences of a check that every writer shares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from usp_prof.gate.judgement import Judgement, Verdict
from usp_prof.report.answers.units import change, figure, interval, signed_duration

if TYPE_CHECKING:
    from usp_prof.gate.verdict import Report
    from usp_prof.gate.why import Why, WorkChange

_PARTS_TOLD = 4
_NAME_WIDTH = 80


def headline(report: Report) -> str:
    """Say the verdict in one sentence."""
    if report.unusable:
        return f"inconclusive: {report.unusable[0]}"
    if report.unanswered and report.verdict is not Verdict.REGRESSED:
        return f"inconclusive: {report.unanswered[0]}"
    if report.verdict is Verdict.REGRESSED:
        worst = [f"{each.key} {change(each)}" for each in worst_first(report.of(Verdict.REGRESSED))]
        worst += [f"new finding {each.code}" for each in report.new_findings]
        return "regressed: " + ", ".join(worst[:3]) + (f" and {len(worst) - 3} more" if len(worst) > 3 else "")
    if report.verdict is Verdict.INCONCLUSIVE:
        first = worst_first(report.of(Verdict.INCONCLUSIVE))[0]
        doubt = f" {change(first)} is more than allowed and may be noise" if first.worse > first.allowed else ""
        return f"inconclusive: {first.key}{doubt}: {first.reason}"
    if report.verdict is Verdict.IMPROVED:
        best = report.of(Verdict.IMPROVED)
        return "improved: " + ", ".join(f"{each.key} {change(each)}" for each in best[:3])
    told = sum(each.verdict is Verdict.PASS for each in report.judgements)
    return f"pass: {told} metrics as before"


def worst_first(found: tuple[Judgement, ...]) -> tuple[Judgement, ...]:
    """Order judgements by how many times the allowed amount they are worse; what was not measured comes last."""
    return tuple(sorted(found, key=lambda each: (-_times_allowed(each), each.key)))


def _times_allowed(found: Judgement) -> float:
    return -math.inf if math.isnan(found.worse) else found.worse / max(found.allowed, 1e-9)


def what_follows(report: Report) -> str:
    """Say of a check that noise leaves open what the exit code makes of it, and what would decide it."""
    if report.verdict is not Verdict.INCONCLUSIVE or report.unusable or report.unanswered:
        return ""
    if all(math.isnan(each.change) for each in report.of(Verdict.INCONCLUSIVE)):
        return ""
    code = report.exit_code
    means = f"NOT DECIDED, and exits with {code}"
    ways = ["--judge medians lets the steps at hand decide"]
    if code == 0:
        ways.append("--inconclusive fail exits with 1")
    return f"{means}: {'; '.join(ways)}"


def sentence(found: Judgement) -> str:
    """Say one judgement in a line."""
    before, after = figure(found.before, found.unit), figure(found.after, found.unit)
    text = f"{found.key}: {before} -> {after}, {change(found)} ({interval(found)})"
    return f"{text}: {found.reason}" if found.reason else text


def removed(found: Judgement) -> str:
    """Say which steps were left out."""
    parts = []
    if found.warm_up:
        parts.append(f"warm-up {_steps(found.warm_up)}")
    if found.odd:
        parts.append(f"odd {_steps(found.odd)}")
    return ", ".join(parts)


def why_lines(why: Why) -> tuple[str, ...]:
    """Say why the step changed: the sum first, then the parts, the work and the findings."""
    lines = []
    if why.parts:
        told = ", ".join(
            f"{signed_duration(part.delta_ns)} {part.name} {part.mostly}".rstrip() for part in why.parts[:_PARTS_TOLD]
        )
        lines.append(f"{signed_duration(why.delta_ns)} a step: {told}")
    lines += [work_line(each) for each in why.work]
    lines += [
        f"new finding {each.code} ({each.level}): {each.title} {each.where}".rstrip() for each in why.new_findings
    ]
    lines += [f"gone: finding {each.code}: {each.title} {each.where}".rstrip() for each in why.gone_findings]
    return tuple(lines)


def work_line(each: WorkChange) -> str:
    """Say how one op, kernel or call changed."""
    shape = f" {each.shape}" if each.shape else ""
    phase = f" in {each.phase}" if each.phase else ""
    text = f"{signed_duration(each.delta_ns)} {each.sort} {_short(each.name)}{shape}{phase}"
    if not each.before_count:
        return f"{text} (new, {each.after_count:g} a step)"
    if not each.after_count:
        return f"{text} (gone)"
    if each.before_count != each.after_count:
        return f"{text} ({each.before_count:g} -> {each.after_count:g} a step)"
    return text


def _short(name: str) -> str:
    """Cut a C++ name where only template arguments follow."""
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 3]}..."


def _steps(numbers: tuple[int, ...]) -> str:
    listed = ", ".join(str(step) for step in numbers[:6])
    return f"step{'s' if len(numbers) > 1 else ''} {listed}" + (", ..." if len(numbers) > 6 else "")
