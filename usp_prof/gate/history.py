"""How did the metrics go over commits? A Parquet file that each check appends to, and the trend of each metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from usp_prof.gate.changepoint import Trend, find_trend
from usp_prof.gate.sample import boil_down
from usp_prof.model.errors import InputError
from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.gate.measured import Measured

SCHEMA = pa.schema(
    [
        ("run", pa.int64()),
        ("label", pa.string()),
        ("created", pa.string()),
        ("commit", pa.string()),
        ("verdict", pa.string()),
        ("key", pa.string()),
        ("title", pa.string()),
        ("unit", pa.string()),
        ("better", pa.string()),
        ("value", pa.float64()),
        ("error", pa.float64()),
        ("steps", pa.int64()),
        ("hardware", pa.string()),
    ]
)
"""One row for each metric of each checked run; `run` counts the runs of the file."""


@dataclass(frozen=True, slots=True)
class MetricTrend:
    """One metric over the runs of a history, oldest first, and what it does."""

    key: str
    title: str
    unit: Unit
    better: Better
    labels: tuple[str, ...]
    values: tuple[float, ...]
    trend: Trend

    @property
    def drift_fraction(self) -> float:
        """The drift per run as a fraction of the first value; 0 when none is told."""
        return self.trend.drift_per_run / abs(self.values[0]) if self.values[0] else 0.0


def append(path: str | Path, run: Measured, *, verdict: str = "", commit: str = "") -> int:
    """Add a run to a history file, made if it is missing; give the run's number in it."""
    old = read(path) if Path(path).exists() else SCHEMA.empty_table()
    number = max(old.column("run").to_pylist(), default=-1) + 1
    hardware = ", ".join(fact.value for fact in run.facts if fact.kind == "hardware" and fact.name == "device")
    rows = []
    for series in run.series:
        sample = boil_down(series.samples, series.steps)
        rows.append(
            {
                "run": number,
                "label": run.label,
                "created": run.created,
                "commit": commit,
                "verdict": verdict,
                "key": series.key,
                "title": series.title,
                "unit": str(series.unit),
                "better": str(series.better),
                "value": sample.centre,
                "error": sample.error if math.isfinite(sample.error) else math.nan,
                "steps": sample.steps,
                "hardware": hardware,
            }
        )
    target = Path(path)
    fresh = target.with_name(target.name + ".new")  # a reader never sees half a file
    try:
        pq.write_table(pa.concat_tables([old, pa.Table.from_pylist(rows, SCHEMA)]), fresh)
        fresh.replace(target)
    except OSError as error:
        raise InputError(f"cannot write history {path}: {error.strerror}", hint="name another file") from error
    return number


def read(path: str | Path) -> pa.Table:
    """Read a history file."""
    hint = "usp-prof check RUN --baseline baseline.json --history runs.parquet makes one"
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"cannot read history {path}: {error}", hint=hint) from error
    if not set(SCHEMA.names) <= set(table.column_names):
        raise InputError(f"{path} is no history of runs", hint=hint)
    return table.select(SCHEMA.names).cast(SCHEMA)


def trends(table: pa.Table, keys: Iterable[str] = ()) -> tuple[MetricTrend, ...]:
    """Give the trend of each metric (of those named, if any), in the order of their names."""
    wanted = set(keys)
    rows: dict[str, list[dict[str, object]]] = {}
    for row in table.sort_by([("key", "ascending"), ("run", "ascending")]).to_pylist():
        if not wanted or row["key"] in wanted:
            rows.setdefault(row["key"], []).append(row)
    found = []
    for key, listed in rows.items():
        values = tuple(float(str(row["value"])) for row in listed)
        labels = tuple(str(row["commit"] or row["label"]) for row in listed)
        last = listed[-1]
        unit, better = Unit(str(last["unit"])), Better(str(last["better"]))
        found.append(MetricTrend(key, str(last["title"]), unit, better, labels, values, find_trend(values)))
    return tuple(found)
