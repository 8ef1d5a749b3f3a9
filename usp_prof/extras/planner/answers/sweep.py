"""A sweep as sections: configurations that ran or failed, the playbook's heat maps, and the planner's error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from usp_prof._version import __version__
from usp_prof.extras.planner.answers.sweep_maps import best_map, degree_maps, fastest, size_words, varied_axes
from usp_prof.extras.planner.calibration import CLOSE
from usp_prof.extras.planner.sweep.rows import Row
from usp_prof.extras.planner.sweep.score import FEWEST, Score
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.document import Block, DataTable, Document, KeyFigure, KeyFigures, Section, Text, data_table
from usp_prof.report.format import Cell, quantity
from usp_prof.report.run_facts import RunFacts

TITLE = "Planner's error on this sweep"
ROWS = 20
"""Number of listed configurations, fastest first."""
NOTABLE_SLOWDOWN = 1.1
"""Slowdown by recording above which predictions learned from the recorded step are visibly too long."""


def sections(
    rows: Sequence[Row],
    score: Score | None,
    notes: Sequence[str] = (),
    *,
    drawn: bool,
    axes: tuple[str, str] | None = None,
) -> tuple[Section, ...]:
    """Build the sections of a sweep; `drawn` shows maps as charts, else as tables."""
    parts = [summary(rows, notes)]
    models = sorted({row.model for row in rows})
    sizes = sorted({row.size for row in rows})
    if any(row.is_ok for row in rows):
        if len(models) > 1 or len(sizes) > 1:
            parts.append(best_map(rows, models, sizes, drawn=drawn))
        parts += degree_maps(rows, axes or varied_axes(rows), drawn=drawn)
    parts += _failures(rows)
    if any(row.is_ok for row in rows):
        parts.append(Section("sweep-rows", "Configurations, fastest first", (fastest_rows(rows),)))
    if score is not None:
        parts.append(planner_accuracy(score))
    return tuple(parts)


def document(title: str, parts: Sequence[Section]) -> Document:
    """Build a page from sections; a sweep is not a run, and has no metrics or findings."""
    facts = RunFacts(title, (), None, axes={}, axes_inferred=False, steps=(), step_source="", devices=(), hosts=0)
    return Document(__version__, facts, {}, (), (), (), parts[0], tuple(parts[1:]))


def summary(rows: Sequence[Row], notes: Sequence[str] = ()) -> Section:
    """Return a sentence on the cells tried, those that ran, and the fastest."""
    ok = [row for row in rows if row.is_ok]
    blocks: list[Block] = [
        KeyFigures(
            (
                KeyFigure("configurations", len(rows), Unit.COUNT),
                KeyFigure("ran", len(ok), Unit.COUNT),
                KeyFigure("failed", len(rows) - len(ok), Unit.COUNT),
            )
        )
    ]
    fastest_of_model = fastest(ok, lambda row: row.model)
    blocks += [Text(sentence(fastest_of_model[model])) for model in sorted(fastest_of_model)]
    blocks += [Text(note, quiet=True) for note in notes]
    return Section("sweep", "Sweep", tuple(blocks))


def sentence(row: Row) -> str:
    """Return how fast a configuration is."""
    mfu = f", MFU {row.mfu:.1%}" if np.isfinite(row.mfu) else ""
    return (
        f"Fastest of {row.model}: {row.configuration} on {size_words(row)}, {row.tokens_per_second:,.0f} tokens/s{mfu}."
    )


# Rows and failures.


def fastest_rows(rows: Sequence[Row]) -> DataTable:
    """Build the table of configurations that ran, fastest first for each model, with the planner's predictions."""
    by_speed = sorted(
        (row for row in rows if row.is_ok), key=lambda row: (-row.tokens_per_device, str(row.configuration))
    )
    models = sorted({row.model for row in by_speed})
    rows_of_model = max(1, ROWS // max(len(models), 1))
    shown = [row for model in models for row in [row for row in by_speed if row.model == model][:rows_of_model]]
    columns: dict[str, tuple[Unit | None, Callable[[Row], Cell]]] = {
        "model": (None, lambda row: row.model),
        "devices": (None, lambda row: row.devices),
        "configuration": (None, lambda row: str(row.configuration)),
        "step": (Unit.NS, lambda row: row.step_ns),
        "predicted": (Unit.NS, lambda row: _finite_or_none(row.predicted_step_ns)),
        "tokens/s": (Unit.COUNT, lambda row: round(row.tokens_per_second)),
        "MFU": (Unit.FRACTION, lambda row: _finite_or_none(row.mfu)),
        "memory": (Unit.BYTES, lambda row: _finite_or_none(row.memory_bytes)),
    }
    if len(models) < 2:
        del columns["model"]
    if not any(np.isfinite(row.predicted_step_ns) for row in shown):
        del columns["predicted"]
    lines = [tuple(cell(row) for _, cell in columns.values()) for row in shown]
    table = data_table("", {head: unit for head, (unit, _) in columns.items()}, lines)
    return replace(table, more=len(by_speed) - len(shown))


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _failures(rows: Sequence[Row]) -> list[Section]:
    """Build the table of reasons for failures, the most frequent first, each with one configuration."""
    failed = [row for row in rows if not row.is_ok]
    if not failed:
        return []
    counts = Counter((str(row.status), row.reason) for row in failed)
    example = {(str(row.status), row.reason): row.cell or str(row.configuration) for row in reversed(failed)}
    lines = [(count, status, reason, example[status, reason]) for (status, reason), count in counts.most_common()]
    columns = dict.fromkeys(("cells", "status", "reason", "example"))
    table = data_table("", columns, lines, most=ROWS, prose=("reason",))
    return [Section("sweep-failures", f"Failed: {len(failed)} of {len(rows)}", (table,))]


def planner_accuracy(score: Score) -> Section:
    """Build the planner's accuracy on these rows."""
    left_out = [f"{counted(count, 'cell')} not predicted: {reason}." for reason, count in score.not_predicted]
    if not score.judged:
        reasons = " ".join(left_out) or "Only the recorded cell ran."
        note = Text(f"No measured configuration could be predicted, so the planner is not judged. {reasons}")
        return Section("sweep-planner", TITLE, (note,))
    figures = [
        KeyFigure("configurations judged", score.judged, Unit.COUNT),
        KeyFigure("median error of the step", _finite_or_none(score.median_error), Unit.FRACTION),
    ]
    if score.groups:
        figures += [
            KeyFigure("rank correlation", score.rank_correlation, Unit.RATIO, "1: predicted in the measured order"),
            KeyFigure(
                "speed lost by its first choice", score.regret, Unit.FRACTION,
                f"a random choice loses {quantity(score.random_regret, Unit.FRACTION)}",
            ),
        ]  # fmt: skip
    else:
        left_out.append(f"To judge the order, at least {FEWEST} cells of one model and size must be predicted.")
    blocks: list[Block] = [KeyFigures(tuple(figures))]
    notes = [*_calibration_notes(score), *left_out]
    return Section("sweep-planner", TITLE, (*blocks, *(Text(note, quiet=True) for note in notes)))


def _calibration_notes(score: Score) -> list[str]:
    """Describe the cell that the planner learned from, and how well it is predicted itself."""
    notes = [f"Learned from a recording of {score.learned_from}."] if score.learned_from else []
    if np.isfinite(score.calibration_error):
        off = f"The prediction of the recorded step is off by {score.calibration_error:+z.1%}"
        tail = ", so only the order of predictions is judged." if abs(score.calibration_error) > CLOSE else "."
        notes.append(off + tail)
    if score.recording_slowdown > NOTABLE_SLOWDOWN:
        slowdown = quantity(score.recording_slowdown, Unit.RATIO)
        notes.append(f"Recording made that step {slowdown} as long, so the predictions are too long as well.")
    return notes
