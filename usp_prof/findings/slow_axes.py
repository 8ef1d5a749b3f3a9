"""Slow axes: axes whose messages take longer than over gigabit Ethernet, since entire axes have no peers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from usp_prof.analyses import collectives
from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.intervals import union_by
from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.columns.table import Columns
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.model.topology import Axis
from usp_prof.tables import calls
from usp_prof.tables.table_set import TableSet

ETHERNET = 0.125
"""Bytes per nanosecond of gigabit Ethernet; no cluster uses less on purpose."""
SLOWER_THAN_ETHERNET = 1.5
SLOWER_THAN_OTHERS = 4.0
"""Limit for small messages, compared with other messages of the run: on busy hosts latency may double."""
LATENCY_BYTES = 65_536
"""The time of smaller messages is mainly latency."""
FEWEST_CALLS = 4


def slow_axes(tables: TableSet) -> Iterable[Draft]:
    """Yield a draft for each axis that is slower than gigabit Ethernet plus the latency of the run's other groups."""
    rows = calls.match_calls(tables).columns()
    timed = (rows["transfer_ns"] > 0) & (rows["bytes"] > 0)
    for axis in sorted({str(name) for name in rows.codes("axis")[1]} - {Axis.UNKNOWN, Axis.WORLD}):
        on_axis = timed & rows.matches("axis", axis)
        if on_axis.sum() < FEWEST_CALLS:
            continue
        is_latency = float(np.median(rows["bytes"][on_axis])) <= LATENCY_BYTES
        ethernet_ns = _ethernet_ns(rows, timed, on_axis, is_latency=is_latency)
        # Messages are compared individually, and per step because later messages of a burst are fast.
        message_ratio = _ratio_of_best_group(
            rows.codes("group")[0][on_axis], _direction(rows, on_axis), rows["transfer_ns"][on_axis] / ethernet_ns
        )
        step_ratio = _ratio_of_busy_link(rows, on_axis, ethernet_ns)
        are_messages_slow = message_ratio >= (SLOWER_THAN_OTHERS if is_latency else SLOWER_THAN_ETHERNET)
        if are_messages_slow or step_ratio >= SLOWER_THAN_OTHERS:
            ratio = message_ratio if are_messages_slow else step_ratio
            yield Draft(
                f"Messages on {axis} take {ratio:.1f}x as long as over gigabit Ethernet",
                {"axis": axis},
                {
                    "ratio": ratio,
                    "calls": int(on_axis.sum()),
                    "median_bytes": float(np.median(rows["bytes"][on_axis])),
                    "median_transfer_ns": float(np.median(rows["transfer_ns"][on_axis])),
                },
                Edit("comm_faster", f"{ratio:.3g}", (("axis", axis),)),
                f"Check the network of {axis}: interface, bandwidth and latency",
                rows=proof.largest("calls", proof.equals("axis", axis), "transfer_ns"),
                settings={"gloo": "GLOO_SOCKET_IFNAME", "NCCL": "NCCL_SOCKET_IFNAME"},
            )


def _ethernet_ns(rows: Columns, timed: Flags, on_axis: Flags, *, is_latency: bool) -> Floats:
    """Return how long an axis' calls would take over gigabit Ethernet, with the latency of the run's other collectives.

    If an axis has only small messages, the latency is the median of the other collectives, not their best quarter.
    """
    elsewhere = timed & ~on_axis & (rows["bytes"] <= LATENCY_BYTES) & ~rows.matches("matched_by", "p2p")
    transfer_ns = rows["transfer_ns"][elsewhere if elsewhere.any() else on_axis]
    latency_ns = float(np.median(transfer_ns)) if is_latency and elsewhere.any() else _undisturbed(transfer_ns)
    return np.asarray(latency_ns + collectives.bus_factors(rows)[on_axis] * rows["bytes"][on_axis] / ETHERNET)


def _direction(rows: Columns, on_axis: Flags) -> Ints:
    """Return the direction of each transfer between two ranks, and 0 for collectives.

    Both directions share a slow link. If messages of one direction fill it, a message of the other is sent late, which
    looks like waiting for its sender.
    """
    is_transfer = rows.matches("matched_by", "p2p")[on_axis]
    return np.where(is_transfer, rows.codes("op")[0][on_axis] + 1, 0)


def _ratio_of_best_group(group: Ints, direction: Ints, slowness: Floats) -> float:
    """Return the lower quartile of the best group in its slower direction, which is the axis without contention."""
    best = np.inf
    for code in np.unique(group).tolist():
        slowness_of_group, directions = slowness[group == code], direction[group == code]
        by_direction = [slowness_of_group[directions == one_way] for one_way in np.unique(directions).tolist()]
        counted = [values for values in by_direction if len(values) >= FEWEST_CALLS] or [slowness_of_group]
        best = min(best, max(map(_undisturbed, counted)))
    return best


def _ratio_of_busy_link(rows: Columns, on_axis: Flags, ethernet_ns: Floats) -> float:
    """Return the busy time of an axis' link per step, relative to sequential messages over gigabit Ethernet.

    A library sends a few messages at a time. In a burst, the first messages wait for the link and the last ones wait
    for the first, then pass quickly. Single calls are misleading; the time with any message in flight is not:

        message 1   |========|              8 ms
        message 2   |========|              8 ms
        message 3             ||            under 1 ms
        message 4             ||            under 1 ms
        link busy   |=========|             9 ms, although four messages of 0.5 ms would take 2 ms
    """
    in_steps = (rows["step"][on_axis] >= 0) & ~rows.matches("matched_by", "p2p")[on_axis]
    group, step = rows.codes("group")[0][on_axis][in_steps], rows["step"][on_axis][in_steps]
    if not len(group):
        return 0.0
    group_and_step = group_codes(group, step)
    owner, begin, end = union_by(group_and_step, rows["last_ns"][on_axis][in_steps], rows["end_ns"][on_axis][in_steps])
    busy_ns = np.bincount(owner, end - begin, minlength=int(group_and_step.max()) + 1)
    slowness = busy_ns / np.bincount(group_and_step, ethernet_ns[in_steps])
    group_of_code = group[first_rows(group_and_step)]
    return _ratio_of_best_group(group_of_code, np.zeros_like(group_of_code), slowness)


def _undisturbed(values: Floats | Ints) -> float:
    """Return the lower quartile: the time of calls without disturbance.

    Often an axis has many calls and the others only one per step. For few values the default quantile is too high
    (between the first two of three values), so a busy host would hide a slow axis. Weibull's quantile is unbiased.
    """
    return float(np.quantile(values, 0.25, method="weibull"))
