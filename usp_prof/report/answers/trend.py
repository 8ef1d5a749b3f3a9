"""Trend report: metrics that changed over a history, then all others, each with a sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from usp_prof.gate.change_points import FEWEST
from usp_prof.gate.history import MetricTrend
from usp_prof.gate.judgment import worsening
from usp_prof.model.printable import counted
from usp_prof.report.format import quantity
from usp_prof.report.writers.json_text import answer_text

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 60


def text(trends: Sequence[MetricTrend], *, only_changed: bool = False) -> str:
    """Format the metrics over the runs for a terminal, changed or drifting ones first, or only these."""
    if not trends:
        return "no metric\n"
    runs = max(len(trend.values) for trend in trends)
    changed = [trend for trend in trends if sentences(trend)]
    steady = [] if only_changed else [trend for trend in trends if not sentences(trend)]
    lines = [_headline(len(trends), len(changed), runs), *([""] if changed or steady else [])]
    for trend in changed:
        lines += [_line(trend, runs), *(f"  {sentence}" for sentence in sentences(trend))]
    if changed and steady:
        lines += ["", "no change:"]
    lines += [_line(trend, runs) for trend in steady]
    return "\n".join(lines) + "\n"


def _headline(metrics: int, changed: int, runs: int) -> str:
    """Return how many metrics and runs there are, and how many changed."""
    over = f"{counted(metrics, 'metric')} over {counted(runs, 'run')}"
    if runs < FEWEST:
        return f"{over}: too few runs to find a change (needs {FEWEST})"
    return f"{over}: {changed or 'none'} changed or drifting"


def _line(trend: MetricTrend, most_runs: int) -> str:
    """Format one metric, with its number of runs if it has fewer than others."""
    first, last = quantity(trend.values[0], trend.unit), quantity(trend.values[-1], trend.unit)
    line = f"{sparkline(trend.values)}  {trend.key}  {first} -> {last}"
    if trend.left_out:
        return f"{line}  {counted(len(trend.values), 'run')} ({trend.left_out} runs under other conditions left out)"
    return f"{line}  {counted(len(trend.values), 'run')}" if len(trend.values) < most_runs else line


def json_text(trends: Sequence[MetricTrend]) -> str:
    """Format the trends as JSON."""
    return answer_text("trend", {"metrics": [asdict(trend) | {"sentences": sentences(trend)} for trend in trends]})


def sentences(metric: MetricTrend) -> list[str]:
    """Return drift and change points of a metric as sentences."""
    if metric.trend.drift_per_run:
        amount = metric.trend.drift_per_run
        share = f"{metric.drift_fraction * 100:+z.2f}%" if metric.values[0] else f"{amount:+.3g}"
        chance = f"{metric.trend.drift_chance:.1g}" if metric.trend.drift_chance >= 1e-9 else "< 1e-9"
        return [f"drifts by {share} per run{_judged(metric, amount)} (probability without a drift: {chance})"]
    changes = []
    for change in metric.trend.changes:
        amount = change.after - change.before
        share = f"{amount / abs(change.before) * 100:+z.2f}%" if change.before else f"{amount:+.3g}"
        changes.append(
            f"changed at {metric.labels[change.index]} (run {change.index}): {quantity(change.before, metric.unit)} -> "
            f"{quantity(change.after, metric.unit)}, {share}{_judged(metric, amount)}"
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
    """Return whether a change is better or worse, for the end of a sentence; empty for metrics without a direction."""
    if metric.better == "neither":
        return ""
    return ", worse" if worsening(metric.better, amount) > 0 else ", better"
