"""Verdicts: the sentence with which each page opens, from the figures of the report; empty where nothing is known."""

from __future__ import annotations

from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..engine import Basis, DataTable, Figures, Unit, causes_of, quantity, sentences, step_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..engine import Calibration, Cause, Cell, Document, Finding, Key, Number

NOTABLE = 0.02
"""Less than 2 % of a step is not worth a sentence."""
APART = 2.0
"""A rank that waits this many times as long as the mean rank is named."""
UNKNOWN_AXIS = "unknown"
FEWEST_RANKS = 4
"""Of fewer ranks, one can hardly lie apart from the mean."""
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
    """Say who is late, what the step would be without that, on which axis, and why; or that nobody is."""
    figures = Figures(document.values)
    cost = figures.along("straggler_cost", "rank")
    if not cost:
        if not document.sections:
            return ""
        read = document.run.ranks
        return (
            f"Who is late is not known: only rank {read[0]} was read."
            if len(read) == 1
            else (sentences.stragglers(figures))
        )
    rank, _ = sentences.largest(cost)
    clauses = [sentences.stragglers(figures)]
    culprit = next((row for row in _culprits(document) if row["rank"] == rank), None)
    if culprit is None:
        return clauses[0]
    axis, worth = str(culprit["axis"]), culprit["worth, replayed"]
    if isinstance(worth, int | float):
        clauses.append(f"Without that the step would be {quantity(worth, Unit.FRACTION)} shorter (replayed).")
    late = figures.at("late_fraction", axis=axis, rank=rank)
    if late is not None:
        clauses.append(f"It arrives last in {quantity(late, Unit.FRACTION)} of its {_calls_of(axis)}.")
    clauses.append(_why_late(document, rank, str(culprit["cause"])))
    return " ".join(clauses)


def _why_late(document: Document, rank: Key, cause: str) -> str:
    """Give the cause that the calls tell; where they tell none, the finding whose lost time includes the rank's."""
    if cause != "unknown":
        return f"Cause: {cause}."
    for each in causes_of(document.findings).causes:
        if any(part.where.get("rank") == rank for part in each.parts):
            return f"Part of a larger cause: {each.finding.title}."
    return "Cause: not told by the trace."


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
        text += f"; {part} of the time in {_calls_of(axis)} is waiting for the last member, the rest is transfer"
    late = _late_on(document, figures, axis) or _late_anywhere(document)
    return f"{text}. {late}" if late else f"{text}."


def _late_on(document: Document, figures: Figures, axis: Key) -> str:
    """Name the culprit for which the members of an axis wait most; empty where there is none."""
    ranks = {row["rank"] for row in _culprits(document) if row["axis"] == axis}
    cost = {rank: value for rank, value in figures.along("straggler_cost", "rank").items() if rank in ranks}
    if not cost:
        return ""
    rank, _ = sentences.largest(cost)
    late = figures.at("late_fraction", axis=axis, rank=rank)
    return f"Rank {rank} arrives last in {quantity(late, Unit.FRACTION)} of its {_calls_of(axis)}." if late else ""


def _late_anywhere(document: Document) -> str:
    rank = late_rank(document)
    return f"The others wait most for rank {rank}." if rank is not None else ""


def _calls_of(axis: Key) -> str:
    return "calls of an unknown axis" if axis == UNKNOWN_AXIS else f"{axis} calls"


def pipeline(document: Document) -> str:
    """Say how large the bubble is, how much of it the schedule explains, and which rank the others wait for."""
    figures = Figures(document.values)
    if figures.whole("bubble_fraction") is None:
        return ""
    return f"{sentences.pipeline(figures)} {_late_anywhere(document)}".strip()


def kernels(document: Document, times: Mapping[str, int] = MappingProxyType({})) -> str:
    """Say which op takes most of the device's time, of the time of each op, and how near they come to the device."""
    figures = Figures(document.values)
    clauses = [
        _largest_op(times),
        sentences.kernels(figures, paced=document.run.paced) if figures.whole("kernel_efficiency") is not None else "",
        sentences.mfu(figures) if figures.whole("mfu") is not None else "",
    ]
    return " ".join(sentence for sentence in clauses if sentence)


def _largest_op(times: Mapping[str, int]) -> str:
    whole = sum(times.values())
    if not whole:
        return ""
    first = min(times, key=lambda op: (-times[op], op))
    return f"The op {first} takes {quantity(times[first] / whole, Unit.FRACTION)} of device time, the most of all."


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
        clauses = [f"The host keeps the device busy: it costs {quantity(share, Unit.FRACTION)} of a {span}"]
    else:
        leaves, most = quantity(share, Unit.FRACTION), quantity(idle[cause] / whole, Unit.FRACTION)
        why = f"{IDLE[cause]}" if most == leaves else f"{most} {IDLE[cause]}"
        clauses = [f"The host leaves the device idle for {leaves} of a {span} ({why})"]
    clauses += _waits_apart(figures.along("idle_time", "rank", cause=cause), whole)
    empty = figures.whole("empty_queue_fraction")
    if empty is not None:
        clauses.append(f"{quantity(empty, Unit.FRACTION)} of all launches find an empty queue")
    return _sentence(clauses)


