"""Slow axes: whole axes whose messages take longer than over gigabit Ethernet; they have no peers to be held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import collectives
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.model.topology import Axis
from usp_prof.tables import calls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns
    from usp_prof.tables.table_set import TableSet

ETHERNET = 0.125
"""Bytes per nanosecond of gigabit Ethernet; nobody trains over less on purpose."""
SLOWER_THAN_ETHERNET = 1.5
SLOWER_THAN_OTHERS = 4.0
"""Messages that take their latency alone are held to others of the run: on busy hosts one waits twice as long."""
LATENCY_BYTES = 65_536
"""Smaller messages take their latency and little else."""
FEWEST_CALLS = 4


def slow_axes(tables: TableSet) -> Iterable[Draft]:
    """Hold each axis against gigabit Ethernet, after the latency that the run's other groups show."""
    rows = calls.of(tables).columns()
    timed = (rows["transfer_ns"] > 0) & (rows["bytes"] > 0)
    for axis in sorted({str(each) for each in rows.codes("axis")[1]} - {Axis.UNKNOWN, Axis.WORLD}):
        mine = timed & rows.matches("axis", axis)
        if mine.sum() < FEWEST_CALLS:
            continue
        slowness = rows["transfer_ns"][mine] / _ethernet_ns(rows, timed, mine)
        group = rows.codes("group")[0][mine]
        # The best group tells what the axis reaches; its best quarter, what its messages take when nothing disturbs.
        ratio = min(_undisturbed(slowness[group == each]) for each in np.unique(group).tolist())
        is_latency = float(np.median(rows["bytes"][mine])) <= LATENCY_BYTES
        if ratio >= (SLOWER_THAN_OTHERS if is_latency else SLOWER_THAN_ETHERNET):
            yield Draft(
                f"{axis} messages take {ratio:.1f} times as long as over gigabit Ethernet",
                {"axis": axis},
                {
                    "ratio": ratio,
                    "calls": int(mine.sum()),
                    "median_bytes": float(np.median(rows["bytes"][mine])),
                    "median_transfer_ns": float(np.median(rows["transfer_ns"][mine])),
                },
                Edit("comm_faster", f"{ratio:.3g}", (("axis", axis),)),
                "test the network of this axis: which interface it takes, its bandwidth and latency",
                rows=proof.largest("calls", proof.equals("axis", axis), "transfer_ns"),
                settings={"gloo": "GLOO_SOCKET_IFNAME", "NCCL": "NCCL_SOCKET_IFNAME"},
            )


def _ethernet_ns(rows: Columns, timed: NDArray[np.bool_], mine: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Say how long an axis' calls would take over gigabit Ethernet, with the latency of the run's other collectives."""
    others = timed & ~mine & (rows["bytes"] <= LATENCY_BYTES) & ~rows.matches("matched_by", "p2p")
    latency_ns = _undisturbed(rows["transfer_ns"][others if others.any() else mine])
    op, ops = rows.codes("op")
    pairs = zip(op[mine].tolist(), rows["group_size"][mine].tolist(), strict=True)
    crossings = np.array([collectives.bus_factor(ops[code], size) for code, size in pairs])
    return np.asarray(latency_ns + crossings * rows["bytes"][mine] / ETHERNET)


def _undisturbed(values: NDArray[np.float64] | NDArray[np.int64]) -> float:
    """Give the best quarter: what calls take when nothing disturbs.

    Often an axis has many calls and the others one a step. Of few values the plain quantile lies too far up (between
    the first two of three), so that a busy host would hide a slow axis; Weibull's is right on average for any number.
    """
    return float(np.quantile(values, 0.25, method="weibull"))
