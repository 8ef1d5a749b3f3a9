"""What does GitHub show beside a workflow? One annotation for each thing that somebody has to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.gate.judgement import Verdict
from usp_prof.gate.wording import headline, sentence, why_lines, worst_first

if TYPE_CHECKING:
    from usp_prof.gate.verdict import Report


def render(report: Report) -> str:
    """Write the check as workflow commands (`::error title=...::text`)."""
    lines = [_command("error", "usp-prof", reason) for reason in report.unusable + report.unanswered]
    why = "\n".join(why_lines(report.why))
    lines += [
        _command("error", f"usp-prof: {each.key} regressed", f"{sentence(each)}\n{why}".rstrip())
        for each in worst_first(report.of(Verdict.REGRESSED))
    ]
    lines += [_command("error", f"usp-prof: new finding {each.code}", each.title) for each in report.new_findings]
    if not report.unusable:
        lines += [
            _command("warning", f"usp-prof: {each.key} inconclusive", sentence(each))
            for each in report.of(Verdict.INCONCLUSIVE)
        ]
    if report.ratchet:
        lines.append(_command("notice", "usp-prof: improved", f"{headline(report)}\nto keep it: {report.ratchet}"))
    if not lines:
        lines = [_command("notice", "usp-prof", headline(report))]
    return "\n".join(lines) + "\n"


def _command(level: str, title: str, text: str) -> str:
    name = _escape(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={name}::{_escape(text)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
