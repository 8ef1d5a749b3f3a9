"""Score: comparison of the planner with a sweep: step errors, ranking, and the cost of the planner's choice.

One cell is run again with recording (`planner/calibration.py`), and the planner predicts the others from it. Neither
that cell is predicted nor cells with an axis that it lacks, because messages of that axis were not measured. If the
error of the recorded step itself is above `CLOSE`, only the ranking is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner.calibration import CLOSE, Calibration
from usp_prof.extras.planner.model_rules import broken_rule
from usp_prof.extras.planner.predict import predict_all
from usp_prof.extras.planner.sweep.cells import OF_THE_LAYOUT
from usp_prof.extras.planner.sweep.rows import Outcome, Row
from usp_prof.model.configuration import Configuration

FEWEST = 3
"""Minimum number of rows of one size for a ranking."""


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of the planner's predictions. Shares are 0..1; NaN if there were too few rows."""

    judged: int
    median_error: float
    """Median error of the step's length; NaN if the planner's lengths are doubtful."""
    rank_correlation: float
    """Spearman's correlation, mean over groups with one model and size; 1 is the same order."""
    regret: float
    """Speed lost by running the planner's first choice instead of the fastest; mean over the same groups."""
    random_regret: float
    """The same loss for a random choice: the mean over a group."""
    groups: int
    calibration_error: float = float("nan")
    recording_slowdown: float = float("nan")
    """Step of the recorded cell with recording, relative to its step without."""
    not_predicted: tuple[tuple[str, int], ...] = ()
    """Reasons why measured configurations could not be predicted, with counts."""
    learned_from: str = ""
    """Configuration of the recorded cell."""


def score(rows: Sequence[Row], calibration_error: float = float("nan")) -> Score:
    """Score the rows that have a prediction, with the error on the recorded cell, if there is one."""
    judged = [row for row in rows if row.is_ok and row.predicted_step_ns > 0]
    key = lambda row: (row.model, row.size)  # noqa: E731 - for sorting and grouping alike
    correlations, regrets, blind = [], [], []
    for _, group in groupby(sorted(judged, key=key), key=key):
        part = list(group)
        if len(part) < FEWEST:
            continue
        measured = np.array([row.tokens_per_second for row in part])
        predicted = np.array([row.tokens_per_second * row.step_ns / row.predicted_step_ns for row in part])
        correlations.append(_spearman(measured, predicted))
        regrets.append(1 - measured[predicted.argmax()] / measured.max())
        blind.append(1 - measured.mean() / measured.max())
    errors = [abs(row.predicted_step_ns / row.step_ns - 1) for row in judged]
    is_doubtful = abs(calibration_error) > CLOSE

    def mean(values: list[float]) -> float:
        return float(np.mean(values)) if values else float("nan")

    return Score(
        judged=len(judged),
        median_error=float(np.median(errors)) if errors and not is_doubtful else float("nan"),
        rank_correlation=mean(correlations),
        regret=mean(regrets),
        random_regret=mean(blind),
        groups=len(regrets),
        calibration_error=calibration_error,
    )


def _spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the rank correlation; ties are too rare in measured speeds to matter."""
    return float(np.corrcoef(first.argsort().argsort(), second.argsort().argsort())[0, 1])


def predict_rows(rows: Sequence[Row], reasons: Sequence[str], calibration: Calibration, cell: str) -> tuple[Row, ...]:
    """Predict every row without a reason against it, except the recorded cell's."""
    alike = {
        place: row.configuration
        for place, (row, reason) in enumerate(zip(rows, reasons, strict=True))
        if row.configuration is not None and not reason and row.cell != cell
    }
    if not alike:
        return tuple(rows)
    predictions = predict_all(calibration.model, list(alike.values()), calibration.cluster, profile=calibration.profile)
    predicted_rows = list(rows)
    for place, prediction in zip(alike, predictions, strict=True):
        size = float(prediction.footprint.total_bytes)
        predicted_rows[place] = replace(rows[place], predicted_step_ns=prediction.step_ns, predicted_memory_bytes=size)
    return tuple(predicted_rows)


def reasons_against(
    rows: Sequence[Row], outcomes: Sequence[Outcome], calibration: Calibration, cell: str
) -> tuple[str, ...]:
    """Return for each row why the calibration from a cell does not predict it; empty if it does."""
    of_cell = {outcome.name: outcome for outcome in outcomes}

    def other_options(name: str) -> tuple[int, tuple[tuple[str, str], ...]]:
        options = of_cell[name].options.items()
        return of_cell[name].processes, tuple(sorted(pair for pair in options if pair[0] not in OF_THE_LAYOUT))

    def reason(row: Row) -> str:
        if row.configuration is None:
            return "its configuration is unknown"
        if other_options(row.cell) != other_options(cell):
            return "it has another model, batch or number of processes than the recorded cell"
        if new_axes := axes_of(row.configuration) - axes_of(calibration.configuration):
            return f"the recorded cell has no {' or '.join(sorted(new_axes))}, so its messages were not measured"
        return broken_rule(calibration.model, row.configuration)

    return tuple(reason(row) for row in rows)


def cell_to_record(rows: Sequence[Row]) -> Row | None:
    """Return the cell to record: its axes cover those of most cells of its model and size; the fastest of several."""
    ok = [row for row in rows if row.is_ok and row.configuration is not None]

    def covered(row: Row) -> int:
        return sum((other.model, other.size) == (row.model, row.size) and _axes(other) <= _axes(row) for other in ok)

    return max(ok, key=lambda row: (covered(row), -row.step_ns), default=None)


def _axes(row: Row) -> frozenset[str]:
    return axes_of(row.configuration) if row.configuration is not None else frozenset()


def axes_of(configuration: Configuration) -> frozenset[str]:
    """Return the axes on which a configuration sends messages."""
    return frozenset(axis for axis, degree in configuration.degrees().items() if degree > 1)
