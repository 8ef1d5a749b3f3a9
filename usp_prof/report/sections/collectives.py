"""How fast are the collectives for their size, and how much of their time is waiting for the last member?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from usp_prof.charts.inputs import BandwidthPoints, PeerMatrix
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, Section
from usp_prof.report.format import quantity
from usp_prof.report.frames import listed, rows_table
from usp_prof.report.sections.plain import notes

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        blocks.append(listed(result.listing(), "Calls by axis, kind and size; medians over calls", _KINDS))
    points = bandwidth(result)
    if points is not None:
        blocks.append(Chart("Bus bandwidth over size", points))
    if result.pairs:
        blocks.append(rows_table(result.pairs, "Sends and receives by pair"))
    if result.exchanges:
        blocks.append(rows_table(result.exchanges, "All-to-all exchanges"))
    sent = [(pair.source, pair.target, pair.bytes, pair.transfers) for pair in result.pairs if pair.bytes >= 0]
    if sent:
        blocks.append(Chart("Sends and receives: bytes from rank to rank", matrix(sent)))
    for exchange in result.exchanges:
        if exchange.sent:
            told = [(*each, -1) for each in exchange.sent]
            blocks.append(Chart(f"All-to-all on {exchange.axis}: bytes from rank to rank", matrix(told)))
    return Section("collectives", title, (*blocks, *notes(result)))


def matrix(sent: Sequence[tuple[int, int, int, int]]) -> PeerMatrix:
    """Set (source, target, bytes, transfers) out as a matrix of the ranks that take part."""
    ranks = tuple(sorted({rank for source, target, _, _ in sent for rank in (source, target)}))
    place = {rank: at for at, rank in enumerate(ranks)}
    amount = np.zeros((len(ranks), len(ranks)))
    times = np.full(amount.shape, -1, np.int64)
    for source, target, size, count in sent:
        at = place[source], place[target]
        amount[at] += size
        if count >= 0:
            times[at] = max(times[at], 0) + count
    return PeerMatrix(ranks, amount, times)


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
