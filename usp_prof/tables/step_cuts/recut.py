"""One rank's tables with other steps: the table `steps`, and the column `step` of all tables that have one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import index_of
from usp_prof.columns.lookup import rows_of
from usp_prof.columns.table import Columns, Replaced, table_of
from usp_prof.tables import steps as step_table

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.columns.table import View
    from usp_prof.tables.table_set import Source

    Ints = NDArray[np.int64]

_ON_DEVICE = ("activities", "kernels", "collectives")
_ON_HOST = ("launches", "memory", "ops", "actions")


class Recut:
    """One rank's tables, cut into the steps given; the cached tables beneath stay as they are."""

    def __init__(self, source: Source, rank: int, steps: step_table.Steps) -> None:
        self._source, self._rank, self._steps = source, rank, steps

    def table(self, name: str) -> pa.Table:
        """Give one table of this rank."""
        return table_of(self.view(name))

    def view(self, name: str) -> View:
        """Give one table of this rank, not read before its columns are asked for."""
        if name == step_table.SCHEMA.name:
            made: View = step_table.table_of_rank(self._rank, self._steps)
            return made
        view = self._source.view(name)
        if name in _ON_DEVICE or name in _ON_HOST or name == "annotations":
            return Replaced(view, {"step": partial(self._step, name, view)})
        return view

    def _step(self, name: str, view: View) -> pa.Array:
        columns, steps = Columns(view), self._steps
        start = columns["start_ns"]
        if name in _ON_DEVICE:
            return index_of(steps.of_device(start))
        if name in _ON_HOST:
            return index_of(steps.of_host(start))
        return index_of(np.where(columns["on_device"], steps.of_device(start), steps.of_host(start)))


def with_host(source: Source, number: Ints, start: Ints, end: Ints, named: str) -> step_table.Steps:
    """Make steps of device windows; the host's begins where it launched the first of the step's work, if recorded."""
    return step_table.Steps(number, start, end, *_host_windows(source, start, end), named)


def some_of(steps: Columns, kept: NDArray[np.bool_]) -> step_table.Steps:
    """Make steps of some rows of a rank's table."""
    names = ("step", "start_ns", "end_ns", "host_start_ns", "host_end_ns")
    number, start, end, host_start, host_end = (steps[name][kept] for name in names)
    return step_table.Steps(number, start, end, host_start, host_end, str(steps["source"][0]))


def _host_windows(source: Source, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    kernels, launches = (Columns(source.view(name)) for name in ("kernels", "launches"))
    place = rows_of(launches["event"], kernels["launch_event"])
    linked = place >= 0
    if not len(start) or not linked.any():
        return start, end
    begun, launched = kernels["start_ns"][linked], launches["start_ns"][place[linked]]
    step = np.searchsorted(start, begun, side="right") - 1
    # Of each step the first launch of its work; a step whose work was launched before recording keeps its own start.
    first = start.copy()
    np.minimum.at(first, step[step >= 0], launched[step >= 0])
    first = np.maximum.accumulate(first)
    return first, np.r_[first[1:], end[-1:]]
