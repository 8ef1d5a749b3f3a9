"""History of metrics over commits: a Parquet file that each check appends to, and the change points and drift in it.

One file may hold runs of several machines and configurations. A metric's trend is that of the runs which can be
compared with the newest, by the same rules as a baseline; the others are left out and counted.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from usp_prof.gate.facts import Fact, FactKind, barred, differences
from usp_prof.gate.sample import boil_down, t_quantile
from usp_prof.model.errors import NO_ROOM, InputError
from usp_prof.model.files import read_bytes
from usp_prof.model.metric import Better, Unit
from usp_prof.model.plain_data import ERRORS
from usp_prof.whole_files import one_writer, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from usp_prof.gate.measured import Measured

    _Row = dict[str, Any]
    "A row as Parquet holds it, by the names of `SCHEMA`."


# Change points and drift in a series of runs
#
# Change points: the partition with the least squared error and a penalty for each point (Bayesian information). The
# noise is estimated from the differences of neighbours, which a few steps cannot inflate. Dynamic programming finds
# the best partition exactly.
# Drift: the Theil-Sen slope with the Mann-Kendall test. A series drifts when a straight line explains it better than
# the change points do.


SHORTEST = 3
"""A level lasts at least so many runs: a single strange run is no change point."""

PENALTY = 3.0
"""In units of noise variance times log(runs), for each change point that is tried."""

CHANGE_CHANCE = 0.00005
"""A change point that was tried stays when its two levels differ by more than noise does in this share of the cases;
it is this small because the best of many places was picked."""

DRIFT_CHANCE = 0.001
"""A drift is told when a series without one would look so in less than this share of the cases."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """The level changed at run `index` (its position), from `before` to `after`."""

    index: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Trend:
    """What a series of runs does: its change points, and its drift per run (0 when none is told)."""

    changes: tuple[ChangePoint, ...]
    drift_per_run: float
    drift_chance: float
    noise: float


def find_trend(values: Sequence[float]) -> Trend:
    """Look for steps and drift in a series of runs, oldest first."""
    series = np.asarray(values, dtype=np.float64)
    n = len(series)
    if n < 2 * SHORTEST:
        return Trend((), 0.0, 1.0, math.nan)
    noise = _noise(series)
    if noise == 0 and np.ptp(series) == 0:
        return Trend((), 0.0, 1.0, 0.0)
    scale = max(noise, 1e-9 * float(np.abs(series).max()))
    edges = _pruned(series, _partition(series, PENALTY * scale**2 * math.log(n)), 1e-9 * float(np.abs(series).max()))
    slope, chance = mann_kendall(series)
    stepped = _stepped_error(series, edges) + (len(edges) * PENALTY) * scale**2 * math.log(n)
    sloped = _line_error(series, slope) + PENALTY * scale**2 * math.log(n)
    if chance < DRIFT_CHANCE and sloped <= stepped:
        return Trend((), slope, chance, noise)
    bounds = [0, *edges, n]
    means = [float(series[a:b].mean()) for a, b in pairwise(bounds)]
    changes = tuple(ChangePoint(edge, means[i], means[i + 1]) for i, edge in enumerate(edges))
    return Trend(changes, 0.0, chance, noise)


def mann_kendall(series: NDArray[np.float64]) -> tuple[float, float]:
    """Give the Theil-Sen slope per run, and how likely so much order is without any drift."""
    n = len(series)
    left, right = np.triu_indices(n, 1)
    differences = series[right] - series[left]
    slope = float(np.median(differences / (right - left)))
    score = float(np.sign(differences).sum())
    variance = n * (n - 1) * (2 * n + 5) / 18
    z = (abs(score) - 1) / math.sqrt(variance) if score else 0.0
    return slope, 2 * NormalDist().cdf(-max(z, 0.0))


def _noise(series: NDArray[np.float64]) -> float:
    """Give the noise from second differences, which neither steps nor drift move."""
    bends = series[2:] - 2 * series[1:-1] + series[:-2]
    middle = float(np.median(np.abs(bends))) * 1.4826 / math.sqrt(6)
    return middle if middle > 0 else float(np.abs(bends).mean()) * 1.2533 / math.sqrt(6)


def _partition(series: NDArray[np.float64], penalty: float) -> list[int]:
    n = len(series)
    sums = np.concatenate(([0.0], np.cumsum(series)))
    squares = np.concatenate(([0.0], np.cumsum(series**2)))
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(n + 1, dtype=np.int64)
    for end in range(SHORTEST, n + 1):
        starts = np.arange(end - SHORTEST + 1)
        length = end - starts
        error = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / length
        total = best[starts] + np.maximum(error, 0.0) + penalty
        last[end] = int(np.argmin(total))
        best[end] = total[last[end]]
    edges = []
    end = n
    while end > 0:
        end = int(last[end])
        edges.append(end)
    return sorted(edge for edge in edges if edge > 0)


def _pruned(series: NDArray[np.float64], edges: list[int], least: float) -> list[int]:
    """Drop change points whose levels the spread around them does not tell apart, the weakest first."""
    kept = list(edges)
    while kept:
        freedom = len(series) - len(kept) - 1
        spread = max(math.sqrt(_stepped_error(series, kept) / freedom), least)
        bounds = [0, *kept, len(series)]
        levels = [series[a:b] for a, b in pairwise(bounds)]
        scores = [
            abs(float(b.mean() - a.mean())) / (spread * math.sqrt(1 / len(a) + 1 / len(b))) for a, b in pairwise(levels)
        ]
        weakest = int(np.argmin(scores))
        if scores[weakest] >= t_quantile(CHANGE_CHANCE * min(1.0, 30 / len(series)), freedom):
            break
        kept.pop(weakest)
    return kept


def _stepped_error(series: NDArray[np.float64], edges: Sequence[int]) -> float:
    bounds = [0, *edges, len(series)]
    return sum(float(((series[a:b] - series[a:b].mean()) ** 2).sum()) for a, b in pairwise(bounds))


def _line_error(series: NDArray[np.float64], slope: float) -> float:
    rest = series - slope * np.arange(len(series))
    return float(((rest - np.median(rest)) ** 2).sum())


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
"""One row for each metric of each checked run; `run` counts the runs, `facts` are a run's conditions, as JSON."""
_SINCE = {"facts": "[]"}
"""Columns that older files lack, and what stands for them: nothing is known that would bar a comparison."""


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
    left_out: int = 0
    """Runs under other conditions than the newest, with which this metric cannot be compared."""

    @property
    def drift_fraction(self) -> float:
        """The drift per run as a fraction of the first value; 0 when none is told."""
        return self.trend.drift_per_run / abs(self.values[0]) if self.values[0] else 0.0


