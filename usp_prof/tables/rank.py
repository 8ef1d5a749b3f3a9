"""How do one rank's events become its tables? Every table of rank scope, built in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.inputs.kineto import events, threads
from usp_prof.inputs.kineto.events import widened
from usp_prof.tables import (
    actions,
    activities,
    collectives,
    groups,
    health,
    kernels,
    launches,
    memory,
    ops,
    rank_health,
    ranks,
)
from usp_prof.tables import annotations as annotation_table
from usp_prof.tables import steps as step_table
from usp_prof.tables.communication.parts import find_parts
from usp_prof.tables.events import overruns
from usp_prof.tables.events.frame import EventFrame
from usp_prof.tables.events.links import link

if TYPE_CHECKING:
    import pyarrow as pa

    from usp_prof.columns.arrow import Parted
    from usp_prof.contract import Manifest
    from usp_prof.inputs.kineto.events import RawTrace


def build_rank(raw: RawTrace, rank: int, manifest: Manifest | None) -> dict[str, pa.Table | Parted]:
    """Build all tables of one rank from what its file says; axes that need other ranks are settled at assembly.

    The two that have a row for nearly every event come in parts.
    """
    frame = EventFrame(raw, rank)
    overrunning = overruns.cut(frame)
    links = link(frame)
    steps = step_table.find(frame, links)
    parts = find_parts(frame, links)
    membership = groups.join(frame, parts)
    collective = collectives.build(frame, links, parts, membership, steps)
    kernel = kernels.build(frame, links, steps)
    return {
        "events": widened(events.SCHEMA, raw.events, rank),
        "threads": widened(threads.SCHEMA, raw.threads, rank).whole(),
        "ranks": ranks.build(frame, manifest),
        "steps": step_table.build(frame, steps),
        "kernels": kernel,
        "launches": launches.build(frame, links, steps),
        "annotations": annotation_table.build(frame, steps),
        "collectives": collective,
        "activities": activities.build(frame, links, parts, collective, steps),
        "groups": groups.build(rank, membership.groups),
        "actions": actions.build(frame, links, steps),
        "memory": memory.build(frame, steps),
        "ops": ops.build(frame, links, steps),
        "health": health.build([*raw.health, *rank_health.find(frame, links, steps, parts, kernel, overrunning)]),
    }
