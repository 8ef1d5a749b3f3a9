"""Verdicts: the sentence with which each page opens, from the figures of the report; empty where nothing is known."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from ..engine import Basis, DataTable, Figures, Unit, causes_of, quantity, step_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine import Calibration, Cause, Cell, Document, Finding

NOTABLE = 0.02
"""Less than 2 % of a step is not worth a sentence."""
IDLE = {"host": "waiting for launches", "input": "waiting for input", "sync": "after a synchronisation"}
"""Words for what the device does while it is idle."""


def certain_gain(finding: Finding) -> float:
    """Give what a finding gains at least: its gain less its error; of a bound, which is a most, nothing is certain."""
    return 0.0 if finding.basis is Basis.BOUND else max(finding.certain_gain_fraction, 0.0)


def worth(finding: Finding) -> str:
    """Say what a finding is worth: at least so much, or up to so much where only a bound is known."""
    if finding.basis is Basis.BOUND:
        return f"up to {quantity(finding.gain_fraction, Unit.FRACTION)}"
    return f"at least {quantity(certain_gain(finding), Unit.FRACTION)}"


def overview(document: Document) -> str:
    """Say how long a step takes, and which cause is certain to cost most."""
    figures = Figures(document.values)
    span, length = _span(figures)
    if length is None:
        return ""
    took = f"The {span} takes {quantity(length, Unit.NS)}"
    first = first_notable(document)
    if first is None:
        return f"{took}; nothing was found whose mending is certain to save {quantity(NOTABLE, Unit.FRACTION)} of it."
    return f"{took}, and {worth(first.finding)} of it can be won: {first.finding.title}."


def first_notable(document: Document) -> Cause | None:
    """Give the most important cause, if its mending saves a share of the step that is worth a sentence."""
    for cause in causes_of(document.findings).causes:
        if max(certain_gain(cause.finding), _bound(cause.finding)) > NOTABLE:
            return cause
    return None


def _bound(finding: Finding) -> float:
    return finding.gain_fraction if finding.basis is Basis.BOUND else 0.0


def ranks(document: Document) -> str:
    """Say who is waited for, how much that costs and on which axis; or that nobody is."""
    figures = Figures(document.values)
    cost = figures.along("straggler_cost", "rank")
    if not cost:
        return ""
    rank = max(cost, key=lambda each: cost[each])
    span = "step" if figures.has("step_time") else "window"
    culprit = next((row for row in _culprits(document) if row["rank"] == rank), None)
    if culprit is None:
        return (
            f"No rank holds the others up: they wait {quantity(cost[rank], Unit.NS)} a {span} at most, for rank {rank}."
        )
    axis, worth = str(culprit["axis"]), culprit["worth, replayed"]
    text = f"Rank {rank} is late: the others wait {quantity(cost[rank], Unit.NS)} a {span} for it"
    if isinstance(worth, int | float):
        text += f", which is worth {quantity(worth, Unit.FRACTION)} of the {span} (replayed)"
    late = figures.at("late_fraction", axis=axis, rank=rank)
    if late is not None:
        text += f"; it arrives last in {quantity(late, Unit.FRACTION)} of its {axis} calls"
    why = str(culprit["cause"])
    return f"{text}. Cause: {'not told by the trace' if why == 'unknown' else why}."


def _culprits(document: Document) -> list[dict[str, Cell]]:
    """Give the rows of the report's table of culprits."""
    for table in _tables_of(document, "stragglers"):
        if table.title == "Culprits":
            heads = [column.head for column in table.columns]
            return [dict(zip(heads, row, strict=True)) for row in table.rows]
    return []


def _tables_of(document: Document, section: str) -> list[DataTable]:
    """Give the tables of a section of the report."""
    blocks = [block for part in document.sections if part.id == section for block in part.blocks]
    return [block for block in blocks if isinstance(block, DataTable)]


def communication(document: Document) -> str:
    """Say how much of a step waits for communication, on which axis most, and whether for members or for the wire."""
    figures = Figures(document.values)
    exposed = figures.along("exposed_comm_time", "axis")
    whole = sum(value for _, _, value in step_parts(figures))
    if not exposed or not whole:
        return ""
    span, _ = _span(figures)
    share = quantity(sum(exposed.values()) / whole, Unit.FRACTION)
    axis = max(exposed, key=lambda each: exposed[each])
    text = f"Communication that nothing hides takes {share} of a {span}"
    if len(exposed) > 1:
        text += f", most on {axis} ({quantity(exposed[axis] / whole, Unit.FRACTION)})"
    waiting, moving = figures.at("wait_time", axis=axis), figures.at("transfer_time", axis=axis)
    if waiting is not None and moving is not None and waiting + moving > 0:
        part = quantity(waiting / (waiting + moving), Unit.FRACTION)
        text += f"; {part} of the time in {axis} calls is waiting for the last member, the rest is transfer"
    return f"{text}."


def pipeline(document: Document) -> str:
    """Say how large the bubble is, and how much of it the schedule explains."""
    figures = Figures(document.values)
    bubble = figures.whole("bubble_fraction")
    if bubble is None:
        return ""
    text = f"The pipeline stands still for {quantity(bubble, Unit.FRACTION)} of its window"
    ideal = figures.whole("bubble_ideal_fraction")
    if ideal is None:
        return f"{text}."
    lost = max(bubble - ideal, 0.0)
    if lost < NOTABLE:
        return f"{text}, as its schedule must with stages of these lengths."
    return (
        f"{text}: {quantity(min(ideal, bubble), Unit.FRACTION)} is due to the schedule and its stages, "
        f"{quantity(lost, Unit.FRACTION)} is lost beside it."
    )


