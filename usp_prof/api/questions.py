"""Questions about a run: each is a method, answered by the analyses and worded as in the report."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from usp_prof.api import sentences
from usp_prof.api.answer import Answer, picture
from usp_prof.model.errors import UsageError
from usp_prof.model.selection import EVERYTHING, NOTHING_ASSUMED, Selection, numbers

if TYPE_CHECKING:
    from typing import Self

    import pandas as pd

    from usp_prof.analyses.kernels import KernelsResult
    from usp_prof.analyses.result import Result
    from usp_prof.api.compared import Predicted
    from usp_prof.api.whole import Report
    from usp_prof.contract import ModelEntry
    from usp_prof.tables.table_set import TableSet

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
    "breakdown": _Question("Where does the step go?", "breakdown"),
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
"""The questions, by the method of `Questions`."""


class Questions:
    """The questions that an opened run answers. Every method takes the ranks and steps to look at, all by default.

    All ranks are read in any case: waits between ranks are not known from a few of them. The pipeline bubble and the
    critical path cover all ranks; `ranks` selects their rows. Findings cover all steps; `ranks` selects whose.
    """

    name: str
    """The run's name."""
    tables: TableSet
    """The tables of all ranks, the input of the analyses."""

    def breakdown(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return where the step goes: compute, exposed communication by axis, copies, idle by cause.

        `.df` has one row per rank and step; its parts add up to `step_ns` exactly.
        """
        return self._ask("breakdown", ranks, steps)

    def overlap(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return how much communication compute hides. `.df` has one row per rank, step and axis."""
        return self._ask("overlap", ranks, steps)

    def communication(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return what collectives cost: waiting, transfer, bandwidth. `.df`: one row per axis, operation and size."""
        return self._ask("communication", ranks, steps)

    def pipeline(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return how large the pipeline bubble is. The picture is the recorded schedule."""
        return self._ask("pipeline", ranks, steps)

    def stragglers(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return which rank the others wait for. `.df` has one row per rank and axis.

        `.metric_table` has each rank's `straggler_cost` per step, which shows since when it is late.
        """
        return self._ask("stragglers", ranks, steps)

    def kernels(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return which ops take the time. `.df` has one row per op and shape, longest first."""
        return self._ask("kernels", ranks, steps)

    def mfu(self, *, ranks: Ranks | None = None, steps: Steps | None = None, convention: str = "") -> Answer:
        """Return how much of the peak the model uses, by a FLOP convention (by default, the one of `assume`).

        `.df` has one row per convention. Its MFU is `per_token_flop * tokens_per_second / (devices *
        peak_flop_per_second)`.
        """
        run_to_ask = copy(self).assume(convention=convention) if convention else self
        return run_to_ask._ask("mfu", ranks, steps)  # noqa: SLF001 - this run, with another assumption

    def host(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return whether the host keeps the device waiting. `.df` has one row per rank."""
        return self._ask("host", ranks, steps)

    def memory(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return how full the memory is. `.df` has one row per rank, with its peak."""
        return self._ask("memory", ranks, steps)

    def critical_path(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return which work bounds the run. `.df` has the time on the critical path for each rank and part."""
        return self._ask("critical_path", ranks, steps)

    def findings(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Answer:
        """Return what is wrong and how much each fix would gain. `.df`: one row per finding, most important first."""
        from usp_prof.api.whole import findings_of  # noqa: PLC0415 - rules are loaded only for findings

        return findings_of(self.tables, self._selection(ranks, steps))

    def report(self, *, ranks: Ranks | None = None, steps: Steps | None = None) -> Report:
        """Return all answers in one report. `.write("report.html")` writes it, `.summary` is its first screen."""
        from usp_prof.api.whole import report_of  # noqa: PLC0415 - as above

        return report_of(self.tables, self.name, self._selection(ranks, steps))

    @cached_property
    def summary(self) -> Answer:
        """The first screen of the report: key figures, where the step goes, the most important finding."""
        return self.report().summary

    def timeline(self, step: int | None = None, *, ranks: Ranks | None = None) -> Answer:
        """Return what every rank did in one step (the middle one by default). `.df` has one row per activity."""
        from usp_prof.api.whole import timeline_of  # noqa: PLC0415 - as above

        return timeline_of(self.tables, self.name, self._selection(ranks, step))

    def whatif(self, *edits: str) -> Predicted:
        """Predict the run with edits applied, written as on the command line: `run.whatif("comm_faster=2,axis=dp")`.

        A run too large to replay completely is replayed on representative ranks, which the answer names. Raises
        `UspProfError` for an unknown edit; the reference lists all edits.
        """
        if odd := [edit for edit in edits if not isinstance(edit, str)]:
            hint = 'give each by itself: run.whatif("no_pauses", "ideal,rank=3")'
            raise UsageError(f"an edit is a text, not {type(odd[0]).__name__}", hint=hint)
        if not edits:
            raise UsageError("no edit was given", hint='run.findings().df["edit"] has those that help this run')
        from usp_prof.api.compared import Predicted  # noqa: PLC0415 - the replay is loaded only for predictions
        from usp_prof.model.edit import parse_edit  # noqa: PLC0415
        from usp_prof.whatif.predict import predict_on  # noqa: PLC0415
        from usp_prof.whatif.replayed_ranks import replayed_ranks  # noqa: PLC0415

        parsed = [parse_edit(text) for text in edits]
        return Predicted(self.name, predict_on(replayed_ranks(self.tables, parsed), parsed))

    def assume(
        self,
        *,
        model: str | Path | None = None,
        sequence: int = 0,
        tokens_per_step: int = 0,
        device: str = "",
        convention: str = "",
    ) -> Self:
        """Set what traces do not record, for MFU and what-if: the model, its sequence length, the device.

        `model` is a name such as `Llama-3-8B`, or a `config.json`. `tokens_per_step` counts all ranks together: the
        global batch, in tokens.

        The values override the trace for all later questions. Omitted arguments keep their previous values; `assume()`
        without arguments resets all. Returns the run.
        """
        from usp_prof.model.flops import check_convention  # noqa: PLC0415 - needed only for assumptions

        before = self.tables.assumptions
        assumed_model = _model_of(model, sequence) if model is not None else before.model
        if sequence and model is None:
            recorded = self.tables.manifest.model if self.tables.manifest is not None else None
            if (of_run := assumed_model or recorded) is None:
                raise UsageError("no model is known that has a sequence length", hint="give its model=config.json, too")
            assumed_model = replace(of_run, sequence=sequence)
        assumed_convention = check_convention(convention) if convention else before.convention
        if min(sequence, tokens_per_step) < 0:
            raise UsageError("a sequence length and tokens per step are above 0", hint="omit unknown values")
        is_nothing = not (model or sequence or tokens_per_step or device or convention)
        tokens = tokens_per_step or before.tokens_per_step
        after = replace(
            before,
            model=assumed_model,
            device=device or before.device,
            convention=assumed_convention,
            tokens_per_step=tokens,
        )
        self.tables = self.tables.assuming(NOTHING_ASSUMED if is_nothing else after)
        self.__dict__.pop("summary", None)  # it depends on the previous assumptions
        return self

    def _ask(self, name: str, ranks: Ranks | None, steps: Steps | None) -> Answer:
        from usp_prof.findings.engine import repairs_in  # noqa: PLC0415 - not needed to open a run
        from usp_prof.model.finding import NOTHING_FOUND, Found  # noqa: PLC0415 - as above
        from usp_prof.report.build import analyse, build  # noqa: PLC0415 - as above
        from usp_prof.report.figures import Figures  # noqa: PLC0415
        from usp_prof.report.run_facts import run_facts  # noqa: PLC0415
        from usp_prof.report.sections import SECTIONS  # noqa: PLC0415

        question = _QUESTIONS[name]
        selection = self._selection(ranks, steps)
        results = analyse(self.tables, selection, (question.analysis, *question.further))
        # Only the report section of this analysis is built, because it has the picture.
        without = [section for section, _ in SECTIONS if section != question.analysis]
        document = build(
            self.tables,
            results,
            name=self.name,
            selection=selection,
            found=Found((), (), repairs=repairs_in(self.tables)) if name == "stragglers" else NOTHING_FOUND,
            without=without,
        )
        section = next(iter(document.sections), None)
        result = results[question.analysis]
        figures = Figures(document.values)
        options: dict[str, dict[str, str | bool]] = {
            "mfu": {"convention": self.tables.assumptions.convention},
            "kernels": {"paced": document.run.paced, "longest": _longest_ops(result) if name == "kernels" else ""},
        }
        sentence = getattr(sentences, name)(figures, **options.get(name, {}))
        shown = selection.ranks if selection.ranks is not None else self.tables.ranks
        values = [value for value in result.values() if value.dims.get("rank", shown[0]) in shown]
        facts = run_facts(self.tables, EVERYTHING, self.name) if question.is_of_all_ranks else document.run
        return Answer(
            question=question.text,
            sentence=sentences.of_ranks(facts, sentence),
            metric_values=tuple(values),
            notes=tuple(sorted(result.notes)),
            picture=picture(question.analysis, section, result, figures),
            _make_frame=lambda: _rows_of(result.to_pandas(), shown),
        )

    def _selection(self, ranks: Ranks | None, steps: Steps | None) -> Selection:
        chosen = Selection(None if ranks is None else numbers("ranks", ranks), *_bounds(steps))
        self.tables.refuse_if_absent(chosen, self.name)
        return chosen


def _longest_ops(result: Result) -> str:
    return sentences.longest_ops(cast("KernelsResult", result).ops)


def _model_of(model: str | Path, sequence: int) -> ModelEntry:
    """Return a model by name, or from a file, which does not need every size for MFU."""
    from usp_prof.model.files import is_there  # noqa: PLC0415 - needed only for assumptions
    from usp_prof.model.flops import load  # noqa: PLC0415
    from usp_prof.model.known_models import model_named  # noqa: PLC0415

    path = Path(model)
    is_file = path.suffix == ".json" or is_there(path)
    return load(path, sequence) if is_file else model_named(str(model), sequence)


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
