"""The planner on the playbook's sweep: speed, the first choice and the sign of one knob, with a new fit per split.

Rows have three classes: `single stage`, which need no label; `normal`, within 1.6 of a plain roofline fitted to all
rows (a label independent of the planner); and all rows, including stalled ones. The choice is made like in `usp-prof
plan`, by the expected speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from planner_bars import Line, folds_of, median_error, roofline_reaches
from planner_baselines import roofline, rule_of_thumb
from planner_fit import SLOW, fit_sweep

from usp_prof.extras.planner.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from planner_bars import Mask, Numbers
    from planner_rows import Measured

KNOBS = {"zero": (), "mbs": ("grad_acc",), "tp": ("dp", "grad_acc"), "pp": ("dp", "grad_acc")}
"""Knobs, and the options that change with each if devices and batch are constant."""
OF_A_ROW = ("model", "nodes", "dp", "pp", "tp", "zero", "mbs", "grad_acc")
MOST_REGRET, MOST_REGRET_OF_FIVE, LEAST_SIGNS = 0.05, 0.02, 0.92
MOST_ERROR = {"five folds": 0.09, "up to 8 nodes for 16": 0.15}
MOST_ERROR_LEFT_OUT = 0.12


def judge(rows: Measured) -> list[Line]:
    """Evaluate the sweep."""
    everything = np.ones(len(rows.cases), bool)
    normal = rows.seconds / roofline(rows, everything) < SLOW
    seconds, expected, plain = (np.empty(len(rows.cases)) for _ in range(3))
    fold = folds_of(len(rows.cases))
    for number in range(fold.max() + 1):
        held = fold == number
        _, fit = fit_sweep(rows, ~held)
        seconds[held], expected[held] = fit.seconds[held], fit.expected[held]
        plain[held] = roofline(rows, ~held)[held]
    lines = list(_speed(rows, "five folds", everything, normal, seconds, plain))
    choices = list(_choices(rows, "five folds", everything, normal, expected, plain))
    for split, held in _left_out(rows):
        _, fit = fit_sweep(rows, ~held)
        of_others = roofline(rows, ~held)
        lines += _speed(rows, split, held, normal, fit.seconds, of_others)
        choices += _choices(rows, split, held, normal, fit.expected, of_others)
    inside = np.abs(np.log(rows.seconds / seconds)) < float(PROFILES["nanotron"].time_spread)
    lines.append(Line("80% intervals of speed hold", int(normal.sum()), float(inside[normal].mean()), 0.75, 0.88))
    return [
        *lines,
        *choices,
        _signs(rows.rows[normal].assign(measured=1 / rows.seconds[normal], order=1 / seconds[normal])),
    ]


def _left_out(rows: Measured) -> Iterator[tuple[str, Mask]]:
    """Yield the test sets: each model, and the largest runs."""
    frame = rows.rows
    for model in sorted(frame.model.unique()):
        yield f"{model} left out", (frame.model == model).to_numpy()
    yield "up to 8 nodes for 16", (frame.nodes == 16).to_numpy()


def _speed(rows: Measured, split: str, held: Mask, normal: Mask, predicted: Numbers, plain: Numbers) -> Iterator[Line]:
    alone = (rows.rows.pp == 1).to_numpy()
    bar = MOST_ERROR.get(split, MOST_ERROR_LEFT_OUT)
    for which, judged, most in (
        ("single stage", held & alone, bar), ("normal", held & normal, bar), ("all", held, np.inf),
    ):  # fmt: skip
        measured = rows.seconds[judged]
        error, beside = median_error(predicted[judged], measured), roofline_reaches(plain[judged], measured)
        yield Line(f"speed, {split}, {which}", int(judged.sum()), error, most=most, beside=beside)


def _choices(rows: Measured, split: str, held: Mask, normal: Mask, expected: Numbers, plain: Numbers) -> Iterator[Line]:
    """Evaluate the first choice among the measured rows of each model and node count."""
    frame = rows.rows.assign(
        measured=1 / rows.seconds, ours=1 / expected, plain=1 / plain, rule=rule_of_thumb(rows.rows)
    )
    alone = (rows.rows.pp == 1).to_numpy()
    for name, selected in (("all", held), ("single stage", held & alone), ("normal", held & normal)):
        part = frame[selected]
        groups = [group for _, group in part.groupby(["model", "nodes"])]
        ours, thumb, roof = (
            float(np.mean([regret(group[score].to_numpy(), group.measured.to_numpy()) for group in groups]))
            for score in ("ours", "rule", "plain")
        )
        five = float(np.mean([regret_of_five(group.ours.to_numpy(), group.measured.to_numpy()) for group in groups]))
        beside = f"rule of thumb {thumb:.1%}, roofline {roof:.1%}"
        most = min(MOST_REGRET, thumb, roof)
        yield Line(f"regret of the first choice, {split}, {name}", len(groups), ours, most=most, beside=beside)
        yield Line(f"regret of the best of five, {split}, {name}", len(groups), five, most=MOST_REGRET_OF_FIVE)


def regret(score: Numbers, measured: Numbers) -> float:
    """Return the speed lost by the first choice; ties count as their mean, because row order is no rule."""
    first = score == score.max()
    return float(1 - measured[first].mean() / measured.max())


def regret_of_five(score: Numbers, measured: Numbers) -> float:
    """Return the speed lost by the best of the first five."""
    return float(1 - measured[np.argsort(-score)[:5]].max() / measured.max())


def _signs(frame: pd.DataFrame) -> Line:
    """Return how often the faster row is predicted, for pairs that differ in one knob and over 10% in speed."""
    right, pairs = 0, 0
    for knob, follow in KNOBS.items():
        rest = [name for name in OF_A_ROW if name not in (knob, *follow)]
        for _, group in frame.groupby(rest):
            measured, predicted = np.log(group.measured.to_numpy()), np.log(group.order.to_numpy())
            is_faster = measured[:, None] - measured[None] > np.log(1.1)
            pairs += int(is_faster.sum())
            right += int((is_faster & (predicted[:, None] > predicted[None])).sum())
    return Line("sign of one knob, normal", pairs, right / max(pairs, 1), least=LEAST_SIGNS)
