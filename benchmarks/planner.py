"""How good is the planner on runs that it was not fitted to? One table: each bar, and whether it is met.

    python benchmarks/planner.py [REFERENCE]      REFERENCE: the folder of tables, ../shared/reference by default

Splits are fixed here, before any fit: five folds by row number, each model left out, up to 8 nodes for 16, each
published source left out. Constants are fitted anew inside each split (see `planner_fit.py`), so that no row is both
fitted and judged. Rows of one stage need no label: none of them hangs on stalled sends. Of the others, those more than
1.6 times slower than the robust fit of all rows are left out of the lines that say `labelled`, and of no other.
Beside each split stands a plain roofline fitted to the same rows (`planner_baselines.py`). Exits with 1 where a bar is
missed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from planner_baselines import roofline, rule_of_thumb
from planner_fit import SLOW, fit_published, fit_sweep, least_squares, read_sources
from planner_rows import Measured, megatron_memory, playbook

from usp_prof.planner import memory
from usp_prof.planner.profiles import PROFILES
from usp_prof.planner.step import step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Mask = NDArray[np.bool_]

FOLDS = 5
MEMORY_CONSTANTS = ("activation_scale", "logit_bytes", "gradient_bytes", "overhead_bytes", "buffer_fraction")
ROOM = 80e9


@dataclass(frozen=True, slots=True)
class Line:
    """One bar: a figure, and the least or the most that it may be."""

    what: str
    rows: int
    value: float
    least: float = -np.inf
    most: float = np.inf

    @property
    def is_met(self) -> bool:
        """Whether the figure lies within its bar."""
        return bool(self.least <= self.value <= self.most)

    def __str__(self) -> str:
        """Write it as a row of a table."""
        bar = " to ".join(f"{100 * end:.3g} %" for end in (self.least, self.most) if np.isfinite(end))
        bar = (
            bar
            if np.isfinite(self.least) == np.isfinite(self.most)
            else ("≥ " if np.isfinite(self.least) else "≤ ") + bar
        )
        return f"| {self.what} | {self.rows} | {self.value:.1%} | {bar} | {'met' if self.is_met else 'missed'} |"


def median_error(predicted: Numbers, measured: Numbers) -> float:
    """Give the median of the error's size."""
    return float(np.median(np.abs(predicted / measured - 1))) if len(measured) else float("nan")


def sweep_speed(rows: Measured) -> tuple[list[Line], Numbers, Mask, Numbers]:
    """Judge speed on the playbook's sweep; give the five folds' predictions, the normal rows, and the roofline's."""
    everything = np.ones(len(rows.cases), bool)
    _, robust = fit_sweep(rows, everything)
    normal = rows.seconds / robust < SLOW
    fold = np.arange(len(rows.cases)) % FOLDS
    folded = np.empty(len(fold))
    for number in range(FOLDS):
        held = fold == number
        folded[held] = fit_sweep(rows, ~held)[1][held]

    frame = rows.rows
    alone = (frame.pp == 1).to_numpy()
    plain = np.empty(len(fold))
    for number in range(FOLDS):
        held = fold == number
        plain[held] = roofline(rows, ~held)[held]

    def lines_of(what: str, held: Mask, predicted: Numbers, baseline: Numbers, most: float) -> list[Line]:
        found = []
        for judged, which in ((held & alone, "single stage"), (held & normal, "labelled")):
            other = median_error(baseline[judged], rows.seconds[judged])
            name = f"speed, {what}, {which} (roofline: {other:.1%})"
            error = median_error(predicted[judged], rows.seconds[judged])
            found.append(Line(name, int(judged.sum()), error, most=most))
        return found

    lines = lines_of("five folds", everything, folded, plain, 0.09)
    for model in sorted(frame.model.unique()):
        held = (frame.model == model).to_numpy()
        lines += lines_of(f"{model} left out", held, fit_sweep(rows, ~held)[1], roofline(rows, ~held), 0.12)
    many = (frame.nodes == 16).to_numpy()
    lines += lines_of("up to 8 nodes for 16", many, fit_sweep(rows, ~many)[1], roofline(rows, ~many), 0.15)
    spread = float(PROFILES["nanotron"].time_spread)
    inside = np.abs(np.log(rows.seconds / folded)) < spread
    lines.append(Line("80 % intervals of speed hold", int(normal.sum()), float(inside[normal].mean()), 0.75, 0.88))
    return lines, folded, normal, plain


