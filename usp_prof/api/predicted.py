"""Predicted runs: what edits would make of a run, how sure that is, and the run itself to be asked further."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from usp_prof.api.compared import compare_predicted
from usp_prof.api.questions import Questions
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity
from usp_prof.whatif.predicted import predicted_tables

if TYPE_CHECKING:
    import pandas as pd

    from usp_prof.api.compared import Compared
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.predict import Prediction


class Predicted(Questions):
    """The run as it would be. It answers every question that a recorded one does: `.breakdown()`, `.timeline()`.

    Whole times are ns. `gain_fraction` is below 0 where the run gets slower; `error_fraction` is its own uncertainty.
    """

    prediction: Prediction
    """The prediction with its graph, timeline and layouts."""

    def __init__(self, name: str, before: TableSet, prediction: Prediction) -> None:
        self.name = f"{name} with {', '.join(map(str, prediction.edits))}"
        self.prediction = prediction
        self._before_name, self._before = name, before
        self.tables = predicted_tables(before, prediction)

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return self.prediction.gain_fraction

    @property
    def error_fraction(self) -> float:
        """How sure the gain is, as a share of the step."""
        return self.prediction.error_fraction

    @property
    def before_ns(self) -> float:
        """The step as recorded (mean over ranks and settled steps)."""
        return self.prediction.before_ns

    @property
    def after_ns(self) -> float:
        """The step as predicted."""
        return self.prediction.after_ns

    @property
    def df(self) -> pd.DataFrame:
        """One row: the edits, the step before and after, gain, error, basis (replayed or modelled)."""
        from usp_prof.analyses.result import frame  # noqa: PLC0415 - pandas is loaded by those who ask

        return frame(
            {
                "edits": [", ".join(map(str, self.prediction.edits))],
                "before_ns": [self.before_ns],
                "after_ns": [self.after_ns],
                "gain_fraction": [self.gain_fraction],
                "error_fraction": [self.error_fraction],
                "basis": [str(self.prediction.basis)],
            }
        )

    def compare(self) -> Compared:
        """Set the recorded run and the predicted one side by side: metrics, and the parts of the step."""
        return compare_predicted((self._before_name, self._before), (self.name, self.tables))

    def plot(self, theme: Literal["light", "dark"] = "light") -> Any:  # noqa: ANN401 - a Bokeh figure
        """Draw how the step changes, part by part."""
        return self.compare().plot(theme)

    def explain(self) -> str:
        """Say what was changed, what it is worth and how sure that is."""
        gain, error = (quantity(each, Unit.FRACTION) for each in (self.gain_fraction, self.error_fraction))
        before, after = (quantity(each, Unit.NS) for each in (self.before_ns, self.after_ns))
        return (
            f"With {', '.join(map(str, self.prediction.edits))} the step of {before} would take {after}: "
            f"a gain of {gain} \u00b1 {error} ({self.prediction.basis})."
        )

    def __repr__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        return self.compare()._repr_html_().replace("<p>", f"<p>{self.explain()}<br>", 1)
