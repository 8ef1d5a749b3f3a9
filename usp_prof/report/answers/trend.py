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
    for trend in trends:
        first, last = figure(trend.values[0], trend.unit), figure(trend.values[-1], trend.unit)
        others = f" ({trend.left_out} under other conditions left out)" if trend.left_out else ""
        runs = "1 run" if len(trend.values) == 1 else f"{len(trend.values)} runs"
        lines.append(f"{trend.key}  {runs}{others}  {first} -> {last}")
        lines.append(f"  {sparkline(trend.values)}")
        lines += [f"  {sentence}" for sentence in sentences(trend)]
    return "\n".join(lines) + "\n" if lines else "no metric\n"


def json_text(trends: Sequence[MetricTrend]) -> str:
    """Write the trends as JSON."""
    metrics = [{**plain(asdict(trend)), "sentences": sentences(trend)} for trend in trends]
    return json.dumps({"format": "usp-prof-trend", "version": 1, "metrics": metrics}, indent=1, sort_keys=True) + "\n"


def sentences(metric: MetricTrend) -> list[str]:
    """Say what a metric does: its drift or its change points; nothing where it is steady."""
    if metric.trend.drift_per_run:
        amount = metric.trend.drift_per_run
        share = f"{metric.drift_fraction * 100:+z.2f} % a run" if metric.values[0] else f"{amount:+.3g} a run"
        chance = f"{metric.trend.drift_chance:.1g}" if metric.trend.drift_chance >= 1e-9 else "< 1e-9"
        return [f"drifts {share}, {_judged(metric, amount)} (chance of this without drift {chance})"]
    changes = []
    for change in metric.trend.changes:
        amount = change.after - change.before
        share = f"{amount / abs(change.before) * 100:+z.2f} %" if change.before else f"{amount:+.3g}"
        changes.append(
            f"changed at {metric.labels[change.index]} (run {change.index}): {figure(change.before, metric.unit)} -> "
            f"{figure(change.after, metric.unit)}, {share}, {_judged(metric, amount)}"
        )
    return changes


def sparkline(values: Sequence[float]) -> str:
    """Draw values as blocks, the newest `_WIDEST` of them."""
    shown = list(values)[-_WIDEST:]
    low, span = min(shown), max(shown) - min(shown)
    if span == 0:
        return _BLOCKS[0] * len(shown)
    return "".join(_BLOCKS[min(int((value - low) / span * len(_BLOCKS)), len(_BLOCKS) - 1)] for value in shown)


def _judged(metric: MetricTrend, amount: float) -> str:
    if metric.better == "neither":
        return "changed"
    return "worse" if worsening(metric.better, amount) > 0 else "better"