def choices(rows: Measured, predicted: Numbers, normal: Mask, plain: Numbers) -> list[Line]:
    """Judge the first choice among the measured rows of each model and node count, and the order of neighbours."""
    frame = rows.rows.assign(predicted=1 / predicted, measured=1 / rows.seconds, normal=normal, plain=1 / plain)
    frame = frame.assign(rule=rule_of_thumb(frame))
    lines = []
    parts = (("all rows", frame), ("single stage", frame[frame.pp == 1]), ("labelled rows", frame[frame.normal]))
    for name, part in parts:
        groups = [group for _, group in part.groupby(["model", "nodes"])]
        regret = float(np.mean([_regret(group.predicted, group.measured, 1) for group in groups]))
        thumb = float(np.mean([_regret(group.rule, group.measured, 1) for group in groups]))
        roof = float(np.mean([_regret(group.plain, group.measured, 1) for group in groups]))
        five = float(np.mean([_regret(group.predicted, group.measured, 5) for group in groups]))
        lines.append(
            Line(
                f"regret of the first choice, {name} (rule of thumb: {thumb:.1%}, roofline: {roof:.1%})",
                len(groups),
                regret,
                most=min(0.05, thumb, roof),
            )
        )
        lines.append(Line(f"regret of the best of five, {name}", len(groups), five, most=0.02))
    lines.append(_signs(frame[frame.normal]))
    return lines


def _regret(score: object, measured: object, first: int) -> float:
    order = np.argsort(-np.asarray(score))[:first]
    speeds = np.asarray(measured)
    return float(1 - speeds[order].max() / speeds.max())


def _signs(frame: object) -> Line:
    """Count for pairs that differ in one knob, by more than a tenth in speed, how often the faster is foreseen."""
    right, pairs = 0, 0
    knobs = {"zero": [], "mbs": ["grad_acc"], "tp": ["dp", "grad_acc"], "pp": ["dp", "grad_acc"]}
    for knob, follow in knobs.items():
        rest = [
            name
            for name in ("model", "nodes", "dp", "pp", "tp", "zero", "mbs", "grad_acc")
            if name not in (knob, *follow)
        ]
        for _, group in frame.groupby(rest):  # type: ignore[attr-defined]
            measured, predicted = np.log(group.measured.to_numpy()), np.log(group.predicted.to_numpy())
            gap = measured[:, None] - measured[None]
            told = gap > np.log(1.1)
            pairs += int(told.sum())
            right += int((told & (predicted[:, None] > predicted[None])).sum())
    return Line("sign of one knob", pairs, right / max(pairs, 1), least=0.92)


def sweep_memory(rows: Measured) -> list[Line]:
    """Judge memory: the first rank's peak by five folds, and who fits."""
    good = np.isfinite(rows.memory_bytes)
    fold = np.arange(len(rows.cases)) % FOLDS
    predicted, fullest = np.empty(len(fold)), np.empty(len(fold))
    start = PROFILES["nanotron"]
    logarithms = np.log([getattr(start, name) for name in MEMORY_CONSTANTS])
    for number in range(FOLDS):
        part = rows.where(good & (fold != number))
        target = np.log(part.memory_bytes)
        fitted = least_squares(
            lambda x, part=part, target=target: np.log(_peaks(part, x)[0]) - target, logarithms, 0.05
        )  # type: ignore[misc]
        held = rows.where(fold == number)
        predicted[fold == number], fullest[fold == number] = _peaks(held, fitted)
    lines = [Line("memory, sweep", int(good.sum()), median_error(predicted[good], rows.memory_bytes[good]), most=0.10)]
    # Failures far below the device's memory are crashes of another kind (a quarter of them in this sweep).
    crash = ~good & (fullest < 60 * 2**30)
    judged = ~crash
    ranks = np.argsort(np.argsort(fullest[judged]))
    fails = ~good[judged]
    auc = (ranks[fails].sum() - fails.sum() * (fails.sum() - 1) / 2) / (fails.sum() * (~fails).sum())
    lines.append(
        Line(f"fits against fails, AUC without {crash.sum()} crashes", int(judged.sum()), float(auc), least=0.97)
    )
    called = fullest < start_room()
    false = (called & ~good & ~crash).sum() / max(called.sum(), 1)
    lines.append(Line("called fitting and failed, without crashes", int(called.sum()), float(false), most=0.03))
    false = (called & ~good).sum() / max(called.sum(), 1)
    lines.append(Line("called fitting and failed, with crashes (no bar)", int(called.sum()), float(false)))
    inside = np.abs(np.log(rows.memory_bytes / predicted))[good] < float(start.memory_spread)
    return [*lines, Line("80 % intervals of memory hold", int(good.sum()), float(inside.mean()), 0.75, 0.88)]


