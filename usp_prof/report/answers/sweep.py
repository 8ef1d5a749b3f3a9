"""A sweep as sections: what ran and what failed, the playbook's heat maps, and the planner held against it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from usp_prof._version import __version__
from usp_prof.charts.inputs import PlanGrid
from usp_prof.model.metric import Unit
from usp_prof.planner.sweep.score import DOUBTFUL
from usp_prof.report.document import (
    Chart,
    DataTable,
    Document,
    KeyFigure,
    KeyFigures,
    RunFacts,
    Section,
    TableColumn,
    Text,
)
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from usp_prof.planner.sweep.rows import Row
    from usp_prof.planner.sweep.score import Score
    from usp_prof.report.document import Block

Key = TypeVar("Key")

ROWS = 20
"""Configurations that are listed, fastest first."""
MAPS = 6
"""Maps over two degrees that are drawn: those of the models and sizes with most measured rows."""


def _degree(axis: str) -> Callable[[Row], int]:
    return lambda row: int(getattr(row.configuration, axis)) if row.configuration else 0


AXES: dict[str, Callable[[Row], int]] = {
    axis: _degree(axis) for axis in ("dp", "tp", "cp", "pp", "ep", "zero", "micro_batch", "micro_batches")
}
"""What a map may have on its sides."""


def sections(
    rows: Sequence[Row],
    score: Score | None,
    notes: Sequence[str] = (),
    *,
    drawn: bool,
    axes: tuple[str, str] | None = None,
) -> tuple[Section, ...]:
    """Set out a sweep; `drawn` gives maps as charts, else as tables."""
    found = [summary(rows, notes)]
    models = sorted({row.model for row in rows})
    sizes = sorted({row.size for row in rows})
    if any(row.is_ok for row in rows):
        if len(models) > 1 or len(sizes) > 1:
            found.append(_best(rows, models, sizes, drawn=drawn))
        found += _maps(rows, axes or varied(rows), drawn=drawn)
    found += _failures(rows)
    found.append(Section("sweep-rows", "Configurations, fastest first", (listed(rows),)))
    if score is not None:
        found.append(judged(score))
    return tuple(found)


def document(title: str, parts: Sequence[Section]) -> Document:
    """Wrap sections into a page of their own; a sweep is no run, and has no metrics or findings."""
    facts = RunFacts(
        name=title,
        ranks=(),
        world_size=None,
        axes={},
        axes_inferred=False,
        steps=(),
        step_source="",
        devices=(),
        hosts=0,
    )
    return Document(__version__, facts, {}, (), (), (), parts[0], tuple(parts[1:]))


def summary(rows: Sequence[Row], notes: Sequence[str] = ()) -> Section:
    """Say what was tried, what ran, and what was fastest."""
    ok = [row for row in rows if row.is_ok]
    blocks: list[Block] = [
        KeyFigures(
            (
                KeyFigure("configurations", len(rows), Unit.COUNT),
                KeyFigure("ran", len(ok), Unit.COUNT),
                KeyFigure("failed", len(rows) - len(ok), Unit.COUNT),
            )
        )
    ]
    fastest = _fastest(ok, lambda row: row.model)
    blocks += [Text(sentence(fastest[model])) for model in sorted(fastest)]
    blocks += [Text(note, quiet=True) for note in notes]
    return Section("sweep", "Sweep", tuple(blocks))


def sentence(row: Row) -> str:
    """Say how fast a configuration is."""
    mfu = f", MFU {row.mfu:.1%}" if np.isfinite(row.mfu) else ""
    return f"Fastest of {row.model}: {row.configuration} on {_sized(row)}, {row.tokens_per_second:,.0f} tokens/s{mfu}."


def _sized(row: Row) -> str:
    devices = f"{row.devices} device{'s' if row.devices > 1 else ''}"
    return f"{row.nodes} node{'s' if row.nodes > 1 else ''} ({devices})" if row.nodes else devices


# Heat maps: the fastest configuration of each cell, by tokens a second of one device, which MFU follows.


def _best(rows: Sequence[Row], models: Sequence[str], sizes: Sequence[int], *, drawn: bool) -> Section:
    """Map the fastest configuration of each model on each number of nodes (devices where no nodes are told)."""
    what = "nodes" if any(row.nodes for row in rows) else "devices"
    cells = _fastest(rows, lambda row: (models.index(row.model), row.size))
    title = f"Best configuration by model and {what}"
    block = _map(cells, tuple(models), tuple(sizes), ("model", what), drawn=drawn, named=True)
    return Section("sweep-best", title, (block,))


def varied(rows: Iterable[Row]) -> tuple[str, str]:
    """Choose the sides of the maps: tp and pp as the playbook has them, others where one of these does not vary."""
    rows = list(rows)
    counts = {axis: len({read(row) for row in rows if row.configuration is not None}) for axis, read in AXES.items()}
    order = [
        axis for axis in ("tp", "pp", "zero", "dp", "cp", "ep", "micro_batch", "micro_batches") if counts[axis] > 1
    ]
    first, second = (*order, *(axis for axis in ("tp", "pp") if axis not in order))[:2]
    return first, second


def _maps(rows: Sequence[Row], axes: tuple[str, str], *, drawn: bool) -> list[Section]:
    """Map MFU over two degrees, for each model and size that has several measured rows."""
    groups = Counter((row.model, row.size) for row in rows if row.is_ok)
    several = [key for key, count in groups.items() if count > 1]
    chosen = sorted(several, key=lambda key: (-groups[key], key))[:MAPS]
    down, across = axes
    found: list[Section] = []
    for model, size in sorted(chosen):
        part = [row for row in rows if (row.model, row.size) == (model, size) and row.configuration is not None]
        lines = tuple(sorted({AXES[down](row) for row in part}))
        columns = tuple(sorted({AXES[across](row) for row in part}))
        cells = _fastest(part, lambda row: (lines.index(AXES[down](row)), AXES[across](row)))  # noqa: B023 - used at once
        what = "MFU" if _has_mfu(part) else "tokens/s"
        title = f"{what} by {down} and {across}: {model} on {_sized(part[0])}"
        block = _map(cells, lines, columns, axes, drawn=drawn, tried=_tried(part, axes, lines))
        found.append(Section(f"sweep-map-{len(found)}", title, (block,)))
    if found and len(several) > len(chosen):
        said = Text(f"{len(several) - len(chosen)} more models and sizes have a map: choose with --only.", quiet=True)
        found[-1] = Section(found[-1].id, found[-1].title, (*found[-1].blocks, said))
    return found


def _tried(rows: Iterable[Row], axes: tuple[str, str], lines: Sequence[int]) -> dict[tuple[int, int], str]:
    """Say of each cell without a measured row why its configurations failed."""
    down, across = axes
    why: dict[tuple[int, int], Counter[str]] = {}
    for row in rows:
        why.setdefault((lines.index(AXES[down](row)), AXES[across](row)), Counter())[str(row.status)] += 1
    return {place: counts.most_common(1)[0][0] for place, counts in why.items()}


def _fastest(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, Row]:
    """Give the fastest measured row of each key, by tokens a second of one device."""
    fastest: dict[Key, Row] = {}
    for row in rows:
        if row.is_ok and (key(row) not in fastest or row.tokens_per_device > fastest[key(row)].tokens_per_device):
            fastest[key(row)] = row
    return fastest


def _has_mfu(rows: Iterable[Row]) -> bool:
    return all(np.isfinite(row.mfu) for row in rows if row.is_ok)


def _map(
    cells: dict[tuple[int, int], Row], lines: tuple[int | str, ...], columns: tuple[int, ...], axes: tuple[str, str], *,
    drawn: bool, named: bool = False, tried: dict[tuple[int, int], str] | None = None,
) -> Block:  # fmt: skip
    """Make a map, or a table of the same; cells are keyed by the place of their line and their column."""
    what = "MFU" if _has_mfu(cells.values()) else "tokens/s"

    def value(row: Row) -> float:
        return row.mfu if what == "MFU" else row.tokens_per_second

    def text(place: tuple[int, int]) -> str:
        row = cells.get(place)
        if row is None:
            return (tried or {}).get(place, "")
        figure = quantity(value(row), Unit.FRACTION) if what == "MFU" else f"{value(row):,.0f}"
        return f"{figure} {degrees(row)}" if named else figure

    def label(place: tuple[int, int]) -> str:
        return str(cells[place].configuration) if place in cells else text(place) or "not tried"

    places = [(line, column) for line in range(len(lines)) for column in columns]
    if not drawn:
        heads = (TableColumn(f"{axes[0]} \\ {axes[1]}"), *(TableColumn(str(column)) for column in columns))
        texts = [[text((line, column)) for column in columns] for line in range(len(lines))]
        return DataTable(what, heads, tuple((str(name), *row) for name, row in zip(lines, texts, strict=True)))
    values = np.array([value(cells[place]) if place in cells else np.nan for place in places])
    return Chart(
        "",
        PlanGrid(
            what, axes[1], axes[0], columns, lines, values.reshape(len(lines), len(columns)),
            tuple(text(place) for place in places),
            tuple(label(place) for place in places),
        ),
    )  # fmt: skip


def degrees(row: Row) -> str:
    """Name a configuration by its degrees alone."""
    c = row.configuration
    if c is None:
        return ""
    words = [f"{axis}{size}" for axis, size in c.degrees().items() if size > 1]
    return " ".join([*words, *([f"z{c.zero}"] if c.zero else [])]) or "alone"


# Rows and failures.


def listed(rows: Sequence[Row], most: int = ROWS) -> DataTable:
    """List the configurations that ran, fastest first of each model, with what the planner predicts of each."""
    by_speed = sorted(
        (row for row in rows if row.is_ok), key=lambda row: (-row.tokens_per_device, str(row.configuration))
    )
    models = sorted({row.model for row in by_speed})
    several = len(models) > 1
    each = max(1, most // max(len(models), 1))
    ok = [row for model in models for row in [row for row in by_speed if row.model == model][:each]]
    predicted = any(np.isfinite(row.predicted_step_ns) for row in ok)
    columns = [
        *([TableColumn("model")] if several else []), TableColumn("devices"), TableColumn("configuration"),
        TableColumn("step", Unit.NS), *([TableColumn("predicted", Unit.NS)] if predicted else []),
        TableColumn("tokens/s", Unit.COUNT), TableColumn("MFU", Unit.FRACTION), TableColumn("memory", Unit.BYTES),
    ]  # fmt: skip
    lines = tuple(
        (
            *([row.model] if several else []), row.devices, str(row.configuration), row.step_ns,
            *([_known(row.predicted_step_ns)] if predicted else []), round(row.tokens_per_second), _known(row.mfu),
            _known(row.memory_bytes),
        )
        for row in ok
    )  # fmt: skip
    return DataTable("", tuple(columns), lines, more=len(by_speed) - len(ok))


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _failures(rows: Sequence[Row]) -> list[Section]:
    """List the reasons of failures, the most frequent first, each with one configuration that it struck."""
    failed = [row for row in rows if not row.is_ok]
    if not failed:
        return []
    counts = Counter((str(row.status), row.reason) for row in failed)
    example = {(str(row.status), row.reason): row.cell or str(row.configuration) for row in reversed(failed)}
    lines = tuple(
        (count, status, reason, example[status, reason]) for (status, reason), count in counts.most_common(ROWS)
    )
    columns = (TableColumn("cells"), TableColumn("what"), TableColumn("reason", prose=True), TableColumn("such as"))
    table = DataTable("", columns, lines, more=max(0, len(counts) - ROWS))
    return [Section("sweep-failures", f"Failed: {len(failed)} of {len(rows)}", (table,))]


def judged(score: Score) -> Section:
    """Say how good the planner was on these rows."""
    if not score.judged:
        said = Text("No measured configuration could be predicted, so the planner is not judged.")
        return Section("sweep-planner", "The planner on this sweep", (said,))
    figures = [
        KeyFigure("configurations judged", score.judged, Unit.COUNT),
        KeyFigure("median error of the step", _known(score.median_error), Unit.FRACTION),
        KeyFigure("rank correlation", _known(score.rank_correlation), Unit.RATIO, "1: the same order"),
        KeyFigure(
            "speed lost by its first choice", _known(score.regret), Unit.FRACTION,
            f"a blind choice loses {quantity(score.random_regret, Unit.FRACTION)}",
        ),
    ]  # fmt: skip
    blocks: list[Block] = [KeyFigures(tuple(figures))]
    if np.isfinite(score.calibration_error):
        off = f"The recorded step that it learned from is predicted with an error of {score.calibration_error:+z.1%}"
        tail = ": only its order means something." if abs(score.calibration_error) > DOUBTFUL else "."
        blocks.append(Text(off + tail, quiet=True))
    return Section("sweep-planner", "The planner on this sweep", tuple(blocks))
