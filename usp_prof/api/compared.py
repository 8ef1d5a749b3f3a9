"""Comparisons: two runs next to each other, and a run next to its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from usp_prof.analyses.result import columns_of, frame
from usp_prof.api.answer import Answer
from usp_prof.findings import find_all
from usp_prof.gate.comparison import Comparison, Pair, compare, direction
from usp_prof.gate.facts import FactKind
from usp_prof.gate.measured import measure
from usp_prof.model.selection import Selection
from usp_prof.report.answers import comparison as writer
from usp_prof.report.answers.wording import differing
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compared:
    """The first run compared with the second."""

    comparison: Comparison

    @property
    def df(self) -> pd.DataFrame:
        """Every metric of either run with its unit, before, after, and whether it is better or worse."""
        rows = self._pair.judgements
        return frame(
            {
                "metric": [judgment.key for judgment in rows],
                "unit": [str(judgment.unit) for judgment in rows],
                **columns_of(rows, "before", "after"),
                "direction": [direction(judgment) or judgment.reason for judgment in rows],
            }
        )

    @property
    def metrics(self) -> dict[str, tuple[float, float]]:
        """The figures that both runs have over all ranks and steps: before and after, by metric id.

        They are means over ranks; counts are sums, and memory is the fullest rank's. This also applies to metrics such
        as `slowdown` and `straggler_cost`, for which the answer of a single run uses the worst rank.
        """
        return {
            judgment.key: (judgment.before, judgment.after)
            for judgment in self._pair.judgements
            # Figures of one rank, axis, ... have brackets; one that a run lacks is NaN.
            if "[" not in judgment.key and isfinite(judgment.before + judgment.after)
        }

    def plot(self, theme: Literal["light", "dark"] = "light") -> Any:  # noqa: ANN401 - a Bokeh figure
        """Draw how the first run's step turns into the second's, part by part."""
        return self._answer.plot(theme)

    def explain(self) -> str:
        """Return what changed, and the work that explains it."""
        return writer.render(self.comparison, "terminal")

    def __repr__(self) -> str:
        return repr(self._answer)

    def _repr_html_(self) -> str:
        return self._answer._repr_html_()

    @property
    def _pair(self) -> Pair:
        return self.comparison.pairs[0]

    @property
    def _answer(self) -> Answer:
        """The comparison as an answer: a sentence, the waterfall, the table of metrics."""
        pair, label = self._pair, self.comparison.label
        remarks = [writer.verdict(pair, label, pair.label) or "The steps are unknown."]
        remarks += [f"Caution: {doubt}." for doubt in pair.doubts]
        remarks += [f"{line[0].upper()}{line[1:]}." for line in differing(pair.differences)]
        has_picture = writer.are_times_compared(pair) and any(part.before_ns for part in pair.waterfall)
        return Answer(
            question=f"What changed from {label} to {pair.label}?",
            sentence=" ".join(remarks),
            metric_values=(),
            notes=(),
            picture=writer.as_waterfall(pair) if has_picture else None,
            _make_frame=self._changed_first,
        )

    def _changed_first(self) -> pd.DataFrame:
        """Return the table with changed rows first.

        Figures of the run come before those of one rank or axis, the most important ones first.
        """
        table = self.df
        is_same = ~table["direction"].isin(["better", "worse", "changed"])
        is_part = table["metric"].str.contains("[", regex=False)
        importance = {metric: place for place, metric in enumerate(writer.IMPORTANT)}
        place = table["metric"].map(importance).fillna(len(importance))
        return table.iloc[np.lexsort((place, is_part, is_same))]


def compare_tables(
    before: tuple[str, TableSet], after: tuple[str, TableSet], across: Sequence[FactKind] = ()
) -> Compared:
    """Compare two runs, each given by its name and tables."""
    measured = [measure(tables, name, findings=list(find_all(tables).findings)) for name, tables in (before, after)]
    return Compared(compare(measured, across))


def compare_predicted(before: tuple[str, TableSet], after: tuple[str, TableSet], steps: Selection) -> Compared:
    """Compare these steps of a run with their prediction; rules are not applied, since the differences are known."""
    return Compared(compare([measure(tables, name, selection=steps) for name, tables in (before, after)]))
