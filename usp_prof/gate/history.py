"""History of metrics over commits: a Parquet file that each check appends to, with change points and drift.

One file may contain runs of several machines and configurations. The trend of a metric covers the runs that are
comparable with the newest one, by the same rules as a baseline. Other runs are left out and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from usp_prof import limits
from usp_prof.gate.change_points import Trend, find_trend
from usp_prof.gate.facts import Fact, FactKind, barred, differences
from usp_prof.gate.measured import Measured
from usp_prof.gate.sample import boil_down
from usp_prof.model.errors import NO_ROOM, InputError
from usp_prof.model.files import ERRORS, check_file_name, read_bytes
from usp_prof.model.metric import Better, Unit
from usp_prof.whole_files import one_writer, whole_file

if TYPE_CHECKING:
    _Row = dict[str, Any]
    "A row of the Parquet file, by the column names of `SCHEMA`."


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
        ("facts", pa.string()),
    ]
)
"""One row per metric and checked run. `run` numbers the runs; `facts` are a run's conditions, as JSON."""
_SINCE = {"facts": "[]"}
"""Columns that older files lack, with default values. No facts means that nothing blocks a comparison."""


@dataclass(frozen=True, slots=True)
class MetricTrend:
    """One metric over the runs of a history, oldest first, and its trend."""

    key: str
    title: str
    unit: Unit
    better: Better
    labels: tuple[str, ...]
    values: tuple[float, ...]
    trend: Trend
    left_out: int = 0
    """Number of runs under other conditions than the newest, which are not comparable for this metric."""

    @property
    def drift_fraction(self) -> float:
        """The drift per run as a fraction of the first value; 0 if no drift was detected."""
        return self.trend.drift_per_run / abs(self.values[0]) if self.values[0] else 0.0


def append(path: str | Path, run: Measured, *, verdict: str = "", commit: str = "") -> int:
    """Append a run to a history file, create the file if it is missing, and return the run's number.

    Several jobs may append at the same time: each waits for the lock.
    """
    check_file_name(path, "name another file")
    try:
        with one_writer(Path(path)):
            return _append(path, run, verdict, commit)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise InputError(f"cannot write history {path}: {error.strerror}", hint="name another file") from error


def _append(path: str | Path, run: Measured, verdict: str, commit: str) -> int:
    old = read(path) if Path(path).exists() else SCHEMA.empty_table()
    number = max(old.column("run").to_pylist(), default=-1) + 1
    hardware = ", ".join(fact.value for fact in run.facts if fact.kind == "hardware" and fact.name == "device")
    facts = json.dumps([asdict(fact) for fact in run.facts])
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
                "value": sample.center,
                "error": sample.error if math.isfinite(sample.error) else math.nan,
                "steps": sample.steps,
                "hardware": hardware,
                "facts": facts,
            }
        )
    with whole_file(Path(path)) as file:
        pq.write_table(pa.concat_tables([old, pa.Table.from_pylist(rows, SCHEMA)]), file)
    return number


def read(path: str | Path) -> pa.Table:
    """Read a history file."""
    hint = "usp-prof check RUN --baseline baseline.json --history runs.parquet makes one"
    data = read_bytes(path, "history", hint)
    try:
        table = pq.read_table(pa.BufferReader(data))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read history {path}: {error}", hint=hint) from error
    for name, value in _SINCE.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array([value] * len(table), pa.string()))
    if not set(SCHEMA.names) <= set(table.column_names):
        raise InputError(f"{path} is not a history of runs", hint=hint)
    try:
        table = table.select(SCHEMA.names).cast(SCHEMA)
        _check(table)
    except (pa.ArrowException, *ERRORS) as error:
        raise InputError(f"{path} is not a history of runs: {error}", hint=hint) from error
    return table


def _check(table: pa.Table) -> None:
    """Raise ValueError if a value is missing, not finite, or not one of the allowed words."""
    for name in SCHEMA.names:
        if table.column(name).null_count:
            raise ValueError(f"{name} is missing in a row")
    for number in table.column("run").unique().to_pylist():
        if not limits.COUNT.holds(number) or number < 0:
            raise ValueError(f"run is {number}, and runs are counted from 0")
    if not np.isfinite(table.column("value").to_numpy()).all():
        raise ValueError("value is not a finite number in a row")
    for unit in table.column("unit").unique().to_pylist():
        Unit(unit)
    for better in table.column("better").unique().to_pylist():
        Better(better)
    for text in table.column("facts").unique().to_pylist():
        _facts(text)


def trends(table: pa.Table) -> tuple[MetricTrend, ...]:
    """Return the trend of each metric, sorted by key."""
    rows: dict[str, list[_Row]] = {}
    for row in table.sort_by([("key", "ascending"), ("run", "ascending")]).to_pylist():
        rows.setdefault(row["key"], []).append(row)
    facts = {text: _facts(text) for text in set(table.column("facts").to_pylist())}
    return tuple(_trend(key, rows_of_key, facts) for key, rows_of_key in rows.items())


def _trend(key: str, rows: Sequence[_Row], facts: Mapping[str, tuple[Fact, ...]]) -> MetricTrend:
    last = rows[-1]
    unit, better = Unit(last["unit"]), Better(last["better"])
    barred_facts = {text for text in facts if barred(unit, differences(facts[text], facts[last["facts"]]))}
    comparable_rows = [row for row in rows if row["facts"] not in barred_facts]
    values = tuple(float(row["value"]) for row in comparable_rows)
    labels = tuple(str(row["commit"] or row["label"]) for row in comparable_rows)
    out = len(rows) - len(comparable_rows)
    return MetricTrend(key, last["title"], unit, better, labels, values, find_trend(values), out)


def _facts(text: str) -> tuple[Fact, ...]:
    return tuple(Fact(FactKind(fact["kind"]), fact["name"], fact["value"]) for fact in json.loads(text))
