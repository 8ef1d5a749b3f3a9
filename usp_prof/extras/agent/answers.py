"""Answers for an agent: each method is a tool, and its docstring is the description that the agent reads.

Every figure comes from the public Python API (`open_run`, `run.report()`, `run.sql`, `run.whatif`, `compare`,
`plan`), so an agent, a notebook and the command line show the same values.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from usp_prof import functions
from usp_prof.api.answer import Answer
from usp_prof.api.whole import Report
from usp_prof.extras.agent.folders import Folders
from usp_prof.extras.agent.reply import Reply, Table, bounded, table_of_arrow, table_of_frame
from usp_prof.extras.planner.functions import plan
from usp_prof.findings import all_rules
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.files import is_there
from usp_prof.model.finding import Finding
from usp_prof.model.health import HealthRow
from usp_prof.model.printable import counted
from usp_prof.model.selection import Selection
from usp_prof.report.run_facts import run_facts
from usp_prof.report.words import finding_lines, health_lines, run_lines
from usp_prof.run import Run, open_run
from usp_prof.tables import catalog
from usp_prof.tables.sql_cells import Cells
from usp_prof.whatif.edits import EDITS, PIPELINE_EDITS

QUESTIONS = (
    "breakdown", "overlap", "communication", "pipeline", "stragglers", "kernels", "mfu", "host", "memory",
    "critical_path",
)  # fmt: skip
_KEPT = 4
"""Number of runs that stay open."""
_LISTED = 100
_NOTES = 8
_SECONDS = 30.0
"""Time limit of a SELECT in seconds."""


@dataclass(eq=False)
class _Opened:
    """A run with its report, which is computed once, so that findings keep their numbers."""

    run: Run

    @cached_property
    def report(self) -> Report:
        return self.run.report()


class Answers:
    """The tools for the runs in some folders."""

    def __init__(self, folders: Folders, cache_dir: str | None = None) -> None:
        self._folders, self._cache_dir = folders, cache_dir
        self._kept: OrderedDict[str, _Opened] = OrderedDict()

    def open(self, path: str = "", run: str = "") -> Reply:
        """List the folders with traces, or open the run at `path` and return what was recorded.

        Paths are relative to the folders that the server was given. If a path has several runs, the newest is opened;
        `run` names another one. Opening reads the files again; the other tools use what was opened.
        """
        if not path:
            return self._folder_list()
        self._kept.pop(_key(path, run), None)
        opened = self._opened(path, run).run
        facts = run_facts(opened.tables, Selection(), opened.name, opened.others)
        return Reply("\n".join(run_lines(facts)), notes=_notes(opened.health))

    def summary(self, path: str, question: str = "", rows: int = 10, run: str = "") -> Reply:
        """Return where the step goes: key figures of the run, or with `question` the answer to one.

        Questions: breakdown, overlap, communication, pipeline, stragglers, kernels, mfu, host, memory, critical_path.
        """
        opened = self._opened(path, run)
        if not question:
            answer = opened.report.summary
            source = "report of all ranks and settled steps; `usp-prof analyze` shows it"
            return Reply(answer.sentence, (table_of_frame(source, answer.df, rows),), _notes(answer.notes))
        if question not in QUESTIONS:
            raise unknown_name("question", question, QUESTIONS)
        answer = getattr(opened.run, question)()
        return Reply(
            answer.sentence,
            (_metrics(answer), table_of_frame(f"run.{question}().df", answer.df, rows)),
            _notes(answer.notes),
        )

    def findings(self, path: str, rows: int = 10, run: str = "") -> Reply:
        """List what is wrong, most important first, and how much each fix would gain.

        A gain no larger than its error is noise: no reason to act. `part_of` is the number of an earlier finding with
        the same cause. Call `evidence` with a finding's number before you report it, and `whatif` with its edit.
        """
        findings = self._opened(path, run).report.document.findings
        finding_rows = tuple(_finding_row(number, finding) for number, finding in enumerate(findings, 1))
        source = "rules over the tables of all ranks; gain_fraction: share of the step that replaying `edit` saves"
        most = bounded(rows)
        table = Table(source, _FINDING_COLUMNS, finding_rows[:most], more=len(finding_rows) > most)
        return Reply(f"{counted(len(findings), 'finding')}." if findings else "No rule found anything.", (table,))

    def evidence(self, path: str, finding: int, rows: int = 20, run: str = "") -> Reply:
        """Return the evidence of a finding, given by its number in `findings`.

        The evidence is its figures, what the rule looks for, and the rows behind it.
        """
        opened = self._opened(path, run)
        findings = opened.report.document.findings
        if not 1 <= finding <= len(findings):
            raise UsageError(f"there is no finding {finding}", hint=f"findings lists {len(findings)}, counted from 1")
        chosen = findings[finding - 1]
        figures = Table(f"rule {chosen.code}", ("figure", "value"), tuple(chosen.evidence.items()))
        tables: tuple[Table, ...] = (figures,)
        if chosen.rows:
            tables += (self._selected(opened.run, chosen.rows, rows),)
        meaning = next((inspect.cleandoc(rule.__doc__ or "") for rule in all_rules() if chosen.code == rule.CODE), "")
        notes = (meaning,) if chosen.rows else (meaning, "No SELECT proves this finding: its figures are all there is.")
        return Reply("\n".join(finding_lines(chosen)), tables, notes)

    def sql(self, path: str, query: str, rows: int = 20, run: str = "") -> Reply:
        """Run one SELECT (DuckDB's SQL) over the tables of all ranks; `tables` documents them.

        Times are integer nanoseconds. Missing integers are -1, missing texts are empty. At most 100 rows are returned:
        aggregate instead of paging.
        """
        opened = self._opened(path, run).run
        table = self._selected(opened, query, rows)
        if table.rows:
            return Reply("", (table,))
        tables = opened.tables
        on_cpu = not any(map(tables.ran_on_gpu, tables.ranks))
        notes = ("The traces have no GPU events: `kernels` is empty, compute is in `activities`.",) if on_cpu else ()
        return Reply("The query returned no rows.", (table,), notes)

    def tables(self, name: str = "") -> Reply:
        """List the tables for `sql`, or the columns of one table with unit and meaning."""
        if not name:
            table_rows = tuple((schema.name, schema.doc) for schema in catalog.SCHEMAS)
            return Reply("", (Table("usp-prof tables", ("table", "meaning"), table_rows),))
        schema = catalog.schema(name)
        columns = tuple((column.name, str(column.kind), column.unit, column.doc) for column in schema.columns)
        return Reply(schema.doc, (Table(f"usp-prof tables {name}", ("column", "kind", "unit", "meaning"), columns),))

    def whatif(self, path: str, edits: list[str] | None = None, run: str = "") -> Reply:
        """Predict the step with edits applied, such as ["rank_as_peers=2"]; without edits, list all available ones.

        A gain no larger than its error is no gain. Several edits are applied together: their gains do not add up.
        """
        if not edits:
            edit_rows = tuple((kind.name, kind.example, kind.doc) for kind in EDITS)
            edit_rows += tuple((kind.name, kind.example, kind.doc) for kind in PIPELINE_EDITS)
            return Reply("", (Table("docs/reference/edits.md", ("edit", "example", "meaning"), edit_rows),))
        predicted = self._opened(path, run).run.whatif(*edits)
        source = (
            "run.whatif: the recorded run replayed with the edits made; before_ns without what recording adds, if known"
        )
        return Reply(predicted.explain(), (table_of_frame(source, predicted.df, 1),))

    def compare(self, before: str, after: str, rows: int = 20) -> Reply:
        """Compare two runs: how the step changes, and the metrics with the largest relative change."""
        compared = functions.compare(self._opened(before).run, self._opened(after).run)
        frame = compared.df
        changed = frame[frame["direction"].isin(["better", "worse", "changed"])]
        relative = (changed["after"] / changed["before"].replace(0, float("nan")) - 1).abs()
        ordered = changed.loc[relative.sort_values(ascending=False, kind="stable").index]
        source = f"usp_prof.compare: {len(changed)} of {len(frame)} metrics changed; units as in the column unit"
        return Reply(repr(compared), (table_of_frame(source, ordered, rows),))

    def plan(  # noqa: PLR0913, PLR0917 - a plan has this many inputs
        self,
        path: str = "",
        model: str = "",
        device: str = "",
        devices: int = 0,
        batch: int = 0,
        sequence: int = 0,
        pinned: dict[str, int | str] | None = None,
        rows: int = 8,
    ) -> Reply:
        """Rank configurations that were never run, for a recorded run's model or for `model` (such as Llama-3-8B).

        Without a run, give model, device (such as H100), devices and batch (sequences per step). `pinned` fixes
        settings: {"tp": 8, "zero": 1}.
        """
        arguments: dict[str, Any] = {
            **(pinned or {}),  # first, so that no setting overrides what is checked below
            "run": self._opened(path).run if path else None,
            "model": self._model(model) or None,
            "sequence": sequence,
            "device": device,
            "devices": devices,
            "batch": batch,
        }
        planned = plan(**arguments)
        basis = "calibrated by the recorded run" if path else "of the hardware table and assumed habits of a trainer"
        source = f"usp_prof.plan: predicted, nothing was measured; {basis}"
        return Reply(planned.explain(), (table_of_frame(source, planned.df, rows),))

    def _model(self, name: str) -> str:
        """Return a model's name unchanged; return a path only if it is in the folders."""
        path = Path(name)
        is_path = bool(name) and (path.suffix == ".json" or len(path.parts) > 1 or is_there(path))
        return str(self._folders.place(name)) if is_path else name

    def _opened(self, path: str, run: str = "") -> _Opened:
        place = self._folders.place(path)  # always: a link may have been created since the last call
        key = _key(path, run)
        if key not in self._kept:
            self._kept[key] = _Opened(open_run(place, run=run or None, cache_dir=self._cache_dir))
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]

    def _folder_list(self) -> Reply:
        folders = self._folders.trace_folders(_LISTED + 1)
        roots = self._folders.roots
        rows = tuple(
            (str(folder.path.relative_to(roots[0]) if len(roots) == 1 else folder.path), folder.files, folder.bytes)
            for folder in folders[:_LISTED]
        )
        source = "file names only; open a folder to see its runs"
        table = Table(source, ("path", "files", "size_bytes"), rows, more=len(folders) > _LISTED)
        return Reply(f"Folders with traces under {', '.join(map(str, self._folders.roots))}.", (table,))

    def _selected(self, run: Run, query: str, rows: int) -> Table:
        answer = run.answer(query, rows=bounded(rows) + 1, seconds=_SECONDS, cells=Cells.TEXT)
        return table_of_arrow(f"SQL over the tables of all ranks: {query}", answer, rows)