def kernels(document: Document) -> str:
    """Say how near the kernels come to the device, and how much of its time the largest op takes."""
    figures = Figures(document.values)
    said = []
    mfu, efficiency = figures.whole("mfu"), figures.whole("kernel_efficiency")
    if mfu is not None:
        said.append(f"MFU is {quantity(mfu, Unit.FRACTION)}")
    if efficiency is not None:
        known = figures.whole("formula_fraction")
        over = f" (known for {quantity(known, Unit.FRACTION)} of device time)" if known is not None else ""
        said.append(f"kernels reach {quantity(efficiency, Unit.FRACTION)} of what the device could do{over}")
    op = _largest_op(document)
    if op:
        said.append(op)
    return _sentence(said)


def _largest_op(document: Document) -> str:
    """Say which op takes most of device time; empty where the report holds no table of ops."""
    for table in _tables_of(document, "kernels"):
        heads = [column.head for column in table.columns]
        if not table.rows or not {"op", "share"} <= set(heads):
            continue
        shares = _share_of_ops(table, heads.index("op"), heads.index("share"))
        first, second = [*sorted(shares, key=lambda op: -shares[op]), "", ""][:2]
        # Rows beyond the table's may be of any op: the first is surely the largest if they could not lift the second.
        unseen = max(1.0 - sum(shares.values()), 0.0) if table.more else 0.0
        if not first or shares[first] < shares.get(second, 0.0) + unseen:
            return ""
        least = "at least " if table.more else ""
        return f"the op {first} takes {least}{quantity(shares[first], Unit.FRACTION)} of device time"
    return ""


def _share_of_ops(table: DataTable, op: int, share: int) -> dict[str, float]:
    """Add up the shares of each op, which has a row for each of its shapes."""
    shares: dict[str, float] = {}
    for row in table.rows:
        value = row[share]
        if isinstance(value, int | float):
            shares[str(row[op])] = shares.get(str(row[op]), 0.0) + value
    return shares


def host(document: Document) -> str:
    """Say how long the device stands idle for its host, and how its launches arrive."""
    figures = Figures(document.values)
    idle_time = figures.along("idle_time", "cause")
    idle = {str(cause): value for cause, value in idle_time.items() if cause in IDLE}
    whole = sum(value for _, _, value in step_parts(figures))
    if not idle or not whole:
        return ""
    cause = max(idle, key=lambda each: idle[each])
    span, _ = _span(figures)
    share = sum(idle.values()) / whole
    if share < NOTABLE:
        said = [f"The host keeps the device busy: it costs {quantity(share, Unit.FRACTION)} of a {span}"]
    else:
        most = f"{quantity(idle[cause] / whole, Unit.FRACTION)} {IDLE[cause]}"
        said = [f"The host leaves the device idle for {quantity(share, Unit.FRACTION)} of a {span} ({most})"]
    empty = figures.whole("empty_queue_fraction")
    if empty is not None:
        said.append(f"{quantity(empty, Unit.FRACTION)} of its launches find an empty queue")
    return _sentence(said)


def memory(document: Document, learnt: Calibration | None = None) -> str:
    """Say whether it fits where the device is known: how much is in use at the peak, on which rank, what is left.

    Where that was not recorded, what the planner predicts stands first.
    """
    figures = Figures(document.values)
    peaks, taken = figures.along("peak_memory", "rank"), figures.whole("taken_memory")
    if not peaks and taken is not None:
        return (
            f"A rank took {quantity(taken, Unit.BYTES)} at most after the profiler began. What it held before is not "
            "known: on a CPU torch counts from there."
        )
    if not peaks:
        return f"{_predicted_peak(learnt)}How much was in use is not known: the traces hold no allocator events."
    rank = max(peaks, key=lambda each: peaks[each])
    peak, headroom = quantity(peaks[rank], Unit.BYTES), figures.at("memory_headroom", rank=rank)
    if headroom is None:
        return f"Rank {rank} is the fullest: {peak} are in use at its peak."
    left = quantity(headroom, Unit.FRACTION)
    return f"It fits: rank {rank} is the fullest with {peak} in use at its peak; {left} of its device were never held."


def _predicted_peak(learnt: Calibration | None) -> str:
    if learnt is None:
        return ""
    need, device = learnt.prediction.footprint.total_bytes, learnt.cluster.memory_bytes
    text = f"The planner predicts {quantity(need, Unit.BYTES)} for the fullest rank"
    if not isfinite(device):
        return f"{text}. "
    fits = "it fits" if need <= device else "it does not fit"
    return f"{text} of {quantity(device, Unit.BYTES)}: {fits}. "


def suggestions(document: Document) -> str:
    """Say which one change is certain to gain most."""
    causes = causes_of(document.findings).causes
    causes = tuple(cause for cause in causes if cause.finding.edit and certain_gain(cause.finding) > 0)
    if not causes:
        return "No change was found that is certain to make the step shorter."
    first = causes[0].finding
    return f"Change this first, for at least {quantity(certain_gain(first), Unit.FRACTION)} of a step: {first.title}."


def _span(figures: Figures) -> tuple[str, float | None]:
    """Give what is measured, a step or all that was recorded, and its length."""
    step = figures.whole("job_step_time")
    return ("step", step) if step is not None else ("window", figures.whole("window_time"))


def _sentence(said: list[str]) -> str:
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


OF_PAGE: dict[str, Callable[[Document], str]] = {
    "overview": overview,
    "ranks": ranks,
    "communication": communication,
    "pipeline": pipeline,
    "kernels": kernels,
    "host": host,
    "memory": memory,
    "suggestions": suggestions,
}
"""The pages whose sentence the report's figures give, by their path."""
