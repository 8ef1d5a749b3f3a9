"""Answers: a sentence, a DataFrame, metrics and a picture; a notebook displays all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from usp_prof.charts import draw
from usp_prof.charts.inputs import ChartInput
from usp_prof.charts.theme import THEMES
from usp_prof.model.errors import UsageError
from usp_prof.model.health import HealthRow
from usp_prof.model.metric import Unit, Value
from usp_prof.model.printable import shortened
from usp_prof.report.format import column, quantity
from usp_prof.report.words import health_lines

if TYPE_CHECKING:
    import pandas as pd


HEAD = 8
"""Number of table rows that a notebook shows below the picture."""
REPEATED_COLUMNS = ("in_words",)
"""Columns that repeat other columns as text: a notebook's table omits them, `.df` has them."""

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
"""Columns of the analyses' tables without a unit in their name, and their names in the API."""


def bokeh_figure(picture: ChartInput, theme: Literal["light", "dark"]) -> Any:  # noqa: ANN401 - a Bokeh figure
    """Draw a picture with Bokeh; raise `UspProfError` if it is not installed."""
    try:
        return draw(picture, THEMES[theme])
    except ModuleNotFoundError as error:
        raise UsageError("Bokeh is not installed", hint="pip install 'usp-prof[report]'") from error


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer:
    """The answer to one question. Times are in ns, sizes in bytes, shares 0..1; column names end in the unit."""

    question: str
    """The question, as a user would ask it."""
    sentence: str
    """The answer in one or two sentences."""
    metric_values: tuple[Value, ...]
    """Every metric value with its dimensions (rank, step, axis, ...)."""
    notes: tuple[HealthRow, ...]
    """What is unknown, and why."""
    picture: ChartInput | None
    """The input of `plot`, as plain columns; None if there is nothing to draw."""
    _make_frame: Callable[[], pd.DataFrame]

    @property
    def df(self) -> pd.DataFrame:
        """The answer's table, with units in column names; a new DataFrame for each access. Unknown sizes are NaN."""
        frame = self._make_frame().rename(columns=_UNITS)
        for name in frame.columns[frame.columns.str.endswith("_bytes")]:
            if (frame[name] < 0).any():  # -1 in our tables, which would distort a mean
                frame[name] = frame[name].where(frame[name] >= 0)
        return frame

    @property
    def metrics(self) -> dict[str, float]:
        """The figures over all selected ranks and steps, by metric id (see the reference of metrics for units)."""
        return {value.metric.id: value.value for value in self.metric_values if not value.dims}

    @property
    def metric_table(self) -> pd.DataFrame:
        """Every metric value: id, value, unit, and one column per dimension, empty if a value lacks it."""
        import pandas as pd  # noqa: PLC0415 - loaded only for a DataFrame

        rows = [
            {"metric": value.metric.id, "value": value.value, "unit": str(value.metric.unit), **value.dims}
            for value in self.metric_values
        ]
        return pd.DataFrame(rows, columns=None if rows else ["metric", "value", "unit"])

    def plot(self, theme: Literal["light", "dark"] = "light") -> Any:  # noqa: ANN401 - a Bokeh figure
        """Return the picture as a Bokeh figure, to be shown with `bokeh.io.show`.

        Raises `UspProfError` if there is nothing to draw, or if Bokeh is not installed.
        """
        if self.picture is None:
            raise UsageError(f"this answer has no chart: {self.sentence}", hint="its notes say what is missing")
        return bokeh_figure(self.picture, theme)

    def explain(self) -> str:
        """Return the meaning of the figures, how each is computed, and what is unknown."""
        lines = [self.question, f"  {self.sentence}", ""]
        for value in self.metric_values:
            if not value.dims:
                lines.append(f"{value.metric.title}: {quantity(value.value, value.metric.unit)} ({value.metric.id})")
                lines.append(f"  {value.metric.doc}")
        if self.notes:
            lines += ["", "What could not be known, or is to be doubted:"]
            lines += [f"{severity}: {line}" for severity, line in health_lines(self.notes)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{self.question}\n{self.sentence}"

    def _repr_html_(self) -> str:
        """Return the sentence, the picture and the first rows of the table as HTML for a notebook."""
        from usp_prof.charts.svg import as_svg  # noqa: PLC0415 - loaded only for notebooks

        table = self.df
        picture = as_svg(self.picture) if self.picture is not None else ""
        text = f"<p><b>{escape(self.question)}</b><br>{escape(self.sentence)}</p>"
        if not len(table):
            missing = "".join(f"<li>{escape(line)}</li>" for _, line in health_lines(self.notes))
            return f"{text}{picture}<ul>{missing}</ul>" if missing else f"{text}{picture}"
        more = f"<p><small>{HEAD} of {len(table):,} rows</small></p>" if len(table) > HEAD else ""
        shown = table.drop(columns=[name for name in REPEATED_COLUMNS if name in table])
        return f"{text}{picture}{table_html(shown.head(HEAD))}{more}"


# Tables in notebooks: numbers in readable units, long texts cut.


LONGEST = 240
"""Maximum characters of a text in a notebook's cell; `.df` has the complete text."""
_UNIT_OF_NAME_END = {
    "_bytes_per_second": Unit.BYTES_PER_SECOND,
    "_flop_per_second": Unit.FLOP_PER_SECOND,
    "_bytes": Unit.BYTES,
    "_fraction": Unit.FRACTION,
    "_ns": Unit.NS,
    "_ratio": Unit.RATIO,
}
_MOMENTS = ("start_ns", "end_ns")
"""Columns with times since 1970, which no unit makes shorter."""


def table_html(table: pd.DataFrame) -> str:
    """Return a table as HTML for a notebook: numbers in readable units, long texts cut; a wide table scrolls."""
    shown = table.astype(object)
    for name in table.columns:
        shown[name] = [shortened(cell, LONGEST, "\u2026") if isinstance(cell, str) else cell for cell in shown[name]]
    html = _with_units(shown).to_html(index=False, na_rep="", float_format="{:,.4g}".format)
    return f'<div style="overflow-x: auto">{html}</div>'


def _with_units(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with each number in the unit of its row, or in the unit that its column's name ends with."""
    if "unit" in table:
        units = [Unit(text) if text in set(Unit) else None for text in table["unit"]]
        for name in table.columns:
            table[name] = [
                quantity(cell, unit) if unit is not None and isinstance(cell, float) else cell
                for cell, unit in zip(table[name], units, strict=True)
            ]
        return table.drop(columns="unit")
    heads = {}
    for name in table.columns:
        end = next((end for end in _UNIT_OF_NAME_END if name.endswith(end)), "")
        if end and name not in _MOMENTS:
            numbers = table[name].where(table[name].notna(), None)
            suffix, table[name] = column(numbers.tolist(), _UNIT_OF_NAME_END[end])
            head = name.removesuffix(end).replace("_", " ")
            heads[name] = f"{head} [{suffix}]" if suffix else head
    return table.rename(columns=heads)
