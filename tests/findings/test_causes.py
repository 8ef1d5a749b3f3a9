"""Causes of findings: one finding per cause, none within the noise, and at most five shown."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from usp_prof.findings.causes import SHOWN, causes_of, with_causes
from usp_prof.findings.rules.contention import EFFECTS
from usp_prof.findings.rules.slow_ranks import SAYS_WHY
from usp_prof.findings.search import Judged, _finding, _in_order
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis, Finding, Level
from usp_prof.report.words import cause_lines, left_out
from usp_prof.whatif.predict import Gain


def finding(code: str, gain: float, together: float, error: float = 0.02, **where: Any) -> Finding:
    return Finding(code, code, where, {}, gain_fraction=gain, cumulative_gain_fraction=together, error_fraction=error)


def judged(code: str, gain: float, error: float, *, opportunity: bool = False, covers: tuple[str, ...] = ()) -> Judged:
    draft: Any = SimpleNamespace(
        title=code, where={}, evidence={}, edit=Edit(code), advice="", opportunity=opportunity, is_choice=False,
        covers=covers, basis=None, settings={}, rows="",
    )  # fmt: skip
    rule: Any = SimpleNamespace(CODE=code)
    return Judged(rule, draft, Gain(gain, Basis.REPLAYED, error, step_ns=1e9))


def test_findings_are_sorted_by_gain_minus_error_with_noise_last() -> None:
    items = [
        judged("choice", 0.508, 0.05, opportunity=True),
        judged("noisy", 0.487, 0.496),
        judged("sure", 0.09, 0.02),
        judged("unsure", 0.20, 0.15),
    ]
    order = [entry.rule.CODE for entry in _in_order(items)]
    assert order == ["sure", "unsure", "choice", "noisy"]
    levels = {item.rule.CODE: _finding(item, 0.0).level for item in items}
    assert levels == {"choice": Level.NOTE, "noisy": Level.NOTE, "sure": Level.WARNING, "unsure": Level.WARNING}
    critical = _finding(judged("critical", 0.3, 0.1), 0.0)
    assert critical.level is Level.CRITICAL
    assert critical.saved_ns == 0.3e9


def test_a_late_rank_follows_the_shared_cores_that_explain_it() -> None:
    """The late rank is random there. It used to be first, and `shared-cores` only added 12 points to it."""
    items = [
        judged("late-rank", 0.18, 0.05, covers=SAYS_WHY),
        judged("shared-cores", 0.30, 0.05, covers=EFFECTS),
        judged("small-messages", 0.26, 0.14),
    ]
    assert [item.rule.CODE for item in _in_order(items)] == ["shared-cores", "small-messages", "late-rank"]


def test_a_finding_that_adds_no_gain_is_part_of_an_earlier_one() -> None:
    findings = with_causes(
        [
            finding("slow-host", 0.66, 0.66, rank=2),
            finding("host-bound", 0.67, 0.68),  # adds 2 of 67
            finding("slow-link", 0.20, 0.85, axis="tp", group="3@0,1"),  # adds 17 of 20
            finding("low-bandwidth", 0.19, 0.86, axis="tp"),
        ]
    )
    assert [cause.part_of for cause in findings] == [-1, 0, -1, 2]
    causes = causes_of(findings).causes
    assert [(cause.finding.code, [part.code for part in cause.parts]) for cause in causes] == [
        ("slow-host", ["host-bound"]),
        ("slow-link", ["low-bandwidth"]),
    ]
    assert cause_lines(causes[1])[-1] == "same root cause: low-bandwidth (axis tp) 19.0%"


def test_a_late_rank_is_part_of_the_pauses_and_not_of_what_costs_most() -> None:
    """All hosts allocate memory and pause; the pauses make rank 3 late. It was listed under the allocations."""
    items = [
        finding("memory-pressure", 0.22, 0.22),
        finding("host-pause", 0.13, 0.34),
        finding("late-rank", 0.12, 0.35, rank=3),
    ]
    assert [item.part_of for item in with_causes(items, {"late-rank": SAYS_WHY})] == [-1, -1, 1]


def test_a_choice_is_not_an_effect_of_a_fault() -> None:
    """Another schedule saves almost nothing once the late rank is fixed, but it is still a choice."""
    schedule = replace(finding("pipeline-schedule", 0.12, 0.41), is_choice=True)
    findings = with_causes([finding("late-rank", 0.18, 0.18, rank=3), finding("x", 0.3, 0.4), schedule])
    assert [item.part_of for item in findings] == [-1, -1, -1]


def test_findings_on_other_ranks_and_axes_are_separate_causes() -> None:
    findings = with_causes(
        [finding("slow-rank", 0.3, 0.3, rank=1), finding("slow-rank", 0.2, 0.3, rank=2), finding("x", 0.1, 0.3, rank=1)]
    )
    assert [item.part_of for item in findings] == [-1, -1, 0]
    links = with_causes([finding("a", 0.3, 0.3, axis="dp"), finding("b", 0.2, 0.3, axis="tp")])
    assert [item.part_of for item in links] == [-1, -1]


def test_a_finding_on_several_ranks_applies_to_each() -> None:
    findings = with_causes(
        [
            finding("slow-rank", 0.3, 0.3, ranks="2-4, 7"),
            finding("late-rank", 0.2, 0.3, rank=3),
            finding("x", 0.2, 0.3, rank=5),
        ]
    )
    assert [item.part_of for item in findings] == [-1, 0, -1]


def test_gains_within_their_error_are_counted_as_noise() -> None:
    findings = with_causes([finding("a", 0.3, 0.3), *(finding("b", 0.29, 0.3, 0.903, rank=rank) for rank in range(8))])
    causes = causes_of(findings)
    assert [cause.finding.code for cause in causes.causes] == ["a"]
    assert len(causes.noise) == 8
    assert left_out(causes.more, len(causes.noise)) == "8 findings within measurement noise"


def test_a_screen_shows_five_findings() -> None:
    findings = [finding("slow-rank", 0.3, 0.3 + rank / 100, rank=rank) for rank in range(9)]
    causes = causes_of(findings)
    assert len(causes.shown) == SHOWN
    assert left_out(causes.more, 0) == "4 more findings"
    assert left_out(0, 0) == ""
