"""Verdicts: predictions of a case compared with the true savings, and whether the right finding is first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simulated_jobs.cases import Case, Plan
from simulated_jobs.job import Job
from simulated_jobs.options import Options
from simulated_jobs.traces import write
from usp_prof.findings.search import search
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import Finding
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

SAME_GAIN = 0.02
"""A finding of the whole job may come first if its gain is at least the fault's cost less this."""
NAMED_RANKS = re.compile(r"(?:\branks?[ =]|rank_as_peers=|host_as_peers=)((?:\d+(?:, | and |\+)?)+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Saving:
    """Predicted saving of one edit with its error, and the true saving; without a prediction, it was refused."""

    edit: str
    truth: float
    predicted: float | None
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the product says about a case."""

    savings: tuple[Saving, ...]
    least_truth: float
    """Smallest true saving by the definitions of a step."""
    is_first: bool
    """Whether the first finding explains the fault."""
    blamed: str
    """The first finding with a certain gain that names a rank."""


def true_savings(faulty: Options, repaired: Options) -> tuple[float, ...]:
    """Return the true saving by three definitions of a step: mean rank, whole job, and without a profiler."""
    steps = []
    for options in (faulty, repaired):
        job, unrecorded = Job(options).simulate(), Job(replace(options, unrecorded_steps=2)).simulate()
        steps.append((job.rank_step_us(), job.job_step_us(), unrecorded.steady_step_us()))
    return tuple(1 - after / before for before, after in zip(*steps, strict=True))


def judge(case: Case, folder: Path) -> Verdict:
    """Write the case's traces into a new folder, and compare what the product says about them with the truth."""
    plan = case.plan
    faulty = replace(case.options, fault=plan.fault) if plan else case.options
    write(Job(faulty).simulate(), folder / "run")
    tables = open_run(folder / "run", cache_dir=folder / "cache").tables
    findings = search(tables).findings
    blamed = next((finding.title for finding in findings if "rank" in finding.place and is_certain(finding)), "")
    if plan is None:
        return Verdict((), 0.0, is_first=True, blamed=blamed)
    truths = true_savings(faulty, plan.repaired or case.options)
    savings = []
    for text in plan.edits:
        try:
            step = predict(tables, [parse_edit(text)])
        except UspProfError:
            savings.append(Saving(text, truths[0], None))
            continue
        # The three definitions are equally valid, so the nearest of their range counts.
        truth = min(max(step.gain_fraction, min(truths)), max(truths))
        savings.append(Saving(text, truth, step.gain_fraction, step.error_fraction))
    return Verdict(tuple(savings), min(truths), is_first=explains_first(findings, plan, truths[0]), blamed=blamed)


def is_certain(finding: Finding) -> bool:
    """Return whether the gain exceeds its error."""
    return finding.certain_gain_fraction > 0


def explains_first(findings: Sequence[Finding], plan: Plan, truth: float) -> bool:
    """Return whether the first finding explains the fault.

    A finding of the whole job may precede the explanation if it saves as much.
    """
    explaining = [finding for finding in findings if explains(finding, plan)]
    if not explaining:
        return False
    first = findings[0]
    saves_as_much = first.gain_fraction > truth - SAME_GAIN and "rank" not in first.place
    return first is explaining[0] or saves_as_much


def explains(finding: Finding, plan: Plan) -> bool:
    """Return whether a finding has an expected code and, if it must, names one of the fault's ranks."""
    if finding.code not in plan.codes:
        return False
    return not plan.names_rank or bool(ranks_in(finding) & set(plan.fault.ranks))


def ranks_in(finding: Finding) -> set[int]:
    """Return the ranks that a finding names in its place, title or edit."""
    text = f"{finding.place}; {finding.title}; {finding.edit}"
    return {int(rank) for match in NAMED_RANKS.finditer(text) for rank in re.findall(r"\d+", match[1])}
