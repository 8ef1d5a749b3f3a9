"""Wording shared by all writers: lines about the run, its findings and its health."""

from __future__ import annotations

import re
from collections.abc import Iterable

from usp_prof.findings.causes import Cause
from usp_prof.model.finding import Basis, Finding, Plain, PlainMap
from usp_prof.model.health import COUNTED_IN_BYTES, HealthRow, Severity
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted, first_and_more, spans
from usp_prof.report.document import Findings
from usp_prof.report.figures import label_of
from usp_prof.report.format import quantity
from usp_prof.report.run_facts import RunFacts
from usp_prof.report.verdict import NOTABLE, of_step, saving

_NEGLIGIBLE = 0.0005
REST = "less important causes, repeated causes, and gains within measurement noise"
"""Heading of the folded findings."""


def run_lines(run: RunFacts) -> list[str]:
    """Return the name, ranks and axes, devices and steps of a run, and other runs in the same place."""
    lines = [run.name, f"{ranks_phrase(run)}{_axes(run)}", f"{_devices(run)}; {_steps(run)}"]
    if run.model:
        lines.append(f"model {run.model}")
    if run.paced:
        lines.append("compute is paced: timed waits replace work, so times are real but arithmetic is not")
    if run.other_runs:
        lines.append(
            f"{counted(len(run.other_runs), 'other run')} here: {first_and_more(run.other_runs, 4)} (--run NAME|all)"
        )
    return lines


def ranks_phrase(run: RunFacts) -> str:
    """Return how many ranks were read, and which ones if some are missing."""
    read = len(run.ranks)
    if run.world_size is not None and read < run.world_size:
        return f"{read} of {run.world_size} ranks ({spans(run.ranks)})"
    return counted(read, "rank")


def mean_rank_step(run: RunFacts, span: str = "step") -> str:
    """Name the step that shares refer to: the mean over all ranks, or over those read of a larger job."""
    if not run.is_part:
        return f"mean rank {span}"
    return f"mean {span} of {len(run.ranks)} ranks" if len(run.ranks) != 1 else f"{span} of rank {run.ranks[0]}"


def lines_of_findings(findings: Findings) -> tuple[list[tuple[Finding, list[str]]], list[tuple[Finding, list[str]]]]:
    """Return the causes of a list of findings, and the rest, each with its lines."""
    causes: list[tuple[Finding, list[str]]] = []
    above = 0.0
    for cause in findings.causes:
        causes.append((cause.finding, cause_lines(cause, above, proof=findings.proofs)))
        above = max(above, cause.finding.cumulative_gain_fraction)
    rest = []
    for finding in findings.rest:
        lines = finding_lines(finding, proof=findings.proofs)
        of_cause = [place for place, cause in enumerate(findings.causes, start=1) if finding in cause.parts]
        lines += [f"same root cause as finding {place}" for place in of_cause]
        lines += ["within measurement noise"] if finding.is_noise and not of_cause else []
        rest.append((finding, lines))
    return causes, rest


def finding_lines(finding: Finding, above: float | None = None, *, proof: bool = False) -> list[str]:
    """Return the lines of a finding: title and place, gain with its error, what to do, and the query that proves it.

    `above` is the joint gain of the findings above it in a list; without it, the joint gain is not mentioned.
    """
    # A window is shown as step 0, which no trace numbers.
    where = {key: value for key, value in finding.where.items() if key != "step" or finding.span == "step"}
    lines = [title_and_place(finding.title, where)]
    if finding.gain_fraction > _NEGLIGIBLE:
        remarks = "; ".join(_remarks(finding, above))
        lines.append(f"saves {saving(finding)} {of_step(finding)}" + (f" ({remarks})" if remarks else ""))
    if changes := changes_of_parts(finding):
        lines.append(changes)
    if finding.advice:
        lines.append(finding.advice)
    if proof and finding.rows:
        lines.append(f"usp-prof query: {finding.rows}")
    return lines


def _remarks(finding: Finding, above: float | None) -> list[str]:
    """Return how the gain was determined, and the gain together with the findings above; "at most" is said before."""
    together = finding.cumulative_gain_fraction
    basis = [] if finding.basis is Basis.BOUND else [finding.basis.word]
    if above is None or together <= finding.gain_fraction:
        return basis
    if together - above <= _NEGLIGIBLE:
        return [*basis, "adds nothing to the findings above"]
    return [*basis, f"{quantity(together, Unit.FRACTION)} together with the findings above"]


def changes_of_parts(finding: Finding) -> str:
    """Return how the change affects the parts of the measured step; empty if the gain is the time of one part."""
    if not finding.changed or _is_of_one_part(finding):
        return ""
    changes = [
        f"{label_of(part.role)} {quantity(part.before_ns, Unit.NS)} -> {quantity(part.after_ns, Unit.NS)}"
        for part in finding.changed
    ]
    return ", ".join(changes) + ("; recording causes a part of this" if finding.without_recording else "")


