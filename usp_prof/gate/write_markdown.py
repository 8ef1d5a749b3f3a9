"""What does a pull request show? A summary in GitHub's Markdown, also fit for GITHUB_STEP_SUMMARY."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.gate.judgement import Judgement, Verdict
from usp_prof.gate.units import change, figure, interval
from usp_prof.gate.wording import headline, removed, why_lines, worst_first

if TYPE_CHECKING:
    from usp_prof.gate.verdict import Report

_MARKS = {
    Verdict.PASS: "✅",
    Verdict.REGRESSED: "❌",
    Verdict.INCONCLUSIVE: "❔",
    Verdict.IMPROVED: "🎉",
    Verdict.NOT_COMPARED: "⏭️",
}


def render(report: Report) -> str:
    """Write the check as Markdown."""
    lines = [f"## {_MARKS[report.verdict]} usp-prof: {_cell(headline(report))}", ""]
    runs = f" ({report.baseline_runs} runs)" if report.baseline_runs > 1 else ""
    lines += [f"`{report.after}` against `{report.before}`{runs}", ""]
    lines += [f"> [!WARNING]\n> {_cell(reason)}\n" for reason in report.unusable + report.unanswered]
    lines += [f"- differs: {_cell(str(each))}" for each in report.differences]
    lines += [""] if report.differences else []
    shown = worst_first(report.of(Verdict.REGRESSED)) + report.of(Verdict.INCONCLUSIVE) + report.of(Verdict.IMPROVED)
    rest = report.of(Verdict.PASS) + report.of(Verdict.NOT_COMPARED)
    if shown:
        lines += [*_table(shown), ""]
    why = why_lines(report.why)
    if why:
        lines += ["**Why**", "", *(f"- {_cell(line)}" for line in why), ""]
    if report.ratchet:
        lines += [f"To keep what improved: `{report.ratchet}`", ""]
    if rest:
        lines += [f"<details><summary>{len(rest)} other metrics</summary>", "", *_table(rest), "", "</details>", ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(found: tuple[Judgement, ...]) -> list[str]:
    lines = ["| | metric | before | after | change | interval | |", "|---|---|---:|---:|---:|---:|---|"]
    for each in found:
        note = "; ".join(part for part in (each.reason, removed(each)) if part)
        cells = (
            f"{_MARKS[each.verdict]} {each.verdict}",
            f"`{each.key}`",
            figure(each.before, each.unit),
            figure(each.after, each.unit),
            change(each),
            interval(each),
            note,
        )
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
