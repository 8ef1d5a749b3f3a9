"""The report of a check in five forms: terminal, Markdown, JSON, JUnit XML, GitHub annotations."""

from __future__ import annotations

import io
from dataclasses import asdict
from xml.sax.saxutils import escape as xml_escape
from xml.sax.saxutils import quoteattr as xml_quoteattr

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from usp_prof.gate.judgment import Judgment, Verdict
from usp_prof.gate.verdict import Inconclusive, Report
from usp_prof.model.printable import counted, for_log, printable
from usp_prof.report.answers.wording import (
    bare_table,
    change,
    consequence,
    differing,
    finding_words,
    headline,
    interval,
    metric_cell,
    reasons,
    removed,
    sentence,
    why_of,
    worst_first,
)
from usp_prof.report.format import quantity
from usp_prof.report.writers.json_text import answer_text
from usp_prof.report.writers.safe_console import print_trimmed, text_console

_STYLES = {
    Verdict.PASS: "green",
    Verdict.REGRESSED: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.IMPROVED: "bold green",
    Verdict.NOT_COMPARED: "dim",
}
_ORDER = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.PASS)
"""Verdicts with rows in a table. Metrics that were not compared have no figures, only a reason."""
NO_BASELINE = "lower bounds only"


def as_terminal(report: Report, *, color: bool, width: int = 120, is_screen: bool = False) -> str:
    """Format a colored or plain report; terminals get wrapped sentences, logs one line each for scripts."""
    out = io.StringIO()
    console = text_console(out, color=color, width=width)

    def say(text: str, style: str = "", indent: int = 2) -> None:
        if is_screen:
            print_trimmed(Padding(Text(text, style=style), (0, 0, 0, indent)), console)
        else:
            console.print(Text(" " * indent + text, style=style), soft_wrap=True)

    say(headline(report), _STYLES[report.verdict], 0)
    if follows := consequence(report):
        say(follows, "bold yellow", 0)
    runs = f", {report.baseline_runs} runs" if report.baseline_runs > 1 else ""
    say(f"{report.after} compared with {report.before or NO_BASELINE}{runs}", indent=0)
    for line in (*(report.unusable + report.unanswered)[1:], *differing(report.differences)):
        say(line)
    if any(report.with_verdict(verdict) for verdict in _ORDER):
        print_trimmed(_terminal_table(report, width), console)
    for line in reasons(report):
        say(line)
    if lines := why_of(report):
        say("why", indent=0)
        for line in lines:
            say(line)
    if report.ratchet:
        console.print(Text(f"to keep what improved: {report.ratchet}"), soft_wrap=True)  # a command stays on one line
    return out.getvalue()


