"""The report of a trend: one line of blocks for each metric, with its change points."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from usp_prof.gate.judgement import worsening
from usp_prof.report.answers.check import plain
from usp_prof.report.answers.wording import figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.gate.history import MetricTrend

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 60


def text(trends: Sequence[MetricTrend]) -> str:
    """Draw the metrics over the runs for a terminal."""
    lines = []
    for each in trends:
        first, last = figure(each.values[0], each.unit), figure(each.values[-1], each.unit)
        others = f" ({each.left_out} under other conditions left out)" if each.left_out else ""
        runs = "1 run" if len(each.values) == 1 else f"{len(each.values)} runs"
        lines.append(f"{each.key}  {runs}{others}  {first} -> {last}")
        lines.append(f"  {sparkline(each.values)}")
        lines += [f"  {sentence}" for sentence in sentences(each)]
    return "\n".join(lines) + "\n" if lines else "no metric\n"


def json_text(trends: Sequence[MetricTrend]) -> str:
    """Write the trends as JSON."""
    metrics = [{**plain(asdict(each)), "sentences": sentences(each)} for each in trends]
    return json.dumps({"format": "usp-prof-trend", "version": 1, "metrics": metrics}, indent=1, sort_keys=True) + "\n"


def sentences(each: MetricTrend) -> list[str]:
    """Say what a metric does: its drift or its change points; nothing where it is steady."""
    if each.trend.drift_per_run:
        amount = each.trend.drift_per_run
        share = f"{each.drift_fraction * 100:+z.2f} % a run" if each.values[0] else f"{amount:+.3g} a run"
        chance = f"{each.trend.drift_chance:.1g}" if each.trend.drift_chance >= 1e-9 else "< 1e-9"
        return [f"drifts {share}, {_judged(each, amount)} (chance of this without drift {chance})"]
    changes = []
    for change in each.trend.changes:
        amount = change.after - change.before
        share = f"{amount / abs(change.before) * 100:+z.2f} %" if change.before else f"{amount:+.3g}"
        changes.append(
            f"changed at {each.labels[change.index]} (run {change.index}): {figure(change.before, each.unit)} -> "
            f"{figure(change.after, each.unit)}, {share}, {_judged(each, amount)}"
        )
    return changes


def sparkline(values: Sequence[float]) -> str:
    """Draw values as blocks, the newest `_WIDEST` of them."""
    shown = list(values)[-_WIDEST:]
    low, span = min(shown), max(shown) - min(shown)
    if span == 0:
        return _BLOCKS[0] * len(shown)
    return "".join(_BLOCKS[min(int((value - low) / span * len(_BLOCKS)), len(_BLOCKS) - 1)] for value in shown)


def _judged(each: MetricTrend, amount: float) -> str:
    if each.better == "neither":
        return "changed"
    return "worse" if worsening(each.better, amount) > 0 else "better"
