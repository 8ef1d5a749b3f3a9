"""What does a CI server's test view show? Each metric as a test case, in JUnit's XML."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from usp_prof.gate.judgement import Verdict
from usp_prof.gate.verdict import Inconclusive
from usp_prof.gate.wording import sentence, why_lines

if TYPE_CHECKING:
    from usp_prof.gate.judgement import Judgement
    from usp_prof.gate.verdict import Report


def render(report: Report) -> str:
    """Write the check as JUnit XML."""
    why = "\n".join(why_lines(report.why))
    fails = report.inconclusive is Inconclusive.FAIL
    cases = [_case(each, why, fails=fails) for each in report.judgements]
    cases += [_broken("input", reason, "error") for reason in report.unusable + report.unanswered]
    cases += [_broken(f"finding {each.code}", f"{each.title} {each.where}", "failure") for each in report.new_findings]
    body = "".join(cases)
    counts = f'tests="{len(cases)}" failures="{body.count("<failure ")}" errors="{body.count("<error ")}"'
    counts += f' skipped="{body.count("<skipped ")}"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites {counts}><testsuite name="usp-prof check" {counts}>\n{body}</testsuite></testsuites>\n'
    )


def _case(each: Judgement, why: str, *, fails: bool) -> str:
    text = sentence(each)
    if each.verdict is Verdict.REGRESSED or (each.verdict is Verdict.INCONCLUSIVE and fails):
        return _broken(each.key, text, "failure", why)
    if each.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARED):
        return f"{_open(each.key)}<skipped message={quoteattr(f'{each.verdict}: {each.reason}')}/></testcase>\n"
    return f"{_open(each.key)}<system-out>{escape(text)}</system-out></testcase>\n"


def _broken(name: str, message: str, tag: str, detail: str = "") -> str:
    return f"{_open(name)}<{tag} message={quoteattr(message)}>{escape(detail)}</{tag}></testcase>\n"


def _open(name: str) -> str:
    return f'<testcase classname="usp_prof" name={quoteattr(name)}>'
