"""OpenMetrics writer: every metric as a gauge in base units, for Prometheus and what reads its text format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from usp_prof.model.metric import Metric, Unit, Value

if TYPE_CHECKING:
    from usp_prof.report.document import Document

_BASE = {
    Unit.NS: ("seconds", 1e-9),
    Unit.FRACTION: ("ratio", 1.0),
    Unit.RATIO: ("ratio", 1.0),
    Unit.BYTES: ("bytes", 1.0),
    Unit.BYTES_PER_SECOND: ("bytes_per_second", 1.0),
    Unit.FLOP_PER_SECOND: ("flop_per_second", 1.0),
    Unit.PER_SECOND: ("per_second", 1.0),
}
"""Unit and factor by which each unit is exported; other units have no suffix."""


def write(documents: Iterable[Document]) -> str:
    """Return the metrics of all reports; the label `run` names the report."""
    samples: dict[str, list[str]] = {}
    metrics: dict[str, Metric] = {}
    for document in documents:
        for value in document.values:
            metrics.setdefault(value.metric.id, value.metric)
            samples.setdefault(value.metric.id, []).append(_sample(value, document.run.name))
    lines = [line for id_, metric in metrics.items() for line in (*_head(metric), *samples[id_])]
    return "\n".join([*lines, "# EOF", ""])


def exported_name(metric: Metric) -> str:
    """Return the name of a metric with its exported unit, such as `step_time_seconds`."""
    unit, _ = _BASE.get(metric.unit, ("", 1.0))
    return metric.id if not unit or metric.id.endswith(unit) else f"{metric.id}_{unit}"


def exported(value: Value) -> float:
    """Return a value in its exported unit."""
    return value.value * _BASE.get(value.metric.unit, ("", 1.0))[1]


def _head(metric: Metric) -> list[str]:
    name = f"usp_prof_{exported_name(metric)}"
    unit, _ = _BASE.get(metric.unit, ("", 1.0))
    units = [f"# UNIT {name} {unit}"] if name.endswith(unit) and unit else []
    return [f"# TYPE {name} gauge", *units, f"# HELP {name} {_escaped(metric.doc)}"]


def _sample(value: Value, run: str) -> str:
    labels = {"run": run, **value.dims}
    text = ",".join(f'{name}="{_escaped(str(label))}"' for name, label in labels.items())
    return f"usp_prof_{exported_name(value.metric)}{{{text}}} {exported(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
