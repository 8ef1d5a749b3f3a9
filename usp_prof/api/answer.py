"""Answers: a sentence, a DataFrame, metrics and a picture; a notebook shows all of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from usp_prof.model.errors import UsageError
from usp_prof.report.format import quantity
from usp_prof.report.words import health_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from usp_prof.charts.inputs import ChartInput
    from usp_prof.model.health import HealthRow
    from usp_prof.model.metric import Value

HEAD = 8
"""Rows of the table that a notebook shows under the picture."""

_UNITS = {
    "share": "share_fraction",
    "efficiency": "efficiency_fraction",
    "mfu": "mfu_fraction",
    "slowdown": "slowdown_ratio",
    "algbw": "algbw_bytes_per_second",
    "busbw": "busbw_bytes_per_second",
    "intensity": "intensity_flop_per_byte",
    "rate_flops": "rate_flop_per_second",
    "ns": "time_ns",
}
"""Columns of the analyses' tables whose names do not tell their unit, and how they are called here."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer:
    """One question's answer. Times are nanoseconds, sizes bytes, shares 0..1; names of columns end in the unit."""

    question: str
    """The question, as a user would ask it."""
    sentence: str
    """The answer in a sentence or two."""
    metric_values: tuple[Value, ...]
    """Every metric value with its dimensions (rank, step, axis, ...)."""
    notes: tuple[HealthRow, ...]
    """What could not be known, and why."""
    picture: ChartInput | None
    """What `plot` draws, as plain columns; None where there is nothing to draw."""
    make_frame: Callable[[], pd.DataFrame]

    @property
    def df(self) -> pd.DataFrame:
        """The answer's table, each column named with its unit; a new DataFrame each time."""
        return self.make_frame().rename(columns=_UNITS)

    @property
    def metrics(self) -> dict[str, float]:
        """The figures over all selected ranks and steps, by metric id (see the reference of metrics for units)."""
        return {value.metric.id: value.value for value in self.metric_values if not value.dims}

    @property
    def metric_table(self) -> pd.DataFrame:
        """Every metric value: id, value, unit, and a column for each dimension, empty where a value has none."""
        import pandas as pd  # noqa: PLC0415 - loaded by those who ask for a DataFrame

        rows = [
            {"metric": value.metric.id, "value": value.value, "unit": str(value.metric.unit), **value.dims}
            for value in self.metric_values
        ]
        return pd.DataFrame(rows, columns=None if rows else ["metric", "value", "unit"])

    def plot(self, theme: Literal["light", "dark"] = "light") -> Any:  # noqa: ANN401 - a Bokeh figure
        """Draw the picture as a Bokeh figure, to be shown with `bokeh.io.show`.

        Raises `UspProfError` where there is nothing to draw, or Bokeh is not installed.
        """
        if self.picture is None:
            raise UsageError(f"this answer has no picture: {self.sentence}", hint="its notes say what is missing")
        from usp_prof.charts import draw  # noqa: PLC0415 - Bokeh is loaded by those who draw
        from usp_prof.charts.theme import THEMES  # noqa: PLC0415

        try:
            return draw(self.picture, THEMES[theme])
        except ModuleNotFoundError as error:
            raise UsageError("Bokeh is not installed", hint="pip install 'usp-prof[report]'") from error

    def explain(self) -> str:
        """Say what the figures mean, how each is counted, and what could not be known."""
        lines = [self.question, f"  {self.sentence}", ""]
        for value in self.metric_values:
            if not value.dims:
                lines.append(f"{value.metric.title}: {quantity(value.value, value.metric.unit)} ({value.metric.id})")
                lines.append(f"  {value.metric.doc}")
        told = [f"{severity}: {line}" for severity, line in health_lines(self.notes)]
        return "\n".join([*lines, *(["", "What could not be known, or is to be doubted:"] if told else []), *told])

    def __repr__(self) -> str:
        return f"{self.question}\n{self.sentence}"

    def _repr_html_(self) -> str:
        """Show the sentence, the picture and the head of the table in a notebook."""
        from usp_prof.charts.svg import as_svg  # noqa: PLC0415 - loaded by those who look

        table = self.df
        picture = as_svg(self.picture) if self.picture is not None else ""
        more = f"<p><small>{HEAD} of {len(table):,} rows</small></p>" if len(table) > HEAD else ""
        return (
            f"<p><b>{escape(self.question)}</b><br>{escape(self.sentence)}</p>{picture}"
            f"{table.head(HEAD).to_html(index=False, na_rep='', float_format='{:,.4g}'.format)}{more}"
        )
