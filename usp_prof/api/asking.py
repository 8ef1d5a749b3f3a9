"""Questions to a run: the analysis behind each, over the chosen ranks and steps, with the words of the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from usp_prof.analyses.kernels import KernelsResult
from usp_prof.api import sentences
from usp_prof.api.answer import Answer
from usp_prof.api.pictures import picture
from usp_prof.findings.engine import repairs_in
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import NOTHING_FOUND, Found
from usp_prof.model.selection import EVERYTHING, Selection, numbers
from usp_prof.report.figures import Figures
from usp_prof.report.run_facts import run_facts
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    import pandas as pd


Ranks = int | Iterable[int]
"""One rank, or several."""
Steps = int | tuple[int, int] | Iterable[int]
"""One step, the first and last step as a pair (both included), or a range or list of consecutive steps."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A question in words, the analysis that answers it, and further analyses whose figures the sentence needs."""

    text: str
    analysis: str
    further: tuple[str, ...] = ()
    is_of_all_ranks: bool = False
    """The figure is undefined for a subset of ranks: `ranks` then selects only rows and the values per rank."""


_QUESTIONS = {
    "breakdown": _Question("Where does the step go?", "breakdown", ("step_time",)),
    "overlap": _Question("How much communication does compute hide?", "overlap", ("breakdown",)),
    "communication": _Question("What do collectives cost, and is it waiting or transfer?", "collectives"),
    "pipeline": _Question("How large is the pipeline's bubble?", "pipeline", is_of_all_ranks=True),
    "stragglers": _Question("Which rank do the others wait for?", "stragglers", ("step_time",)),
    "kernels": _Question("Which ops and kernels take the time, and how near are they to the roofline?", "kernels"),
    "mfu": _Question("How much of the peak does the model use?", "mfu", ("step_time",)),
    "host": _Question("Does the host keep the device waiting?", "host"),
    "memory": _Question("How full is the memory?", "memory"),
    "critical_path": _Question("Which work bounds the run?", "critical_path", is_of_all_ranks=True),
}
"""The questions, by the name of the method that asks them."""


class Asking:
    """Base class of runs that answer questions: their tables, their name, and how an answer is built."""

    name: str
    tables: TableSet

    def _ask(self, name: str, ranks: Ranks | None, steps: Steps | None) -> Answer:
        from usp_prof.report.build import analyze, build  # noqa: PLC0415 - as above
        from usp_prof.report.sections import SECTIONS  # noqa: PLC0415
        from usp_prof.report.sections.compute import roofline  # noqa: PLC0415

        question = _QUESTIONS[name]
        selection = self._selection(ranks, steps)
        results = analyze(self.tables, selection, (question.analysis, *question.further))
        # Only the report section of this analysis is built, because it has the picture.
        without = [section for section in SECTIONS if section != question.analysis]
        document = build(
            self.tables,
            results,
            name=self.name,
            selection=selection,
            search_result=Found((), (), repairs=repairs_in(self.tables)) if name == "stragglers" else NOTHING_FOUND,
            without=without,
        )
        section = next(iter(document.sections), None)
        result = results[question.analysis]
        figures = Figures(document.values)
        options: dict[str, object] = {}
        if name == "mfu":
            options = {"convention": self.tables.assumptions.convention}
        elif name == "kernels":
            kernels = cast("KernelsResult", result)
            options = {
                "time_ns": sentences.time_of_ops(kernels.ops),
                "paced": document.run.paced,
                "has_roofline": roofline(kernels) is not None,
            }
        sentence = (
            getattr(sentences, name)(figures, **options) or "The longest ops are unknown: no compute was recorded."
        )
        shown = selection.ranks if selection.ranks is not None else self.tables.ranks
        values = [value for value in result.values() if value.dims.get("rank", shown[0]) in shown]
        facts = run_facts(self.tables, EVERYTHING, self.name) if question.is_of_all_ranks else document.run
        return Answer(
            question=question.text,
            sentence=sentences.naming_ranks(facts, sentence),
            metric_values=tuple(values),
            notes=tuple(sorted(result.notes)),
            picture=picture(question.analysis, section, result, figures),
            _make_frame=lambda: _rows_of(result.to_pandas(), shown),
        )

    def _selection(self, ranks: Ranks | None, steps: Steps | None) -> Selection:
        chosen = Selection(None if ranks is None else numbers("ranks", ranks), *_bounds(steps))
        self.tables.refuse_if_absent(chosen, self.name)
        return chosen


def _rows_of(table: pd.DataFrame, ranks: tuple[int, ...]) -> pd.DataFrame:
    """Return the rows of these ranks, if rows belong to ranks."""
    if "rank" not in table or table["rank"].isin(ranks).all():
        return table
    return table[table["rank"].isin(ranks)].reset_index(drop=True)


def _bounds(steps: Steps | None) -> tuple[int | None, int | None]:
    """Return the first and the last step, both included; None means from the start, or to the end."""
    if steps is None:
        return None, None
    step_numbers = numbers("steps", steps)
    match steps:
        case tuple((first, last)) if last < first:
            raise UsageError(f"steps {steps} end before they begin", hint=f"({last}, {first}) are the steps between")
        case tuple((first, last)):
            return first, last
    if not step_numbers:
        raise UsageError(f"{steps} selects no steps", hint="range(3, 8) are the steps 3 to 7")
    first, last = step_numbers[0], step_numbers[-1]
    if last - first >= len(step_numbers):
        hint = f"({first}, {last}) are all from the first to the last; others are asked for one by one"
        raise UsageError(f"steps {steps} are not consecutive", hint=hint)
    return first, last
