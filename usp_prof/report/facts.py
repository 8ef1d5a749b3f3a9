"""Facts of a run as its tables give them: ranks, axes, steps, devices, versions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from usp_prof.model.topology import PARALLEL_AXES, AxisSource
from usp_prof.report.document import RunFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet

_PARALLEL = tuple(str(axis) for axis in PARALLEL_AXES)


def run_facts(tables: TableSet, selection: Selection, name: str, others: Sequence[str] = ()) -> RunFacts:
    """Gather the facts of a run."""
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
        axes_inferred=tables.topology.source == AxisSource.INFERRED,
        steps=steps,
        step_source=source,
        devices=devices or (("CPU",) if "cpu" in _texts(tables, ranks, "device_kind") else ()),
        hosts=max(1, len(_texts(tables, ranks, "host"))),
        software=dict(sorted(software.items())),
        model=manifest.model.name if manifest and manifest.model else "",
        paced=bool(manifest and manifest.paced),
        others=tuple(others),
    )


def _world_size(tables: TableSet, ranks: list[int]) -> int | None:
    sizes = [int(size) for rank in ranks for size in tables.columns("ranks", rank)["world_size"] if size > 0]
    return max(sizes, default=None)


def _axes(tables: TableSet) -> dict[str, int]:
    sizes = tables.topology.axes
    order = [*_PARALLEL, *(axis for axis in sizes if axis not in _PARALLEL)]
    return {axis: sizes[axis] for axis in order if sizes.get(axis, 0) > 1}


def _steps(tables: TableSet, selection: Selection, ranks: list[int]) -> tuple[tuple[int, ...], str]:
    found: set[int] = set()
    sources: Counter[str] = Counter()
    for rank in ranks:
        steps = tables.columns("steps", rank)
        found.update(int(step) for step in steps["step"] if selection.takes_step(int(step)))
        sources.update(steps["source"])
    return tuple(sorted(found)), sources.most_common(1)[0][0] if sources else ""


def _texts(tables: TableSet, ranks: list[int], column: str) -> tuple[str, ...]:
    texts = (text for rank in ranks for text in tables.columns("ranks", rank)[column])
    return tuple(sorted({text for text in texts if text}))