def _terminal_table(report: Report, width: int) -> Table:
    table = bare_table(width)
    table.add_column("verdict")
    table.add_column("metric", overflow="fold")
    for name in ("before", "after", "change", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for verdict in _ORDER:
        for judgment in (
            worst_first(report.with_verdict(verdict)) if verdict is Verdict.REGRESSED else report.with_verdict(verdict)
        ):
            table.add_row(*_row(judgment, width))
    return table


def _row(judgment: Judgment, width: int) -> tuple[Text, ...]:
    return (
        Text(judgment.verdict, style=_STYLES[judgment.verdict]),
        metric_cell(judgment.key, width),
        Text(quantity(judgment.before, judgment.unit)),
        Text(quantity(judgment.after, judgment.unit)),
        Text(change(judgment)),
        Text(interval(judgment)),
    )


# Markdown: the summary of a pull request, also for GITHUB_STEP_SUMMARY


_MARKS = {
    Verdict.PASS: "✅",
    Verdict.REGRESSED: "❌",
    Verdict.INCONCLUSIVE: "❔",
    Verdict.IMPROVED: "🎉",
    Verdict.NOT_COMPARED: "⏭️",
}


def as_markdown(report: Report) -> str:
    """Format the check as Markdown."""
    lines = [f"## {_MARKS[report.verdict]} usp-prof: {_cell(headline(report))}", ""]
    runs = f" ({report.baseline_runs} runs)" if report.baseline_runs > 1 else ""
    before = f"`{report.before}`" if report.before else NO_BASELINE
    lines += [f"`{report.after}` compared with {before}{runs}", ""]
    follows = consequence(report)
    warnings = (*report.unusable, *report.unanswered, *([follows] if follows else []))
    lines += [f"> [!WARNING]\n> {_cell(reason)}\n" for reason in warnings]
    uncompared = [line for line in reasons(report) if line.startswith("not compared")]
    notes = [*differing(report.differences), *uncompared]
    lines += [f"- {_cell(note)}" for note in notes]
    lines += [""] if notes else []
    shown = (
        worst_first(report.with_verdict(Verdict.REGRESSED))
        + report.with_verdict(Verdict.INCONCLUSIVE)
        + report.with_verdict(Verdict.IMPROVED)
    )
    rest = report.with_verdict(Verdict.PASS)
    if shown:
        lines += [*_markdown_table(shown), ""]
    why = why_of(report)
    if why:
        lines += ["**Why**", "", *(f"- {_cell(line)}" for line in why), ""]
    if report.ratchet:
        lines += [f"To keep what improved: `{report.ratchet}`", ""]
    if rest:
        lines += [
            f"<details><summary>{counted(len(rest), 'metric')} without a significant change</summary>",
            "",
            *_markdown_table(rest),
            "",
            "</details>",
            "",
        ]
    return printable("\n".join(lines).rstrip() + "\n")


def _markdown_table(judgments: tuple[Judgment, ...]) -> list[str]:
    lines = ["| | metric | before | after | change | interval | |", "|---|---|---:|---:|---:|---:|---|"]
    for judgment in judgments:
        note = "; ".join(part for part in (judgment.reason, removed(judgment)) if part)
        cells = (
            f"{_MARKS[judgment.verdict]} {judgment.verdict}",
            f"`{judgment.key}`",
            quantity(judgment.before, judgment.unit),
            quantity(judgment.after, judgment.unit),
            change(judgment),
            interval(judgment),
            note,
        )
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


# JSON: the whole report


def as_json(report: Report) -> str:
    """Format the check as JSON."""
    summary = {"headline": headline(report), "exit_code": report.exit_code, "ratchet": report.ratchet}
    return answer_text("check", asdict(report) | summary)


# JUnit XML: each metric is a test case in a CI server's test view


def as_junit(report: Report) -> str:
    """Format the check as JUnit XML."""
    why = "\n".join(why_of(report))
    fails = report.inconclusive is Inconclusive.FAIL
    cases = [_case(judgment, why, fails=fails) for judgment in report.judgements]
    cases += [_broken("input", reason, "error") for reason in report.unusable + report.unanswered]
    cases += [_broken(f"finding {finding.code}", finding_words(finding), "failure") for finding in report.new_findings]
    body = "".join(cases)
    counts = f'tests="{len(cases)}" failures="{body.count("<failure ")}" errors="{body.count("<error ")}"'
    counts += f' skipped="{body.count("<skipped ")}"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites {counts}><testsuite name="usp-prof check" {counts}>\n{body}</testsuite></testsuites>\n'
    )


def _case(judgment: Judgment, why: str, *, fails: bool) -> str:
    text = sentence(judgment)
    if judgment.verdict is Verdict.REGRESSED or (judgment.verdict is Verdict.INCONCLUSIVE and fails):
        return _broken(judgment.key, text, "failure", why)
    if judgment.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARED):
        message = quoteattr(f"{judgment.verdict}: {judgment.reason}")
        return f"{_open(judgment.key)}<skipped message={message}/></testcase>\n"
    return f"{_open(judgment.key)}<system-out>{escape(text)}</system-out></testcase>\n"


def _broken(name: str, message: str, tag: str, detail: str = "") -> str:
    return f"{_open(name)}<{tag} message={quoteattr(message)}>{escape(detail)}</{tag}></testcase>\n"


def escape(text: str) -> str:
    """Escape text for XML 1.0, which has no control characters."""
    return xml_escape(printable(text))


def quoteattr(text: str) -> str:
    """Escape and quote text for an attribute."""
    return xml_quoteattr(printable(text))


def _open(name: str) -> str:
    return f'<testcase classname="usp_prof" name={quoteattr(name)}>'


# GitHub workflow commands: one annotation for each item that needs attention


def as_annotations(report: Report) -> str:
    """Format the check as workflow commands (`::error title=...::text`)."""
    lines = [_command("error", "usp-prof", reason) for reason in report.unusable + report.unanswered]
    why = "\n".join(why_of(report))
    lines += [
        _command("error", f"usp-prof: {judgment.key} regressed", f"{sentence(judgment)}\n{why}".rstrip())
        for judgment in worst_first(report.with_verdict(Verdict.REGRESSED))
    ]
    lines += [
        _command("error", f"usp-prof: new finding {finding.code}", finding.title) for finding in report.new_findings
    ]
    if not report.unusable:
        lines += [
            _command("warning", f"usp-prof: {judgment.key} inconclusive", sentence(judgment))
            for judgment in report.with_verdict(Verdict.INCONCLUSIVE)
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
    return for_log(printable(text)).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
