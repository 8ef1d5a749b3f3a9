"""Facts about a run and the part of it that was read: ranks, axes, steps, devices, versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from usp_prof.model.topology import PARALLEL_AXES, AxisSource

if TYPE_CHECKING:
    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet


_PARALLEL = tuple(str(axis) for axis in PARALLEL_AXES)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about the run and the part of it that was read."""

    name: str
    ranks: tuple[int, ...]
    world_size: int | None
    axes: Mapping[str, int]
    axes_inferred: bool
    steps: tuple[int, ...]
    step_source: str
    devices: tuple[str, ...]
    hosts: int
    software: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    paced: bool = False
    other_runs: tuple[str, ...] = ()
    """Names of other runs in the same folder, newest first."""
    is_part: bool = False
    """Whether the job has more ranks than these: some were excluded, have no trace, or are not shown."""
    axes_seen: tuple[str, ...] = ()
    """Axes of collectives, if the mesh with their sizes is unknown."""


def run_facts(tables: TableSet, selection: Selection, name: str, other_runs: Sequence[str] = ()) -> RunFacts:
    """Return the facts of a run."""
    ranks = [rank for rank in tables.ranks if selection.ranks is None or rank in selection.ranks]
    steps, source = _steps(tables, selection, ranks)
    manifest = tables.manifest
    devices = _texts(tables, ranks, "device")
    torch = _texts(tables, ranks, "torch")
    software = dict(manifest.software) if manifest else {}
    if torch:
        software.setdefault("torch", torch[0])
    return RunFacts(
        name=name,
        ranks=tuple(ranks),
        world_size=_world_size(tables, ranks),
        axes=_axes(tables),
        axes_seen=() if tables.topology.axes else _axes_seen(tables, ranks),
        axes_inferred=tables.topology.source == AxisSource.INFERRED,
        steps=steps,
        step_source=source,
        devices=devices or (("CPU",) if "cpu" in _texts(tables, ranks, "device_kind") else ()),
        hosts=max(1, len(_texts(tables, ranks, "host"))),
        software=dict(sorted(software.items())),
        model=manifest.model.name if manifest and manifest.model else "",
        paced=bool(manifest and manifest.paced),
        other_runs=tuple(other_runs),
        is_part=_is_part(tables, ranks),
    )


def _is_part(tables: TableSet, ranks: list[int]) -> bool:
    """Return whether the job has more ranks than these, as far as the traces show."""
    unread = any(row.code in {"ranks_left_out", "missing_ranks"} for row in tables.health)
    return unread or len(ranks) < max(len(tables.ranks), _world_size(tables, ranks) or 0)


def _world_size(tables: TableSet, ranks: list[int]) -> int | None:
    sizes = [int(size) for rank in ranks for size in tables.columns("ranks", rank)["world_size"] if size > 0]
    return max(sizes, default=None)


def _axes(tables: TableSet) -> dict[str, int]:
    sizes = tables.topology.axes
    order = [*_PARALLEL, *(axis for axis in sizes if axis not in _PARALLEL)]
    return {axis: sizes[axis] for axis in order if sizes.get(axis, 0) > 1}


def _axes_seen(tables: TableSet, ranks: list[int]) -> tuple[str, ...]:
    """List the axes that the first rank's collectives name."""
    seen = set(tables.columns("collectives", ranks[0]).codes("axis")[1]) if ranks else set()
    return tuple(axis for axis in _PARALLEL if axis in seen)


def _steps(tables: TableSet, selection: Selection, ranks: list[int]) -> tuple[tuple[int, ...], str]:
    selected_steps: set[int] = set()
    sources: Counter[str] = Counter()
    for rank in ranks:
        steps = tables.columns("steps", rank)
        selected_steps.update(steps["step"][tables.selects(selection, steps["step"])].tolist())
        sources.update(steps["source"])
    return tuple(sorted(selected_steps)), sources.most_common(1)[0][0] if sources else ""


def _texts(tables: TableSet, ranks: list[int], column: str) -> tuple[str, ...]:
    texts = (text for rank in ranks for text in tables.columns("ranks", rank)[column])
    return tuple(sorted({text for text in texts if text}))
