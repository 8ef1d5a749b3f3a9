"""Plain parts of sections: listings as tables, an analysis' overall figures, and its notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from usp_prof.analyses.result import Listing, impossible
from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, Health, KeyFigure, KeyFigures, TableColumn
from usp_prof.report.figures import Context
from usp_prof.report.format import Cell

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ROWS = 20

_SUFFIXES = {
    "_ns": Unit.NS,
    "_bytes": Unit.BYTES,
    "_fraction": Unit.FRACTION,
    "_share": Unit.FRACTION,
    "_flops": Unit.FLOP_PER_SECOND,
    "_flop": Unit.FLOP,
}
_NAMES = {
    "bytes": Unit.BYTES,
    "algbw": Unit.BYTES_PER_SECOND,
    "busbw": Unit.BYTES_PER_SECOND,
    "bandwidth": Unit.BYTES_PER_SECOND,
    "share": Unit.FRACTION,
    "efficiency": Unit.FRACTION,
    "ratio": Unit.RATIO,
    "slowdown": Unit.RATIO,
    "imbalance": Unit.RATIO,
    "mfu": Unit.FRACTION,
    "hfu": Unit.FRACTION,
    "tokens_per_second": Unit.PER_SECOND,
    "count": Unit.COUNT,
    "calls": Unit.COUNT,
    "kernels": Unit.COUNT,
    "blocks": Unit.COUNT,
    "events": Unit.COUNT,
}
_PROSE = frozenset({"why", "detail", "reason"})
_AS_NAMED: Mapping[str, str] = MappingProxyType({})


def unit_of(column: str) -> tuple[str, Unit | None]:
    """Return a column's heading without its unit, and the unit."""
    if column == "ns":
        return "time", Unit.NS
    if column in _NAMES:
        return column, _NAMES[column]
    for suffix, unit in _SUFFIXES.items():
        if column.endswith(suffix):
            return column.removesuffix(suffix), unit
    return column, None


def listing_table(
    listing: Listing, title: str, columns: Iterable[str] = (), heads: Mapping[str, str] = _AS_NAMED, rows: int = ROWS
) -> DataTable:
    """Build a table of the first rows of a listing.

    `columns` selects and orders columns (default: all); `heads` has the headings of those not called by their name.
    """
    shown_names = [name for name in columns or listing if name in listing]
    table_columns = []
    for name in shown_names:
        head, unit = unit_of(name)
        table_columns.append(TableColumn(heads.get(name) or head.replace("_", " "), unit, prose=name in _PROSE))
    shown = zip(*(listing[name][:rows] for name in shown_names), strict=True)
    cells = (tuple(_cell(cell, head.unit) for cell, head in zip(row, table_columns, strict=True)) for row in shown)
    return without_blanks(DataTable(title, tuple(table_columns), tuple(cells), more=max(0, length(listing) - rows)))


def length(listing: Listing) -> int:
    """Return the number of rows of a listing."""
    return max(map(len, listing.values()), default=0)


def without_blanks(table: DataTable) -> DataTable:
    """Remove columns without known values; the notes say what is unknown."""
    filled_columns = [place for place in range(len(table.columns)) if any(row[place] is not None for row in table.rows)]
    columns = tuple(table.columns[place] for place in filled_columns)
    return replace(
        table, columns=columns, rows=tuple(tuple(row[place] for place in filled_columns) for row in table.rows)
    )


def rows_table(rows: Sequence[DataclassInstance], title: str) -> DataTable:
    """Build a table of the first dataclass rows; their plain fields become columns."""
    names = [field.name for field in fields(rows[0]) if isinstance(getattr(rows[0], field.name), (int, float, str))]
    return listing_table({name: [getattr(row, name) for row in rows] for name in names}, title)


def _cell(value: Any, unit: Unit | None) -> Cell:  # noqa: ANN401 - whatever is listed
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value != value or (isinstance(value, str) and not value):  # noqa: PLR0124 - NaN
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        absent = value == -1 and (unit in (Unit.NS, Unit.BYTES) or isinstance(value, int))
        return None if absent else value
    return str(value)


# Parts of every section: an analysis' overall metrics, and its notes.

_MOST_FIGURES = 10
_EXPLANATIONS = {
    "kernel_efficiency": "of the roofline; ops with known FLOPs and bytes",
    "formula_fraction": "of compute time has known FLOPs and bytes",
    "matrix_core_fraction": "of matrix products, attention and convolutions",
    "unknown_core_fraction": "of matrix products, attention and convolutions",
    "small_kernel_fraction": "of compute time is in kernels below 10 \u03bcs",
    "achieved_flop_rate": "FLOPs over kernel time, ops with known FLOPs",
    "launch_count": "kernels and copies per step",
    "launch_delay": "median time from a launch to the start of its work",
    "empty_queue_fraction": "of launches found an idle device",
    "queue_full_time": "host blocked by a full queue, per step",
    "host_sync_time": "host time waiting for the device, per step",
    "input_time": "host time in the data loader, per step",
    "gc_time": "host time in Python's garbage collector, per step",
    "slowdown": "compute vs. the median of its peers",
    "straggler_cost": "delay per step, summed over the collectives of its most delayed axis",
    "peak_memory": "maximum in tensors",
    "taken_memory": "maximum allocated after the profiler started",
    "peak_reserved_memory": "maximum reserved by the allocator",
    "fragmentation_fraction": "of reserved memory is unused at the peak",
    "memory_headroom": "of device memory was never reserved",
    "allocator_calls": "per step; each stalls the host",
}
"""Explanations of overall values, by metric id."""
_WITHOUT_FIGURE = frozenset({"own_time_slowdown"})
"""Metrics that look like another figure: this one is no prediction, `job_slowdown` on the first screen is."""
_OF_LARGEST_RANK = frozenset({"slowdown", "straggler_cost", "peak_memory", "taken_memory", "peak_reserved_memory"})
"""Metrics whose overall value is the largest rank's."""


def key_figures(context: Context, analysis: str) -> Iterable[KeyFigures]:
    """Yield the overall values of an analysis, with their explanation and the rank that has the value."""
    overall_values = [
        value for value in context.values[analysis] if not value.dims and value.metric.id not in _WITHOUT_FIGURE
    ]
    if overall_values:
        yield KeyFigures(
            tuple(
                KeyFigure(value.metric.title, value.value, value.metric.unit, _second(context, value.metric.id))
                for value in overall_values[:_MOST_FIGURES]
            )
        )


def _second(context: Context, metric: str) -> str:
    by_rank = context.figures.along(metric, "rank") if metric in _OF_LARGEST_RANK else {}
    largest = max(by_rank, key=lambda rank: by_rank[rank]) if len(by_rank) > 1 else None
    rank = f"rank {largest}" if largest is not None and by_rank[largest] else ""
    return ", ".join(part for part in (rank, _EXPLANATIONS.get(metric, "")) if part)


def notes(context: Context, analysis: str) -> Iterable[Health]:
    """Yield what the analysis could not determine, and impossible values that it removed."""
    rows = (*context.results[analysis].notes, *impossible(context.values[analysis]))
    if rows:
        yield Health(tuple(sorted(rows)))