def append(path: str | Path, run: Measured, *, verdict: str = "", commit: str = "") -> int:
    """Add a run to a history file, made if it is missing; give the run's number in it.

    Several jobs may add at once: each waits for the others.
    """
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
                "value": sample.centre,
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
        raise InputError(f"{path} is no history of runs", hint=hint)
    try:
        table = table.select(SCHEMA.names).cast(SCHEMA)
        _check(table)
    except (pa.ArrowException, *ERRORS) as error:
        raise InputError(f"{path} is no history of runs: {error}", hint=hint) from error
    return table


def _check(table: pa.Table) -> None:
    """Raise where a value is missing, is no finite number, or no word that a history has."""
    for name in SCHEMA.names:
        if table.column(name).null_count:
            raise ValueError(f"{name} is missing in a row")
    if not np.isfinite(table.column("value").to_numpy()).all():
        raise ValueError("value is no finite number in a row")
    for unit in table.column("unit").unique().to_pylist():
        Unit(unit)
    for better in table.column("better").unique().to_pylist():
        Better(better)
    for text in table.column("facts").unique().to_pylist():
        _facts(text)


def trends(table: pa.Table, keys: Iterable[str] = ()) -> tuple[MetricTrend, ...]:
    """Give the trend of each metric (of those named, if any), in the order of their names."""
    wanted = set(keys)
    rows: dict[str, list[_Row]] = {}
    for row in table.sort_by([("key", "ascending"), ("run", "ascending")]).to_pylist():
        if not wanted or row["key"] in wanted:
            rows.setdefault(row["key"], []).append(row)
    facts = {text: _facts(text) for text in set(table.column("facts").to_pylist())}
    return tuple(_trend(key, listed, facts) for key, listed in rows.items())


def _trend(key: str, listed: Sequence[_Row], facts: Mapping[str, tuple[Fact, ...]]) -> MetricTrend:
    last = listed[-1]
    unit, better = Unit(last["unit"]), Better(last["better"])
    apart = {text for text in facts if barred(unit, differences(facts[text], facts[last["facts"]]))}
    like = [row for row in listed if row["facts"] not in apart]
    values = tuple(float(row["value"]) for row in like)
    labels = tuple(str(row["commit"] or row["label"]) for row in like)
    out = len(listed) - len(like)
    return MetricTrend(key, last["title"], unit, better, labels, values, find_trend(values), out)


def _facts(text: str) -> tuple[Fact, ...]:
    return tuple(Fact(FactKind(each["kind"]), each["name"], each["value"]) for each in json.loads(text))
