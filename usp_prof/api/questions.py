"""Questions about a run, recorded or predicted: each is a method, answered by the analyses."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from usp_prof.analyses.result import frame
from usp_prof.api.answer import Answer
from usp_prof.api.asking import Asking, Ranks, Steps
from usp_prof.contract import ModelEntry
from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Unit
from usp_prof.model.selection import NOTHING_ASSUMED, whole_number
from usp_prof.report.format import quantity
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    import pandas as pd

    from usp_prof.api.compared import Compared
    from usp_prof.api.whole import Report
    from usp_prof.whatif.predict import Prediction


class Questions(Asking):
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
            hint = 'write each edit as its own text: run.whatif("no_pauses", "ideal,rank=3")'
            raise UsageError(f"an edit is a string, not {type(odd[0]).__name__}", hint=hint)
        if not edits:
            raise UsageError("no edit was given", hint='run.findings().df["edit"] has those that help this run')
        from usp_prof.model.edit import parse_edit  # noqa: PLC0415 - the replay is loaded only for predictions
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
        from usp_prof.model.hardware import check_device  # noqa: PLC0415 - as above

        sequence = whole_number("sequence", sequence)
        tokens_per_step = whole_number("tokens_per_step", tokens_per_step)
        before = self.tables.assumptions
        assumed_model = _model_of(model, sequence) if model is not None else before.model
        if sequence and model is None:
            recorded = self.tables.manifest.model if self.tables.manifest is not None else None
            if (base_model := assumed_model or recorded) is None:
                raise UsageError("sequence needs a model, and the run has none", hint="pass model=config.json, too")
            assumed_model = replace(base_model, sequence=sequence)
        assumed_convention = check_convention(convention) if convention else before.convention
        is_nothing = not (model or sequence or tokens_per_step or device or convention)
        tokens = tokens_per_step or before.tokens_per_step
        after = replace(
            before,
            model=assumed_model,
            device=check_device(device) or before.device,
            convention=assumed_convention,
            tokens_per_step=tokens,
        )
        self.tables = self.tables.assuming(NOTHING_ASSUMED if is_nothing else after)
        self.__dict__.pop("summary", None)  # it depends on the previous assumptions
        return self


class Predicted(Questions):
    """The run as predicted. It answers the same questions as a recorded run: `.breakdown()`, `.timeline()`.

    Step times are in ns. `gain_fraction` is below 0 if the run gets slower; `error_fraction` is its uncertainty.
    """

    prediction: Prediction
    """The prediction with its graph, timeline and layouts."""

    def __init__(self, name: str, prediction: Prediction) -> None:
        self.name = f"{name} with {', '.join(map(str, prediction.edits))}"
        self.prediction = prediction
        self._before_name = name
        from usp_prof.whatif.predicted import predicted_tables  # noqa: PLC0415 - as above

        self.tables = predicted_tables(prediction)

    @property
    def replayed(self) -> str:
        """The ranks that represent all ranks, if the run is too large to replay completely; otherwise empty."""
        return self.prediction.replayed.which

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return self.prediction.gain_fraction

    @property
    def error_fraction(self) -> float:
        """The uncertainty of the gain, as a share of the step."""
        return self.prediction.error_fraction

    @property
    def before_ns(self) -> float:
        """The step before (mean over ranks and steps), without profiler overhead if that is known."""
        return self.prediction.before_ns

    @property
    def after_ns(self) -> float:
        """The predicted step."""
        return self.prediction.after_ns

    @property
    def df(self) -> pd.DataFrame:
        """One row: the edits, the step before and after, gain, error, basis, and which ranks were `replayed`."""
        return frame(
            {
                "edits": [", ".join(map(str, self.prediction.edits))],
                "before_ns": [self.before_ns],
                "after_ns": [self.after_ns],
                "gain_fraction": [self.gain_fraction],
                "error_fraction": [self.error_fraction],
                "basis": [str(self.prediction.basis)],
                "replayed": [self.replayed],
            }
        )

    def compare(self) -> Compared:
        """Compare the replayed ranks as recorded and as predicted: metrics, and the parts of the step.

        The steps are those of the prediction, without warm-up.
        """
        from usp_prof.api.compared import compare_predicted  # noqa: PLC0415 - as above
        from usp_prof.report.answers.whatif import predicted_steps  # noqa: PLC0415 - as above

        before = self._before_name, self.prediction.replayed.tables
        return compare_predicted(before, (self.name, self.tables), predicted_steps(self.prediction))

    def plot(self, theme: Literal["light", "dark"] = "light") -> Any:  # noqa: ANN401 - a Bokeh figure
        """Draw how the step changes, part by part."""
        return self.compare().plot(theme)

    def explain(self) -> str:
        """Return what was changed, how much it gains, and how certain that is."""
        gain, error = (quantity(figure, Unit.FRACTION) for figure in (self.gain_fraction, self.error_fraction))
        before, after = (quantity(figure, Unit.NS) for figure in (self.before_ns, self.after_ns))
        text = (
            f"With {', '.join(map(str, self.prediction.edits))} the step of {before} would take {after}: "
            f"a gain of {gain} \u00b1{error} ({self.prediction.basis.word})."
        )
        return f"{text} The prediction is {self.replayed}." if self.replayed else text

    def __repr__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        return self.compare()._repr_html_().replace("<p>", f"<p>{self.explain()}<br>", 1)


def _model_of(model: str | Path, sequence: int) -> ModelEntry:
    """Return a model by name, or from a file, which does not need every size for MFU."""
    from usp_prof.model.files import is_there  # noqa: PLC0415 - needed only for assumptions
    from usp_prof.model.flops import load  # noqa: PLC0415
    from usp_prof.model.known_models import model_named  # noqa: PLC0415

    if not isinstance(model, (str, Path)):
        raise UsageError(f"the model is a name or a file, not {type(model).__name__}", hint='model="Llama-3-8B"')
    path = Path(model)
    is_file = path.suffix == ".json" or is_there(path)
    return load(path, sequence) if is_file else model_named(str(model), sequence)
