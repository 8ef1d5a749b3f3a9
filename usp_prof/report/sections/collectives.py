"""How fast are the collectives for their size, and how much of their time is waiting for the last member?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.charts.inputs import BandwidthPoints
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, Section
from usp_prof.report.format import quantity
from usp_prof.report.frames import frame_table, rows_table
from usp_prof.report.sections.plain import notes

if TYPE_CHECKING:
    from usp_prof.analyses.collectives import CollectivesResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block

_KINDS = {
    "axis": "",
    "op": "collective",
    "size_bytes": "up to",
    "calls": "",
    "busbw": "",
    "link_fraction": "of link",
    "transfer_ns": "",
    "wait_ns": "waiting",
    "skew_ns": "",
    "algbw": "",
    "bytes": "volume",
    "inter_node": "between nodes",
}
_MOST_POINTS = 4000


def build(context: Context, title: str) -> Section | None:
    """Show kinds of calls, bandwidth over size, and pairs."""
    if "collectives" not in context.results:
        return None
    result = cast("CollectivesResult", context.results["collectives"])
    blocks: list[Block] = []
    if result.kinds:
        blocks.append(frame_table(result.to_pandas(), "Calls by axis, kind and size; medians over calls", _KINDS))
    points = bandwidth(result)
    if points is not None:
        blocks.append(Chart("Bus bandwidth over size", points))
    if result.pairs:
        blocks.append(rows_table(result.pairs, "Sends and receives by pair"))
    if result.exchanges:
        blocks.append(rows_table(result.exchanges, "All-to-all exchanges"))
    return Section("collectives", title, (*blocks, *notes(result)))


def bandwidth(result: CollectivesResult) -> BandwidthPoints | None:
    """Take each complete call, or every so many where there are too many to draw."""
    points = result.points
    if not len(points.bytes):
        return None
    every = -(-len(points.bytes) // _MOST_POINTS)
    label = f"{result.link_name} {quantity(result.link_peak, Unit.BYTES_PER_SECOND)}" if result.link_name else ""
    return BandwidthPoints(
        points.bytes[::every].astype(float),
        points.busbw[::every],
        tuple(str(axis) or "unknown" for axis in points.axis[::every]),
        tuple(str(op) for op in points.op[::every]),
        result.link_peak,
        label,
    )
