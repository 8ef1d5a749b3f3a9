"""Sections on communication: hidden and exposed time per axis, and speed of collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from usp_prof.analyses.collectives import CollectivesResult
from usp_prof.analyses.overlap import OverlapResult
from usp_prof.charts.inputs import AxisCommunication, BandwidthPoints, PeerMatrix
from usp_prof.model.metric import Unit
from usp_prof.report.document import Block, Chart, DataTable, Text, data_table
from usp_prof.report.figures import Context, Figures, axes_in_order
from usp_prof.report.format import quantity
from usp_prof.report.sections.plain import ROWS, listing_table, rows_table
from usp_prof.report.sections.summary import communication

_SUMS = Text(
    "Total is the time in which any call of the axis runs. It is hidden while compute runs; otherwise it is exposed, "
    "or contended if the time counts for another axis that ends later. Waiting and transfer split the total of calls "
    "whose participants are all known. Waits of pipeline receives count as bubble and are not in these totals.",
    quiet=True,
)


def build_overlap(context: Context, result: OverlapResult) -> list[Block]:
    """Build the axes as table and bars, then kinds of collectives and what hides them."""
    blocks: list[Block] = []
    by_axis = communication(context.figures)
    if by_axis is not None:
        blocks += [by_axis, _SUMS]
    bars = axis_bars(context.figures)
    if bars is not None:
        blocks.append(Chart("Exposed communication by axis, mean over ranks", bars))
    kinds = by_collective(context.figures)
    if kinds is not None:
        blocks.append(kinds)
    if result.hiders:
        columns = {"axis": None, "hidden under": None, "time": Unit.NS}
        rows = [(hider.axis, hider.name, hider.hidden_ns) for hider in result.hiders]
        title = "Compute that hides communication, sum over ranks and steps"
        blocks.append(data_table(title, columns, rows, most=ROWS))
    return blocks


def axis_bars(figures: Figures) -> AxisCommunication | None:
    """Return the exposed, contended and hidden time of each axis."""
    exposed = figures.along("exposed_comm_time", "axis")
    hidden = figures.along("hidden_comm_time", "axis")
    contended = figures.along("contended_comm_time", "axis")
    axes = axes_in_order(exposed | hidden)
    if not axes:
        return None
    return AxisCommunication(
        tuple(str(axis) for axis in axes),
        *(tuple(float(part.get(axis, 0)) for axis in axes) for part in (exposed, contended, hidden)),
    )


def by_collective(figures: Figures) -> DataTable | None:
    """Build the table of collectives by axis and kind, with their hidden time."""
    comm = figures.grid("comm_time", "axis", "collective")
    if not comm:
        return None
    hidden = figures.grid("hidden_comm_time", "axis", "collective")
    overlap = figures.grid("overlap_fraction", "axis", "collective")
    order = {axis: place for place, axis in enumerate(axes_in_order({axis for axis, _ in comm}))}
    rows = [
        (*key, comm[key], hidden.get(key), overlap.get(key))
        for key in sorted(comm, key=lambda key: (order[key[0]], -comm[key], key))
    ]
    columns = {"axis": None, "collective": None, "total": Unit.NS, "hidden": Unit.NS, "overlap": Unit.FRACTION}
    return data_table("By kind of collective, mean over ranks", columns, rows, shared=("total", "hidden"))


# Collectives: bandwidth by size, and the share of waiting.

_KINDS = (
    "axis", "op", "size_bytes", "calls", "busbw", "link_fraction", "transfer_ns", "wait_ns", "skew_ns", "algbw",
    "bytes", "inter_node",
)  # fmt: skip
_KINDS_HEADS = {
    "op": "collective", "size_bytes": "up to", "link_fraction": "of link", "wait_ns": "waiting", "bytes":
    "volume", "inter_node": "between nodes",
}  # fmt: skip
_MOST_POINTS = 4000


def build_collectives(_: Context, result: CollectivesResult) -> list[Block]:
    """Build kinds of calls, bandwidth over size, and pairs."""
    blocks: list[Block] = []
    if result.kinds:
        blocks.append(listing_table(result.listing(), "Calls by axis, kind and size (medians)", _KINDS, _KINDS_HEADS))
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
            matrix_rows = [(*sender_to_receiver, -1) for sender_to_receiver in exchange.sent]
            blocks.append(Chart(f"All-to-all on {exchange.axis}: bytes from rank to rank", matrix(matrix_rows)))
    return blocks


def matrix(sent: Sequence[tuple[int, int, int, int]]) -> PeerMatrix:
    """Return (source, target, bytes, transfers) as a matrix of the participating ranks."""
    ranks = tuple(sorted({rank for source, target, _, _ in sent for rank in (source, target)}))
    place = {rank: at for at, rank in enumerate(ranks)}
    amount = np.zeros((len(ranks), len(ranks)))  # bytes, sources by targets
    times = np.full(amount.shape, -1, np.int64)  # number of transfers; -1: unknown
    for source, target, size, count in sent:
        at = place[source], place[target]
        amount[at] += size
        if count >= 0:
            times[at] = max(times[at], 0) + count
    return PeerMatrix(ranks, amount, times)


def bandwidth(result: CollectivesResult) -> BandwidthPoints | None:
    """Return the complete calls, sampled if there are too many to draw."""
    points = result.points
    if not len(points.bytes):
        return None
    every = -(-len(points.bytes) // _MOST_POINTS)
    (axis, axes), (op, ops) = points.texts["axis"], points.texts["op"]
    label = f"{result.link_name} {quantity(result.link_peak, Unit.BYTES_PER_SECOND)}" if result.link_name else ""
    return BandwidthPoints(
        points.bytes[::every].astype(float),
        points.busbw[::every],
        tuple(axes[code] or "unknown" for code in axis[::every].tolist()),
        tuple(ops[code] for code in op[::every].tolist()),
        result.link_peak,
        label,
    )
