"""Comparison of a lesson's runs: measured, theoretical and predicted figures, and claims about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from usp_prof.extras.learn.lessons import Figure, Lesson, Shown
from usp_prof.extras.learn.measurement import LessonFigures, RunFigures, metrics
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity

STEP = "step_time"
_CLOSE = 0.05
"""Plans state no error; smaller deviations from the measured step are not mentioned."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the comparison: a text per run, empty without a figure."""

    figure: str
    source: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim about the runs, with its evidence, and whether it holds."""

    says: str
    evidence: str
    holds: bool


def rows(lesson: Lesson, figures: LessonFigures) -> tuple[Row, ...]:
    """Return each figure as measured and by theory, and for the step the predictions from the first run."""
    return tuple(row for figure in lesson.figures for row in _rows_of(lesson, figure, figures))


def claims(lesson: Lesson, figures: LessonFigures) -> tuple[Claim, ...]:
    """Check the lesson's claims and the bounds of its theory."""
    shown = [_claim_of(lesson, shown, figures) for shown in lesson.shows]
    bounded = [claim for figure in lesson.figures for claim in _theory_claim(lesson, figure, figures)]
    return (*shown, *bounded)


def misses(lesson: Lesson, figures: LessonFigures) -> str:
    """Return which predictions of the step are off by more than their stated error, or than 5%."""
    key = next((figure.key for figure in lesson.figures if figure.metric == STEP), "")
    missed = [text for run in lesson.runs for text in _misses_of(run.name, figures.runs[run.name], key)]
    return f"Predictions outside their error: {'; '.join(missed)}." if missed else ""


def _misses_of(name: str, run: RunFigures, key: str) -> Iterator[str]:
    measured = run.measured.get(key)
    if not measured:
        return
    replayed, error, planned = run.replayed_step_ns, run.replayed_error_ns, run.planned_step_ns
    if replayed is not None and error is not None and abs(replayed - measured) > error:
        yield f"{name} replayed, off by {replayed / measured - 1:+.0%} (stated error {error / measured:.0%})"
    if planned is not None and abs(planned / measured - 1) > _CLOSE:
        yield f"{name} planned, off by {planned / measured - 1:+.0%}"


def outcome(lesson: Lesson, figures: LessonFigures) -> str:
    """Return the first claim with both measured figures; empty if it does not hold."""
    if not lesson.shows or not _claim_of(lesson, lesson.shows[0], figures).holds:
        return ""
    shown = lesson.shows[0]
    figure = next(figure for figure in lesson.figures if figure.metric == shown.figure)
    unit = metrics()[figure.metric][1].unit
    value, other = (
        f"{quantity(figures.runs[name].measured[figure.key], unit)} ({name})" for name in (shown.run, shown.against)
    )
    return f"{shown.says.rstrip('.')}: {value} instead of {other}."


def title_of(figure: Figure) -> str:
    """Return the title of a figure with its dimensions."""
    title = figure.title or metrics()[figure.metric][1].title
    chosen = ", ".join(str(value) for value in figure.dims.values())
    return f"{title} ({chosen})" if chosen else title


def _rows_of(lesson: Lesson, figure: Figure, figures: LessonFigures) -> Iterator[Row]:
    _, metric = metrics()[figure.metric]
    title, runs = title_of(figure), [figures.runs[run.name] for run in lesson.runs]

    def row(source: str, values: list[float | None]) -> Row:
        texts = ("" if value is None else quantity(value, metric.unit) for value in values)
        return Row(title, source, tuple(texts))

    if any(figure.key in run.measured for run in runs):
        yield row("measured", [run.measured.get(figure.key) for run in runs])
    if figure.theory:
        yield row("theory", [run.theory.get(figure.key) for run in runs])
    if figure.metric != STEP:
        return
    first = lesson.runs[0].name
    if any(run.replayed_step_ns is not None for run in runs):
        yield Row(title, f"replayed from {first}", tuple(_replayed(run) for run in runs))
    if any(run.planned_step_ns is not None for run in runs):
        yield row(f"planned from {first}", [run.planned_step_ns for run in runs])


def _replayed(run: RunFigures) -> str:
    if run.replayed_step_ns is None or run.replayed_error_ns is None:
        return ""
    return f"{quantity(run.replayed_step_ns, Unit.NS)} ±{quantity(run.replayed_error_ns, Unit.NS)}"


def _claim_of(lesson: Lesson, shown: Shown, figures: LessonFigures) -> Claim:
    key = next(figure.key for figure in lesson.figures if figure.metric == shown.figure)
    value, other = (figures.runs[name].measured.get(key) for name in (shown.run, shown.against))
    if value is None or other is None:
        return Claim(shown.says, "not measured", holds=False)
    ratio = value / other if other else float("inf")
    bound = f"at most {shown.at_most:g}" if shown.at_least == 0 else f"at least {shown.at_least:g}"
    evidence = f"{shown.run} / {shown.against} = {ratio:.2f}, {bound}"
    return Claim(shown.says, evidence, holds=shown.at_least <= ratio <= shown.at_most)


def _theory_claim(lesson: Lesson, figure: Figure, figures: LessonFigures) -> Iterator[Claim]:
    """Yield whether a figure with a tolerance matches its theory in every run; nothing for other figures."""
    pairs = [
        (run.name, measured, expected)
        for run in lesson.runs
        if (measured := figures.runs[run.name].measured.get(figure.key)) is not None
        and (expected := figures.runs[run.name].theory.get(figure.key)) is not None
    ]
    if figure.apart is not None:
        offsets = {name: measured - expected for name, measured, expected in pairs}
        shown = {name: quantity(offset, Unit.FRACTION) for name, offset in offsets.items()}
        tolerance, bound = figure.apart, f"at most {quantity(figure.apart, Unit.FRACTION)} apart"
    elif figure.within is not None:
        offsets = {name: measured / expected - 1 for name, measured, expected in pairs}
        shown = {name: f"{offset:+z.0%}" for name, offset in offsets.items()}
        tolerance, bound = figure.within, f"at most ±{figure.within:.0%}"
    else:
        return
    if offsets:
        evidence = f"{', '.join(f'{name} {text}' for name, text in shown.items())}; {bound}"
        holds = all(abs(offset) <= tolerance for offset in offsets.values())
        yield Claim(f"{title_of(figure)} matches theory.", evidence, holds=holds)
