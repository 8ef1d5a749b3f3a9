"""Answers: a sentence, a DataFrame, metrics and a picture; a notebook displays all of them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, cast

from usp_prof.charts.inputs import BreakdownRows, Part, RankBars
from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Unit
from usp_prof.model.printable import shortened
from usp_prof.report.document import Chart, Stack
from usp_prof.report.figures import axes_in_order
from usp_prof.report.format import column, quantity
from usp_prof.report.words import health_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

    from usp_prof.analyses.host import HostResult
    from usp_prof.analyses.kernels import KernelsResult
    from usp_prof.analyses.result import Result
    from usp_prof.charts.inputs import ChartInput
    from usp_prof.model.finding import Finding
    from usp_prof.model.health import HealthRow
    from usp_prof.model.metric import Value
    from usp_prof.report.document import Section
    from usp_prof.report.figures import Figures


HEAD = 8
"""Number of table rows that a notebook shows below the picture."""
LONGEST = 240
"""Maximum characters of a text in a notebook's cell; `.df` has the complete text."""
TOLD_TWICE = ("in_words",)
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
        from usp_prof.charts import draw  # noqa: PLC0415 - Bokeh is loaded only for drawing
        from usp_prof.charts.theme import THEMES  # noqa: PLC0415

        try:
            return draw(self.picture, THEMES[theme])
        except ModuleNotFoundError as error:
            raise UsageError("Bokeh is not installed", hint="pip install 'usp-prof[report]'") from error

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
        shown = table.drop(columns=[name for name in TOLD_TWICE if name in table])
        return f"{text}{picture}{table_html(shown.head(HEAD))}{more}"


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


# Pictures of answers: the first chart of the report's section, or one drawn from its figures if it has none.


_MOST_BARS = 40
_MOST_KERNELS = 16


def picture(name: str, section: Section | None, result: Result, figures: Figures) -> ChartInput | None:
    """Return the picture of an answer, or None if there is nothing to draw."""
    blocks = section.blocks if section is not None else ()
    charts = [block.data for block in blocks if isinstance(block, Chart)]
    if name == "collectives" and (
        waiting := _waiting(figures)
    ):  # the section draws bandwidths, but the question is about waiting
        return waiting
    if charts:
        return charts[0]
    pictures: dict[str, Callable[[], ChartInput | None]] = {
        "stragglers": lambda: _lateness(figures),
        "kernels": lambda: _kernels(cast("KernelsResult", result)),
        "host": lambda: _host(cast("HostResult", result)),
        "mfu": lambda: _utilisation(figures),
    }
    return pictures[name]() if name in pictures else stack_of(blocks)


def stack_of(blocks: Iterable[object]) -> BreakdownRows | None:
    """Return the first stack as one bar."""
    stack = next((block for block in blocks if isinstance(block, Stack)), None)
    if stack is None:
        return None
    parts = tuple(Part(part.label, part.role, (float(part.value),)) for part in stack.worth_a_line)
    return BreakdownRows(("",), parts)


def gains(findings: Sequence[Finding]) -> BreakdownRows | None:
    """Return one bar per finding: its certain gain, and the part within its error."""
    shown = [finding for finding in findings if finding.gain_fraction > 0][:_MOST_BARS]
    if not shown:
        return None
    certain = tuple(max(0.0, finding.certain_gain_fraction) * finding.step_ns for finding in shown)
    unsure = tuple(bar.saved_ns - sure for bar, sure in zip(shown, certain, strict=True))
    labels = tuple(f"{place}. {finding.title}" for place, finding in enumerate(shown, start=1))
    return BreakdownRows(labels, (Part("gain", "measured", certain), Part("within its error", "idle:host", unsure)))


def _waiting(figures: Figures) -> BreakdownRows | None:
    """Return waiting and transfer times per axis, for one step of the mean rank."""
    waits, transfers = figures.along("wait_time", "axis"), figures.along("transfer_time", "axis")
    axes = axes_in_order(waits | transfers)
    if not axes:
        return None
    parts = (
        Part("waiting for the last member", "idle:host", tuple(float(waits.get(axis, 0)) for axis in axes)),
        Part("transfer", "comm", tuple(float(transfers.get(axis, 0)) for axis in axes)),
    )
    return BreakdownRows(tuple(str(axis) for axis in axes), parts)


def _kernels(result: KernelsResult) -> BreakdownRows | None:
    """Return the longest kernels, or the longest ops if there are no kernels (on a CPU)."""
    rows = [(kernel.name, kernel.total_ns) for kernel in result.kernels]
    rows = rows or [(f"{op.name} {op.dims}".strip(), op.time_ns) for op in result.ops]
    rows = rows[:_MOST_KERNELS]
    if not rows:
        return None
    labels = tuple(f"{place}. {name}" for place, (name, _) in enumerate(rows, start=1))
    times = tuple(float(ns) for _, ns in rows)
    return BreakdownRows(labels, (Part("time over all ranks and steps", "compute", times),))


def _host(result: HostResult) -> BreakdownRows | None:
    """Return what blocks each rank's host, per step."""
    blocked_ns = [_positive(rank.sync_ns) + _positive(rank.input_ns) + _positive(rank.gc_ns) for rank in result.ranks]
    ranks = [result.ranks[place] for place in _largest(blocked_ns)]
    parts = (
        Part("blocking calls", "comm", tuple(_positive(rank.sync_ns) for rank in ranks)),
        Part("data loading", "comm:dp", tuple(_positive(rank.input_ns) for rank in ranks)),
        Part("garbage collection", "comm:pp", tuple(_positive(rank.gc_ns) for rank in ranks)),
    )
    if not any(sum(part.values_ns) for part in parts):
        return None
    return BreakdownRows(tuple(f"rank {rank.rank}" for rank in ranks), parts)


def _lateness(figures: Figures) -> RankBars | None:
    """Return how much each rank delays the others; the mark is the mean over all ranks."""
    cost = figures.along("straggler_cost", "rank")
    if not cost:
        return None
    ranks, values = tuple(cost), [float(value) for value in cost.values()]
    mean, shown = sum(values) / len(values), _largest(values)
    label = "own delay in a step" if len(shown) == len(ranks) else f"own delay in a step, largest of {len(ranks)} ranks"
    labels, bars = tuple(f"rank {ranks[place]}" for place in shown), tuple(values[place] for place in shown)
    return RankBars(label, labels, bars, (mean,) * len(bars), "comm", Unit.NS)


def _largest(values: Sequence[float]) -> list[int]:
    """Return the indexes of the largest values, as many as a picture has bars, in their order."""
    return sorted(sorted(range(len(values)), key=lambda place: -values[place])[:_MOST_BARS])


def _utilisation(figures: Figures) -> BreakdownRows | None:
    """Return the step as the time for model FLOPs at the peak, for recomputed ones, and the rest."""
    used, step = figures.overall("mfu"), figures.overall("step_time")
    if used is None or not step:
        return None
    again = max(0.0, (figures.overall("hfu") or used) - used)
    parts = (
        Part("model FLOP at the peak", "compute", (used * step,)),
        Part("recomputed FLOP at the peak", "memcpy", (again * step,)),
        Part("the rest of the step", "idle:other", ((1 - used - again) * step,)),
    )
    return BreakdownRows(("step",), parts)


def _positive(value: float) -> float:
    return value if value == value and value > 0 else 0.0  # noqa: PLR0124 - checks for NaN
