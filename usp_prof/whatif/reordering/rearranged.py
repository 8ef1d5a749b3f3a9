"""Tables of a pipeline in another order: each rank's actions where the simulation puts them.

What lies outside of the pipeline's window keeps its length. Inside, an action is one piece of compute: what else ran in
it (its collectives, its kernels) is not told apart any more, and transfers between stages are part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.contract import format_mark
from usp_prof.inputs.kineto import events, threads
from usp_prof.inputs.kineto.combinations import Inputs
from usp_prof.inputs.kineto.events import RawTrace
from usp_prof.model.health import HealthRow, Severity
from usp_prof.schedules.orders import Kind
from usp_prof.tables import clock
from usp_prof.tables.assemble import assemble, build_rank
from usp_prof.tables.build import table_from_rows
from usp_prof.tables.table_set import MemorySource, TableSet

if TYPE_CHECKING:
    from usp_prof.whatif.reordering.schedule import Rescheduled

_PACE = {Kind.FORWARD: "fwd", Kind.BACKWARD: "dgrad", Kind.INPUT_GRADIENT: "dgrad", Kind.WEIGHT_GRADIENT: "wgrad"}


def rearranged(tables: TableSet, other: Rescheduled) -> TableSet:
    """Give the tables of a run whose pipeline took another order; ranks of one place take the same actions."""
    windows, place = _windows(tables), _places(tables)
    saved = round(other.saved_ns)
    sources = {}
    for rank in tables.ranks:
        rows = _rank_rows(tables, rank, windows, other, place[rank], saved)
        found = table_from_rows(events.SCHEMA, rows)
        raw = RawTrace(found, Inputs.none(len(rows)), table_from_rows(threads.SCHEMA, []), {}, (), "", 0)
        made = build_rank(raw, rank, tables.manifest)
        ranks = tables.arrow("ranks", [rank])
        sources[rank] = MemorySource({**made, "ranks": ranks})
    detail = (
        "inside the pipeline each action is one piece of compute, and time between two of them is bubble (here "
        "`idle: other`): kernels and collectives are not told apart in another order; what ran outside is only time"
    )
    health = [*tables.health, HealthRow("rearranged", Severity.INFO, detail=detail)]
    return assemble(sources, manifest=tables.manifest, health=health)


def _windows(tables: TableSet) -> dict[int, tuple[int, int]]:
    """Give each step's window: from the first action's begin to the last one's end, on the common clock."""
    clocks, found = clock.of(tables), dict[int, tuple[int, int]]()
    for rank in tables.ranks:
        actions = tables.columns("actions", rank)
        begin = clocks.align(rank, actions["device_start_ns"])
        end = clocks.align(rank, actions["device_end_ns"])
        for step in np.unique(actions["step"][actions["step"] >= 0]).tolist():
            of_step = actions["step"] == step
            first, last = int(begin[of_step].min()), int(end[of_step].max())
            low, high = found.get(step, (first, last))
            found[step] = (min(low, first), max(high, last))
    return found


def _places(tables: TableSet) -> dict[int, int]:
    """Give each rank's place in the pipeline: that of its stages among all ranks' stages."""
    stages = {rank: tuple(np.unique(tables.columns("actions", rank)["stage"]).tolist()) for rank in tables.ranks}
    order = sorted(set(stages.values()))
    return {rank: order.index(own) for rank, own in stages.items()}


def _rank_rows(
    tables: TableSet, rank: int, windows: dict[int, tuple[int, int]], other: Rescheduled, place: int, saved: int
) -> list[dict[str, Any]]:
    """Give the events of a rank: each step's actions where the simulation puts them, and the steps' marks.

    A step's window opens where it did, less what the steps before it saved; inside, simulated times are stretched as
    the measured window was longer than the simulated one.
    """
    clocks, steps = clock.of(tables), tables.columns("steps", rank)
    line = other.timeline
    rows: list[dict[str, Any]] = []

    def add(name: str, start: int, end: int) -> None:
        rows.append(
            {
                "rank": rank, "event": len(rows), "phase": "X", "category": "user_annotation", "name": name,
                "process": str(rank), "thread": "1", "start_ns": start, "dur_ns": end - start, "args": "{}",
            }
        )  # fmt: skip

    actions = np.flatnonzero(line.rank == place)
    actions = actions[np.argsort(line.start[actions], kind="stable")]
    first, last = int(line.start[actions].min(initial=0)), int(line.end[actions].max(initial=0))
    laid = []  # of each step: where its window opens now, and by how much its actions are stretched
    for row, step in enumerate(steps["step"].tolist()):
        low, high = windows.get(step, (0, 0))
        scale = (high - low) / max(other.simulated_ns, 1.0)  # what no simulation explains is in proportion
        laid.append((int(clocks.local(rank, np.array([low]))[0]) - row * saved, scale))
    begin = int(steps["start_ns"][0]) if len(steps) else 0
    for row, step in enumerate(steps["step"].tolist()):
        opens, scale = laid[row]
        for each in actions.tolist() if step in windows else ():
            action = line.actions[each]
            start = opens + round(int(line.start[each]) * scale)
            stop = opens + round(int(line.end[each]) * scale)
            add(format_mark("pp", str(action.kind), stage=action.stage, mb=action.micro_batch), start, stop)
            add(format_mark("pace", _PACE[action.kind]), start, stop)
        end = int(steps["end_ns"][row]) - (row + 1) * saved
        if row + 1 < len(steps):  # a step goes on until the next begins, and its actions lie in it
            end = min(end, laid[row + 1][0] + round(first * laid[row + 1][1]))
        end = max(end, opens + round(last * scale))
        add(f"ProfilerStep#{step}", begin, end)
        begin = end
    return rows
