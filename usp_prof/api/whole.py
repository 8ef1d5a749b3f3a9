"""Answers about the complete run: the report with its summary, the findings, the timeline of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from usp_prof.analyses.result import columns_of, frame
from usp_prof.api import sentences
from usp_prof.api.answer import Answer
from usp_prof.api.pictures import gains, stack_of
from usp_prof.findings import find_all
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.files import write
from usp_prof.model.finding import Finding
from usp_prof.model.health import gathered
from usp_prof.model.printable import counted
from usp_prof.model.selection import Selection
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Document, KeyFigures
from usp_prof.report.figures import Figures
from usp_prof.report.run_facts import run_facts
from usp_prof.report.sections.timeline import slices_of
from usp_prof.report.words import finding_lines, ranks_phrase
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    import pandas as pd


_FORMS = {".html": "html", ".htm": "html", ".json": "json", ".md": "markdown"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Report:
    """The answers to all questions in one document, as `usp-prof analyze` writes it."""

    document: Document
    _make_timeline: Callable[[], str] | None = None
    """Return the interactive timeline for the HTML report."""

    @property
    def summary(self) -> Answer:
        """The first screen: `.df` has the key figures, each with its unit."""
        document = self.document
        return Answer(
            question="Where does the step go, and what should be done about it?",
            sentence=sentences.naming_ranks(document.run, sentences.summary(document, Figures(document.values))),
            metric_values=document.values,
            notes=document.health,
            picture=stack_of(document.summary.blocks),
            _make_frame=self._key_figures,
        )

    def text(self, form: str = "markdown") -> str:
        """Return the report as `markdown`, `json` or `html` (one self-contained file)."""
        from usp_prof.report.writers import json_text, markdown, webpage  # noqa: PLC0415 - only one of them is needed

        if form == "markdown":
            return markdown.write(self.document)
        if form == "json":
            return json_text.write(self.document)
        if form == "html":
            if self._make_timeline is None:
                return webpage.write([self.document])
            from usp_prof.timeline.page import assets  # noqa: PLC0415 - as above

            return webpage.write([self.document], [self._make_timeline()], assets())
        raise unknown_name("form of a report", form, ("markdown", "json", "html"))

    def write(self, path: str | Path) -> Path:
        """Write the report to a file and return its path; the suffix (.html, .md, .json) selects the format."""
        file = Path(path)
        if file.suffix not in _FORMS:
            raise UsageError(
                f"the format of {file.name} is unknown", hint=f"use a name that ends in {', '.join(_FORMS)}"
            )
        write(file, self.text(_FORMS[file.suffix]), "choose an existing folder")
        return file

    def _key_figures(self) -> pd.DataFrame:
        blocks = [block for block in self.document.summary.blocks if isinstance(block, KeyFigures)]
        figures = [figure for block in blocks for figure in block.figures]
        return frame(
            {
                **columns_of(figures, figure="label", value="value"),
                "unit": [str(figure.unit) for figure in figures],
                **columns_of(figures, remark="second"),
            }
        )

    def __repr__(self) -> str:
        return f"Report({self.document.run.name!r}, {counted(len(self.document.findings), 'finding')})"

    def _repr_html_(self) -> str:
        shown = "".join(f"<li>{escape(section.title)}</li>" for section in self.document.sections)
        return f"{self.summary._repr_html_()}<p>Sections of the report:</p><ul>{shown}</ul>"


def report_of(tables: TableSet, name: str, selection: Selection) -> Report:
    """Answer every question."""
    from usp_prof.timeline.page import embedded  # noqa: PLC0415 - needed only for HTML

    document = build(tables, analyze(tables, selection), name=name, selection=selection)
    return Report(document, lambda: embedded(tables, selection, focus=document.verdict.straggler))


def findings_of(tables: TableSet, selection: Selection) -> Answer:
    """Apply the rules; the table has one row per finding, most important first."""
    outcome = find_all(tables, selection)
    return Answer(
        question="What is wrong, and how much would each fix save?",
        sentence=sentences.findings(outcome.findings, outcome.skipped),
        metric_values=(),
        notes=gathered((*outcome.skipped, *tables.health)),
        picture=gains(outcome.findings),
        _make_frame=lambda: _finding_frame(outcome.findings),
    )


def _finding_frame(findings: Sequence[Finding]) -> pd.DataFrame:
    return frame(
        {
            **columns_of(findings, code="code", title="title", where="place"),
            **columns_of(findings, "gain_fraction", "error_fraction"),
            "basis": [str(finding.basis) for finding in findings],
            "level": [str(finding.level) for finding in findings],
            **columns_of(findings, "edit", "advice"),
            "in_words": [" ".join(finding_lines(finding)) for finding in findings],
        }
    )


def timeline_of(tables: TableSet, name: str, selection: Selection) -> Answer:
    """Draw one step on aligned clocks, the middle one of those selected; the table has its activities."""
    facts = run_facts(tables, selection, "")
    if not facts.steps:
        raise UsageError("the selection has no known steps", hint="see the notes of run.breakdown()")
    chosen = facts.steps[len(facts.steps) // 2]
    drawn = slices_of(tables, facts.ranks, chosen)
    if drawn is not None:
        sentence = f"Step {chosen} of {name} on {ranks_phrase(facts)}, on aligned clocks."
    else:
        sentence = f"No device work was recorded in step {chosen} of {name}."
    return Answer(
        question=f"What does every rank do in step {chosen}?",
        sentence=sentence,
        metric_values=(),
        notes=gathered(tables.health),
        picture=drawn,
        _make_frame=lambda: _activities(tables, facts.ranks, chosen),
    )


def _activities(tables: TableSet, ranks: Sequence[int], step: int) -> pd.DataFrame:
    """Return the activities of a step, each rank's on its own clock, as in the table `activities`."""
    table = tables.arrow("activities", ranks)
    of_step: pd.DataFrame = table.filter(pc.equal(table["step"], pa.scalar(step))).to_pandas()
    return of_step