_FINDING_COLUMNS = (
    "number", "code", "title", "where", "gain_fraction", "error_fraction", "is_noise", "basis", "level", "part_of",
    "edit", "advice",
)  # fmt: skip


def _finding_row(number: int, finding: Finding) -> tuple[object, ...]:
    part_of = finding.part_of + 1 if finding.part_of >= 0 else None
    return (
        number, finding.code, finding.title, finding.place, finding.gain_fraction, finding.error_fraction,
        finding.is_noise, str(finding.basis), str(finding.level), part_of, finding.edit, finding.advice,
    )  # fmt: skip


def _metrics(answer: Answer) -> Table:
    """Return the figures over all ranks and steps, each with its unit and its definition."""
    overall_values = [value for value in answer.metric_values if not value.dims]
    rows = tuple((value.metric.id, value.value, str(value.metric.unit), value.metric.doc) for value in overall_values)
    return Table("metrics over all ranks and settled steps", ("metric", "value", "unit", "meaning"), rows)


def _notes(health: Iterable[HealthRow]) -> tuple[str, ...]:
    lines = [f"{severity}: {line}" for severity, line in health_lines(health)]
    more = [f"and {len(lines) - _NOTES} more, in the table health"] if len(lines) > _NOTES else []
    return (*lines[:_NOTES], *more)


def _key(path: str, run: str) -> str:
    return f"{path}\n{run}"
