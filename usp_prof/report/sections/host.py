"""Does the host keep the device fed: launches, queues, blocking calls and who made them, input, CPU time by op?"""

from __future__ import annotations

from dataclasses import fields
from math import nan
from operator import attrgetter, itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from usp_prof.report.document import Section
from usp_prof.report.frames import listed
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _typeshed import DataclassInstance

    from usp_prof.analyses.host import HostResult
    from usp_prof.analyses.result import Listing
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block


_HOW: dict[str, Callable[[Sequence[float]], float]] = {"longest_ns": max, "delay_p50_ns": median, "delay_p99_ns": max}


def build(context: Context, title: str) -> Section | None:
    """Show ranks, then what blocks, what is called and which ops take the host's time, with the rank that has most."""
    if "host" not in context.results:
        return None
    result = cast("HostResult", context.results["host"])
    blocks: list[Block] = [*key_figures(result)]
    if result.ranks:
        blocks.append(listed(result.listing(), "Ranks", rows=64))
    tables = (
        ("What blocks the host, all ranks together", result.syncs, ("name", "cause"), "time_ns"),
        ("Runtime calls, all ranks together", result.calls, ("name", "kind"), "time_ns"),
        ("Ops by the host's own time, all ranks together", result.ops, ("name",), "self_ns"),
    )
    for name, rows, keys, by in tables:
        if rows:
            together = _together(rows, keys, by)
            # Calls start copies and memsets too, not kernels alone.
            blocks.append(listed(together, name, dict.fromkeys(together, "") | {"kernels": "device events"}))
    return Section("host", title, (*blocks, *notes(result)))


def _together(rows: Sequence[DataclassInstance], keys: tuple[str, ...], by: str) -> Listing:
    """Add up what has the same keys over ranks, most first; of delays the median and the longest stand for all."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, key) for key in keys), []).append(row)
    figures = [field.name for field in fields(rows[0]) if field.name not in {*keys, "rank"}]
    found = [
        (*key, *(_joined(name, alike) for name in figures), max(alike, key=attrgetter(by)).rank)
        for key, alike in sorted(groups.items())
    ]
    names = (*keys, *figures, "most_at_rank")
    found.sort(key=itemgetter(names.index(by)), reverse=True)
    return dict(zip(names, zip(*found, strict=True), strict=True))


def _joined(name: str, alike: Sequence[Any]) -> float:
    """Make one figure of those of several ranks; what is not known on some is that of the others."""
    known = [figure for figure in map(attrgetter(name), alike) if figure == figure]  # noqa: PLR0124 - NaN
    return _HOW.get(name, sum)(known) if known else nan