def start_room() -> float:
    """Give what is called fitting: the share of an H100 that a plan may fill."""
    return 0.8 * ROOM


def _peaks(rows: Measured, logarithms: Numbers) -> tuple[Numbers, Numbers]:
    """Give the peak of the first rank and of the fullest."""
    constants = dict(zip(MEMORY_CONSTANTS, np.exp(logarithms).tolist(), strict=True))
    profile = replace(PROFILES["nanotron"], **constants)
    stages = memory.of_stages(rows.columns(profile))
    return memory.total(stages[0]), memory.total(memory.fullest(stages))


def megatron_peaks(rows: Measured) -> Line:
    """Judge Megatron's tests by halves: all rows of one case (on several devices and images) lie in the same half."""
    half = np.array([crc32(case.encode()) % 2 for case in rows.rows.case])
    start = PROFILES["megatron"]
    names = ("activation_scale", "logit_bytes", "overhead_bytes")
    predicted = np.empty(len(half))

    def peaks(part: Measured, logarithms: Numbers) -> Numbers:
        constants = dict(zip(names, np.exp(logarithms).tolist(), strict=True))
        return memory.total(memory.fullest(memory.of_stages(part.columns(replace(start, **constants)))))

    for number in range(2):
        part = rows.where(half != number)
        target = np.log(part.memory_bytes)
        logarithms = np.log([getattr(start, name) for name in names])
        fitted = least_squares(lambda x, part=part, target=target: np.log(peaks(part, x)) - target, logarithms, 0.05)  # type: ignore[misc]
        predicted[half == number] = peaks(rows.where(half == number), fitted)
    return Line("memory, Megatron's tests", len(half), median_error(predicted, rows.memory_bytes), most=0.15)


def published_speed(sources: dict[str, Measured]) -> list[Line]:
    """Judge speed on published rows, each source left out; vTrain by five folds among the other sources."""
    lines, errors, mixed = [], [], []
    for name, rows in sources.items():
        if name == "vtrain":
            continue
        constants = fit_published({other: part for other, part in sources.items() if other != name})
        predicted = _seconds(rows, constants)
        lines.append(
            Line(
                f"published, {name.removesuffix('.csv')} left out",
                len(rows.cases),
                median_error(predicted, rows.seconds),
                most=0.2,
            )
        )
        errors.append(predicted / rows.seconds)
        mixed.append(np.array([bool(case.model.experts) for case in rows.cases]))
    whole, is_mixture = np.concatenate(errors), np.concatenate(mixed)
    lines.append(
        Line("published, all sources left out in turn", len(whole), median_error(whole, np.ones(len(whole))), most=0.2)
    )
    count = int(is_mixture.sum())
    lines.append(Line("of them mixtures of experts", count, median_error(whole[is_mixture], np.ones(count)), most=0.25))
    spread = float(PROFILES["megatron"].time_spread)
    lines.append(
        Line(
            "80 % intervals of published speed hold",
            len(whole),
            float((np.abs(np.log(whole)) < spread).mean()),
            0.75,
            0.88,
        )
    )
    rows = sources["vtrain"]
    fold = np.arange(len(rows.cases)) % FOLDS
    predicted = np.empty(len(fold))
    for number in range(FOLDS):
        constants = fit_published({**sources, "vtrain": rows.where(fold != number)})
        predicted[fold == number] = _seconds(rows.where(fold == number), constants)
    lines.append(Line("vTrain, single node, five folds", len(fold), median_error(predicted, rows.seconds), most=0.08))
    return lines


def _seconds(rows: Measured, constants: dict[str, float]) -> Numbers:
    cases = rows.columns()
    return step(replace(cases, profile=replace(cases.profile, **constants))).seconds


def main() -> int:
    """Print the table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/reference")
    if not (folder / "playbook.csv.gz").exists():
        sys.stdout.write(f"skipped: {folder} has no reference tables\n")
        return 0
    rows = playbook(folder)
    ran = rows.where(np.isfinite(rows.seconds))
    lines, folded, normal, plain = sweep_speed(ran)
    lines += choices(ran, folded, normal, plain)
    lines += sweep_memory(rows)
    lines += published_speed(read_sources(folder))
    lines.append(megatron_peaks(megatron_memory(folder)))
    sys.stdout.write("| what | rows | figure | bar | |\n|---|---|---|---|---|\n")
    sys.stdout.write("\n".join(map(str, lines)) + "\n")
    return 0 if all(line.is_met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
