"""Memory predictions of the planner: peaks of the playbook's sweep and of Megatron's tests, and which runs fit.

The textbook formula (`planner_baselines.py`), with one factor fitted to the same rows, is shown for comparison.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from planner_bars import Line, folds_of, median_error
from planner_baselines import textbook_memory
from planner_fit import least_squares

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner_bars import Mask, Numbers
    from planner_rows import Measured

OF_SWEEP = ("activation_scale", "logit_bytes", "overhead_bytes")
OF_MEGATRON = ("logit_bytes", "overhead_bytes")
ROOM = 0.8 * 80e9
"""Memory available to a plan, a share of an H100's."""
PRIOR = 0.05


def sweep(rows: Measured) -> list[Line]:
    """Evaluate the sweep: the first rank's peak in five folds, and which runs fit."""
    good = np.isfinite(rows.memory_bytes)
    fold = folds_of(len(rows.cases))
    first, fullest, textbook = (np.empty(len(fold)) for _ in range(3))
    for number in range(fold.max() + 1):
        held = fold == number
        fitted = _fit(rows.where(good & ~held), "nanotron", OF_SWEEP)
        first[held] = _peaks(rows.where(held), "nanotron", OF_SWEEP, fitted)
        fullest[held] = _peaks(replace(rows.where(held), reported_rank=""), "nanotron", OF_SWEEP, fitted)
        textbook[held] = _textbook(rows, good & ~held)[held]
    measured = rows.memory_bytes[good]
    beside = f"textbook {median_error(textbook[good], measured):.1%}"
    lines = [Line("memory, sweep", int(good.sum()), median_error(first[good], measured), most=0.1, beside=beside)]
    crash = failed_with_enough_memory(rows)
    fails = ~good[~crash]
    lines.append(
        Line(
            f"fits against fails, AUC without {crash.sum()} crashes", len(fails), _auc(fullest[~crash], fails),
            least=0.97, beside=f"textbook {_auc(textbook[~crash], fails):.1%}",
        )
    )  # fmt: skip
    called, called_by_textbook = fullest < ROOM, textbook < ROOM
    for case, failed, most in (("without crashes", ~good & ~crash, 0.03), ("with crashes", ~good, np.inf)):
        beside = f"textbook {_share(failed, called_by_textbook):.1%}"
        name = f"called fitting and failed, {case}"
        lines.append(Line(name, int(called.sum()), _share(failed, called), most=most, beside=beside))
    inside = np.abs(np.log(measured / first[good])) < float(PROFILES["nanotron"].memory_spread)
    return [*lines, Line("80% intervals of memory hold", int(good.sum()), float(inside.mean()), 0.75, 0.88)]


def failed_with_enough_memory(rows: Measured) -> Mask:
    """Return the failed rows of the sweep whose cause was not memory, because a row that needs no less memory ran.

    The table has one status for all failures. More memory is needed by larger micro-batches, more of them in flight,
    ZeRO-0, and fewer shards of the optimizer.
    """
    frame = rows.rows.assign(in_flight=np.minimum(rows.rows.grad_acc, rows.rows.pp))
    ran = np.isfinite(rows.memory_bytes)

    def column(name: str) -> tuple[Numbers, Numbers]:
        values = frame[name].to_numpy()
        return values[~ran, None], values[None, ran]

    needs_no_less = np.ones(((~ran).sum(), ran.sum()), bool)
    for name in ("model", "tp", "pp"):
        failed, successful = column(name)
        needs_no_less &= failed == successful
    for name in ("mbs", "in_flight"):
        failed, successful = column(name)
        needs_no_less &= failed <= successful
    (zero, zero_of_run), (dp, dp_of_run) = column("zero"), column("dp")
    needs_no_less &= (zero_of_run == 0) | ((zero > 0) & (dp_of_run <= dp))
    proven = np.zeros(len(ran), bool)
    proven[~ran] = needs_no_less.any(axis=1)
    return proven


def megatron(rows: Measured) -> Line:
    """Evaluate Megatron's tests by halves; all rows of one case (of any device and image) are in the same half."""
    half = np.array([crc32(case.encode()) % 2 for case in rows.rows.case])
    predicted, textbook = np.empty(len(half)), np.empty(len(half))
    for number in range(2):
        held = half == number
        fitted = _fit(rows.where(~held), "megatron", OF_MEGATRON)
        predicted[held] = _peaks(rows.where(held), "megatron", OF_MEGATRON, fitted)
        textbook[held] = _textbook(rows, ~held)[held]
    measured = rows.memory_bytes
    beside = f"textbook {median_error(textbook, measured):.1%}"
    return Line("memory, Megatron's tests", len(half), median_error(predicted, measured), most=0.09, beside=beside)


def _fit(rows: Measured, trainer: str, names: Sequence[str]) -> Numbers:
    target = np.log(rows.memory_bytes)
    start = np.log([getattr(PROFILES[trainer], name) for name in names])
    return least_squares(lambda x: np.log(_peaks(rows, trainer, names, x)) - target, start, PRIOR)


def _peaks(rows: Measured, trainer: str, names: Sequence[str], logarithms: Numbers) -> Numbers:
    """Return the peaks of the reported rank."""
    constants = dict(zip(names, np.exp(logarithms).tolist(), strict=True))
    return rows.peaks(memory.stage_parts(rows.columns(replace(PROFILES[trainer], **constants))))


def _textbook(rows: Measured, used: Mask) -> Numbers:
    """Return the textbook formula scaled to the selected rows."""
    plain = textbook_memory(rows.columns())
    return plain * float(np.exp(np.median(np.log(rows.memory_bytes[used] / plain[used]))))


def _auc(peaks: Numbers, fails: Mask) -> float:
    """Return how often a failed run has a higher predicted peak than a successful one."""
    ranks = np.argsort(np.argsort(peaks))
    return float((ranks[fails].sum() - fails.sum() * (fails.sum() - 1) / 2) / (fails.sum() * (~fails).sum()))


def _share(failed: Mask, called: Mask) -> float:
    return float((called & failed).sum() / max(called.sum(), 1))
