"""Axis health: the rows that say which axes are inferred and why, and which communication has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.topology import Axis, AxisSource
from usp_prof.tables.parallelism.inference import made_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from usp_prof.columns.table import Columns
    from usp_prof.model.topology import Group
    from usp_prof.tables.parallelism.inference import Inferred, Traffic

_HINT = "name groups (group_desc) to have it exact"


def axis_health(
    groups: Iterable[Group], traffic: Mapping[str, Traffic], parts: Mapping[int, Columns], ungrouped: Inferred
) -> list[HealthRow]:
    """Give one row for each reason by which axes were inferred, and one for what has no axis."""
    used = [group for group in groups if group.key in traffic]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for group in used:
        if group.axis_source == AxisSource.INFERRED:
            by_reason.setdefault((str(group.axis), group.axis_reason), []).append(group.key)
    rows = [
        _inferred(f"the axis of {_few(keys)} is inferred to be {axis}: {reason}", len(keys))
        for (axis, reason), keys in sorted(by_reason.items())
    ]
    libraries = sorted({name for columns in parts.values() for name in np.unique(columns["library"]).tolist()})
    rows += [
        _inferred(f"the axis of {library} is inferred to be {made_for(library).axis}: {made_for(library).reason}", 1)
        for library in libraries
        if made_for(library).reason
    ]
    if ungrouped.reason:
        what = "communication without a group"
        rows.append(_inferred(f"the axis of {what} is inferred to be {ungrouped.axis}: {ungrouped.reason}", 1))
    unknown = [group.key for group in used if group.axis == Axis.UNKNOWN]
    if unknown:
        detail = f"nothing tells the axis of {_few(unknown)}; their communication is shown as unknown; {_HINT}"
        rows.append(HealthRow("axis_unknown", Severity.ERROR, count=len(unknown), detail=detail))
    return rows


def _inferred(detail: str, count: int) -> HealthRow:
    return HealthRow("axis_inferred", Severity.INFO, count=count, detail=f"{detail}; {_HINT}")


def _few(keys: list[str]) -> str:
    """List the first groups, with long lists of ranks cut short."""
    short = [key if len(key) <= 40 else f"{key[:30]}...{key.rsplit(',', 1)[-1]}" for key in keys[:4]]
    return ", ".join(short) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
