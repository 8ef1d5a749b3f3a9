"""The planner on published speeds: each source left out in turn, and vTrain in five folds with the other sources."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from planner_bars import Line, folds_of, median_error, roofline_reaches
from planner_baselines import roofline_of_sources
from planner_fit import fit_published

from usp_prof.extras.planner.predict import time_spread_of
from usp_prof.extras.planner.step import step

if TYPE_CHECKING:
    from planner_bars import Numbers
    from planner_rows import Measured

VTRAIN = "vtrain"


def judge(sources: dict[str, Measured]) -> list[Line]:
    """Evaluate all sources."""
    lines, ratios, plain_ratios, spreads, mixtures = [], [], [], [], []
    for name, rows in sources.items():
        if name == VTRAIN:
            continue
        other_sources = {other: part for other, part in sources.items() if other != name}
        predicted, plain = _seconds(rows, fit_published(other_sources)), roofline_of_sources(other_sources, rows)
        title = f"published, {name.removesuffix('.csv')} left out"
        beside = roofline_reaches(plain, rows.seconds)
        lines.append(Line(title, len(plain), median_error(predicted, rows.seconds), most=0.2, beside=beside))
        ratios.append(predicted / rows.seconds)
        plain_ratios.append(plain / rows.seconds)
        spreads.append(np.broadcast_to(time_spread_of(rows.columns()), len(rows.cases)))
        mixtures.append(np.array([bool(case.model.experts) for case in rows.cases]))
    all_ratios, plain, is_mixture = (np.concatenate(parts) for parts in (ratios, plain_ratios, mixtures))
    ones = np.ones(len(all_ratios))
    for title, rows_of, most in (
        ("published, all sources left out in turn", ones > 0, 0.2), ("of them mixtures of experts", is_mixture, 0.25),
    ):  # fmt: skip
        beside = roofline_reaches(plain[rows_of], ones[rows_of])
        lines.append(
            Line(title, int(rows_of.sum()), median_error(all_ratios[rows_of], ones[rows_of]), most=most, beside=beside)
        )
    inside = np.abs(np.log(all_ratios)) < np.concatenate(spreads)
    lines.append(Line("80% intervals of published speed hold", len(all_ratios), float(inside.mean()), 0.75, 0.88))
    return [*lines, _vtrain(sources)]


def _vtrain(sources: dict[str, Measured]) -> Line:
    rows = sources[VTRAIN]
    fold = folds_of(len(rows.cases))
    predicted, plain = np.empty(len(fold)), np.empty(len(fold))
    for number in range(fold.max() + 1):
        held = fold == number
        used = {**sources, VTRAIN: rows.where(~held)}
        predicted[held] = _seconds(rows.where(held), fit_published(used))
        # The roofline is fitted to these rows only: it has no constants that sources share.
        plain[held] = roofline_of_sources({VTRAIN: rows.where(~held)}, rows.where(held))
    beside = roofline_reaches(plain, rows.seconds)
    error = median_error(predicted, rows.seconds)
    return Line("vTrain, single node, five folds", len(fold), error, most=0.08, beside=beside)


def _seconds(rows: Measured, constants: dict[str, float]) -> Numbers:
    cases = rows.columns()
    return step(replace(cases, profile=replace(cases.profile, **constants))).seconds