def _is_of_one_part(finding: Finding) -> bool:
    """Return whether one part changes, and the gain is its time to within its error, so that a bar explains it."""
    first, *further = finding.changed
    error_ns = max(finding.error_fraction, NOTABLE) * finding.step_ns
    return not further and abs(first.before_ns - finding.saved_ns) <= error_ns


_NAMES_OF_AXIS = {"tp": r"tensor.parallel\w*", "cp": "context.parallel", "pp": "pipeline", "ep": "expert"}
"""Patterns of titles that name an axis in words."""
_COUNTS = ("stages",)
"""Parts of a place that are counts, and say nothing about where the problem is."""


def title_and_place(title: str, where: PlainMap) -> str:
    """Return a finding's title, with the rest of its place in parentheses."""
    place = further_place(title, where)
    return f"{title} ({place})" if place else title


def further_place(title: str, where: PlainMap) -> str:
    """Return the parts of a finding's place that its title does not name."""
    missing = (key for key, value in where.items() if key not in _COUNTS and not _names(title, key, value))
    return ", ".join(f"{key} {where[key]}" for key in missing)


def _names(title: str, key: str, value: Plain) -> bool:
    """Return whether a title names a part of a place; a group is named by its ranks."""
    words = re.escape(value.rpartition("@")[2] if isinstance(value, str) else f"{key} {value}")
    if key == "axis" and value in _NAMES_OF_AXIS:
        words = f"{words}|{_NAMES_OF_AXIS[str(value)]}"
    return re.search(rf"(?<![\w.])({words})(?![\w.])", title, re.IGNORECASE) is not None


def cause_lines(cause: Cause, above: float | None = None, *, proof: bool = False) -> list[str]:
    """Return the lines of a finding, and the findings that disappear with it."""
    lines = finding_lines(cause.finding, above, proof=proof)
    if cause.parts:
        lines.append(f"same root cause: {', '.join(_brief(part) for part in cause.parts)}")
    return lines


def _brief(finding: Finding) -> str:
    place = f" ({finding.place})" if finding.place else ""
    return f"{finding.code}{place} {quantity(finding.gain_fraction, Unit.FRACTION)}"


def left_out(more: int, noise: int) -> str:
    """Return how many findings are not shown, or an empty text."""
    parts = [counted(more, "more finding")] if more else []
    parts += [f"{counted(noise, 'finding')} within measurement noise"] if noise else []
    return ", ".join(parts)


def health_lines(rows: Iterable[HealthRow]) -> list[tuple[Severity, str]]:
    """Return a line per problem with its place and count; the same problem on several ranks is one line."""
    rows_by_problem: dict[tuple[str, str, str], list[HealthRow]] = {}
    for row in rows:
        rows_by_problem.setdefault((row.code, row.severity, row.detail), []).append(row)
    return [(together[0].severity, _health_line(together)) for together in rows_by_problem.values()]


def _health_line(rows: list[HealthRow]) -> str:
    first = rows[0]
    ranks = sorted({row.rank for row in rows if row.rank >= 0})
    where = (
        f" (rank{'s' if len(ranks) > 1 else ''} {spans(ranks)})" if ranks else f" ({first.file})" if first.file else ""
    )
    count = sum(row.count for row in rows)
    often = f" x{count:,}" if count > max(1, len(ranks)) and first.code not in COUNTED_IN_BYTES else ""
    return f"{first.code}{often}{where}: {first.detail}" if first.detail else f"{first.code}{often}{where}"


def _axes(run: RunFacts) -> str:
    if not run.axes:
        if run.axes_seen:
            return f", parallel layout unknown (collectives on {', '.join(run.axes_seen)})"
        return ", parallel axes unknown"
    sizes = " ".join(f"{axis}={size}" for axis, size in run.axes.items())
    return f", {sizes}{' (inferred)' if run.axes_inferred else ''}"


def _devices(run: RunFacts) -> str:
    devices = first_and_more(run.devices, 2) or "device not recorded"
    return devices if run.hosts <= 1 else f"{devices} on {run.hosts} hosts"


def _steps(run: RunFacts) -> str:
    if not run.steps:
        return "steps unknown: the whole trace is one window"
    if run.step_source == "window":
        return "no step marks: the whole trace is one window"
    steps = counted(len(run.steps), "step")
    if run.step_source == "calls":
        return f"{steps}: periods of the collectives that all ranks share; where a step begins is unknown"
    if run.step_source == "pattern":
        return f"{steps}: periods of repeated work; where a step begins is unknown"
    return f"step{'s' if len(run.steps) > 1 else ''} {spans(run.steps)}"
