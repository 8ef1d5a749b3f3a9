from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from gate_runs import measured, series, steps, with_fact

from usp_prof import checking
from usp_prof.gate.facts import FactKind
from usp_prof.gate.judgment import Judgment, Verdict
from usp_prof.gate.measured import Baseline, Measured, SeenFinding
from usp_prof.gate.policy import Policy
from usp_prof.gate.verdict import Inconclusive, Report, check
from usp_prof.model.finding import Level
from usp_prof.model.metric import Better, Unit
from usp_prof.report.answers.wording import headline

RNG = np.random.default_rng(11)
NOISE = steps(RNG)


def _run(mean: float, **other: object) -> Measured:
    step_times = [value * mean / 1e9 for value in NOISE]
    return measured(
        series("step_time", step_times),
        series("compute_time", [60e6] * 20),
        series("idle_time", [value - 60e6 for value in step_times], cause="host"),
        series("idle_fraction", [0.1] * 20, unit=Unit.FRACTION, cause="host"),
        **other,  # type: ignore[arg-type]
    )


def _report(mean: float = 1.08e9, **other: object) -> Report:
    return check(Baseline((_run(1e9, label="old"),)), _run(mean, label="new", **other), Policy())


BAD = SeenFinding("X1", Level.CRITICAL, "Late | input", "rank=2")


@pytest.mark.parametrize("form", checking.FORMATS)
@pytest.mark.parametrize(
    "report",
    [
        _report(),
        _report(1e9),
        _report(0.9e9),
        _report(ranks=(0, 1)),
        _report(1e9, findings=(BAD,)),
        _report(facts=with_fact(FactKind.HARDWARE, "device", "A100")),
    ],
    ids=["regressed", "pass", "improved", "missing", "finding", "hardware"],
)
def test_every_writer_writes_every_verdict(report: Report, form: str) -> None:
    first = checking.render(report, form)
    assert first == checking.render(report, form)
    assert first.endswith("\n")
    assert not re.search(r"\bnan\b", first.lower())


def test_the_terminal_starts_with_the_verdict() -> None:
    lines = checking.text(_report()).splitlines()
    assert lines[0] == "regressed: step_time +8.00%"
    assert lines[1] == "new compared with old"
    assert "+80." in next(line for line in lines if "per step:" in line)
    assert "\x1b[" in checking.render(_report(), "terminal", color=True)
    assert "to keep what improved: usp-prof baseline save new -o baseline.json" in checking.text(_report(0.9e9))


def test_the_json_is_valid() -> None:
    data = json.loads(checking.render(_report(), "json"))
    assert (data["format"], data["verdict"], data["exit_code"]) == ("usp-prof-check", "regressed", 1)
    step = next(judgment for judgment in data["judgements"] if judgment["key"] == "step_time")
    assert step["change"] == pytest.approx(0.08)
    assert step["low"] < 0.08 < step["high"]


def test_the_markdown_is_a_summary() -> None:
    text = checking.render(_report(findings=(BAD,)), "markdown")
    assert text.startswith("## ❌ usp-prof: regressed: step_time +8.00%, new finding X1")
    assert "| ❌ regressed | `step_time` |" in text
    assert "Late \\| input" in text


def test_the_junit_file_can_be_parsed() -> None:
    root = ET.fromstring(checking.render(_report(findings=(BAD,)), "junit"))  # noqa: S314 - our own text
    assert root.attrib["failures"] == "2"
    failed = [case.attrib["name"] for case in root.iter("testcase") if case.find("failure") is not None]
    assert failed == ["step_time", "finding X1"]
    missing = ET.fromstring(checking.render(_report(ranks=(0,)), "junit"))  # noqa: S314 - our own text
    assert missing.attrib["errors"] == "1"
    assert int(missing.attrib["skipped"]) >= 1
    hard = replace(_report(ranks=(0,)), inconclusive=Inconclusive.FAIL)
    assert int(ET.fromstring(checking.render(hard, "junit")).attrib["failures"]) >= 1  # noqa: S314 - our own text


def test_annotations_are_workflow_commands() -> None:
    lines = checking.render(_report(findings=(BAD,)), "github").splitlines()
    assert lines[0].startswith("::error title=usp-prof%3A step_time regressed::step_time: ")
    assert "%0A" in lines[0]
    assert checking.render(_report(1e9), "github") == "::notice title=usp-prof::pass: 2 metrics unchanged\n"
    assert checking.render(_report(ranks=(0,)), "github").startswith("::error title=usp-prof::run new: ranks 1, 2, 3")


def test_passed_metrics_and_bounds_are_counted_separately() -> None:
    """One metric used to be "1 metrics", and a bound without a baseline "as before"."""
    judged = Judgment("step_time", "Step time", Unit.NS, Better.LOWER, Verdict.PASS)
    bound = replace(judged, key="mfu >= 0.38")
    report = replace(_report(1e9), judgements=(judged,))
    assert headline(report) == "pass: 1 metric unchanged"
    assert (
        headline(replace(report, judgements=(judged, judged, bound)))
        == "pass: 2 metrics unchanged and 1 lower bound met"
    )
    assert headline(replace(report, judgements=(bound, bound))) == "pass: 2 lower bounds met"