def _waits_apart(waited: Mapping[Key, Number], span: Number) -> list[str]:
    """Name the rank whose device waits far longer for its host than the mean of all ranks' does."""
    rank = rank_apart(waited, span)
    if rank is None:
        return []
    mean = sum(waited.values()) / len(waited)
    return [f"rank {rank} waits {quantity(waited[rank], Unit.NS)}, the mean is {quantity(mean, Unit.NS)}"]


def rank_apart(waited: Mapping[Key, Number], span: Number) -> Key | None:
    """Find the rank that waits far longer than the mean of all, for a notable part of the step; None: no rank does."""
    if len(waited) < FEWEST_RANKS:
        return None
    rank, longest = sentences.largest(waited)
    mean = sum(waited.values()) / len(waited)
    return rank if longest >= max(APART * mean, NOTABLE * span) else None


def memory(document: Document, learnt: Calibration | None = None) -> str:
    """Say whether it fits where the device is known: how much is in use at the peak, on which rank, what is left.

    Where that was not recorded, what the planner predicts is the answer.
    """
    figures = Figures(document.values)
    peaks = figures.along("peak_memory", "rank")
    if not peaks:
        if learnt is not None and figures.whole("taken_memory") is None:
            return _predicted_peak(learnt)
        return sentences.memory(figures)
    rank, peak_bytes = sentences.largest(peaks)
    peak, headroom = quantity(peak_bytes, Unit.BYTES), figures.at("memory_headroom", rank=rank)
    if headroom is None:
        return f"Rank {rank} is the fullest: {peak} are in use at its peak."
    left = quantity(headroom, Unit.FRACTION)
    return f"It fits: rank {rank} is the fullest with {peak} in use at its peak; {left} of its device were never held."


def _predicted_peak(learnt: Calibration) -> str:
    """Say by prediction whether it fits."""
    need, device = learnt.prediction.footprint.total_bytes, learnt.cluster.memory_bytes
    filled = quantity(need, Unit.BYTES)
    if not isfinite(device):
        return f"Predicted, not measured: the fullest rank needs {filled}; how much its device has is not known."
    answer = "it fits" if need <= device else "it does not fit"
    room = quantity(device, Unit.BYTES)
    return f"Predicted, not measured: {answer}. The fullest rank needs {filled} of the device's {room}."


def suggestions(document: Document) -> str:
    """Say which one change is certain to gain most."""
    first = _first_change(document)
    if first is None:
        return "No change was found that is certain to make the step shorter."
    return f"Change this first, for at least {quantity(certain_gain(first), Unit.FRACTION)} of a step: {first.title}."


def whatif(document: Document) -> str:
    """Say how long the step is as recorded, and which change among the findings is worth trying first."""
    span, length = _span(Figures(document.values))
    if length is None:
        return ""
    recorded = f"As recorded a {span} takes {quantity(length, Unit.NS)}"
    first = _first_change(document)
    if first is None:
        return f"{recorded}; no finding names a change that is certain to make it shorter."
    return f"{recorded}; try this first, worth {worth(first)}: {first.title}."


def _first_change(document: Document) -> Finding | None:
    """Give the first finding that a replayed change is certain to mend."""
    found = (cause.finding for cause in causes_of(document.findings).causes)
    return next((finding for finding in found if finding.edit and certain_gain(finding) > 0), None)


def timeline(document: Document) -> str:
    """Say where to look first: at the rank that is late, else at what the report puts first."""
    figures = Figures(document.values)
    if late_rank(document) is not None:
        return f"Look here first: {sentences.stragglers(figures)}"
    first = first_notable(document)
    if first is not None:
        return f"Look for this first: {first.finding.title}."
    if _span(figures)[1] is None:
        return ""
    return f"Nothing stands out: no finding is certain to save {quantity(NOTABLE, Unit.FRACTION)} of the step."


def late_rank(document: Document) -> Key | None:
    """Give the rank that costs the others most, if the report holds it for a culprit."""
    cost = Figures(document.values).along("straggler_cost", "rank")
    rank = sentences.largest(cost)[0] if cost else None
    return rank if rank in {row["rank"] for row in _culprits(document)} else None


def _span(figures: Figures) -> tuple[str, float | None]:
    """Give what is measured, a step or all that was recorded, and its length."""
    step = figures.whole("job_step_time")
    return ("step", step) if step is not None else ("window", figures.whole("window_time"))


def _sentence(clauses: list[str]) -> str:
    text = "; ".join(clauses)
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
    "timeline": timeline,
    "whatif": whatif,
}
"""The pages whose sentence the report's figures give, by their path."""
