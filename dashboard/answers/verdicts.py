"""Verdicts: the opening sentence of each page, from the figures of the report; empty if they are unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from types import MappingProxyType

from usp_prof.api import sentences
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.findings.causes import causes_of
from usp_prof.model.edit import parse_edit
from usp_prof.model.metric import Unit
from usp_prof.report.answers import whatif as whatif_answer
from usp_prof.report.document import Document
from usp_prof.report.figures import Figures, Key, Number, axis_words
from usp_prof.report.figures import parts as step_parts
from usp_prof.report.format import quantity
from usp_prof.report.verdict import NOTABLE, certain_gain, of_step, saving

FEW = 0.05
"""If a smaller share of launches finds an empty queue, a notable idle time is in few gaps."""
APART = 2.0
"""A rank that waits this many times as long as the mean rank is named."""
UNKNOWN_AXIS = "unknown"
PIPELINE = "pp"
MOST_NAMED = 2
"""Number of ranks that a sentence names."""
FEWEST_RANKS = 4
"""With fewer ranks, an outlier can hardly differ from the mean."""
IDLE = {"host": "waiting for launches", "input": "waiting for input", "sync": "after a synchronization"}
"""Words for each cause of idle time."""


def ranks(document: Document) -> str:
    """Describe the straggler, its cost, its axis and its cause, or that there is none."""
    figures = Figures(document.values)
    cost = figures.along("straggler_cost", "rank")
    if not cost:
        if not document.sections:
            return ""
        read = document.run.ranks
        if len(read) == 1:
            return f"Stragglers are unknown: only rank {read[0]} was read."
        return sentences.naming_ranks(document.run, sentences.stragglers(figures))
    rank, _ = sentences.largest(cost)
    late = document.verdict.late_rank(rank)
    why = late.why if late is not None and late.why != "unknown" else ""
    return sentences.naming_ranks(document.run, sentences.stragglers(figures, why))


def larger_cause(document: Document) -> str:
    """Describe the finding that includes the straggler's lost time; empty if the calls show a cause of their own."""
    rank = document.verdict.straggler
    late = document.verdict.late_rank(rank) if rank is not None else None
    if late is None or late.why != "unknown":
        return ""
    for cause in causes_of(document.findings).causes:
        if any(part.where.get("rank") == late.rank for part in cause.parts):
            return f"Part of a larger cause: {cause.finding.title}."
    return "The trace does not show why the rank is late."


def communication(document: Document) -> str:
    """Describe exposed communication, its largest axis, and how much of it is waiting for participants."""
    figures = Figures(document.values)
    exposed = figures.along("exposed_comm_time", "axis")
    step_ns = sum(value for _, _, value in step_parts(figures))
    if not exposed or not step_ns:
        return ""
    span = document.verdict.span
    share = quantity(sum(exposed.values()) / step_ns, Unit.FRACTION)
    axis = max(exposed, key=lambda name: exposed[name])
    text = f"Exposed communication takes {share} of the mean rank {span}"
    if len(exposed) > 1:
        text += f", most on {axis_words(axis)} ({quantity(exposed[axis] / step_ns, Unit.FRACTION)})"
    waiting, moving = figures.at("wait_time", axis=axis), figures.at("transfer_time", axis=axis)
    if waiting is not None and moving is not None and waiting + moving > 0:
        part = quantity(waiting / (waiting + moving), Unit.FRACTION)
        last = "the other side" if axis == PIPELINE else "the last participant"
        text += f"; {part} of the time in {_calls_of(axis)} is waiting for {last}, the rest is transfer"
    late = _late_on(document, axis) or _late_anywhere(document)
    return f"{text}. {late}" if late else f"{text}."


def _late_on(document: Document, axis: Key) -> str:
    """Name the latest rank of an axis; empty without one."""
    latest = next((late for late in document.verdict.late_ranks if late.axis == axis), None)
    if latest is None:
        return ""
    delay = f"{quantity(latest.late_ns, Unit.NS)} per step, summed over its calls"
    return f"Rank {latest.rank} delays {_calls_of(axis)} most: by {delay}."


def _late_anywhere(document: Document) -> str:
    rank = document.verdict.straggler
    return f"The other ranks wait longest for rank {rank}." if rank is not None else ""


def _calls_of(axis: Key) -> str:
    if axis == PIPELINE:
        return f"{axis} sends and receives"
    return "collectives of unknown axis" if axis == UNKNOWN_AXIS else f"{axis} collectives"


def pipeline(document: Document) -> str:
    """Describe the bubble, its ideal, the straggler, and the best other schedule if it certainly saves time."""
    figures = Figures(document.values)
    if figures.overall("bubble_fraction") is None:
        return ""
    clauses = [sentences.pipeline(figures), _late_anywhere(document), _other_schedule(document)]
    return " ".join(clause for clause in clauses if clause)


def _other_schedule(document: Document) -> str:
    offered = [finding for finding in document.findings if finding.edit.startswith("schedule=")]
    best = max(offered, key=certain_gain, default=None)
    if best is None or not certain_gain(best):
        return ""
    words = whatif_answer.in_words(parse_edit(best.edit))
    return f"The best change is predicted to save {saving(best)} {of_step(best)}: {words}."


def kernels(document: Document, times: Mapping[str, int] = MappingProxyType({}), *, has_roofline: bool = True) -> str:
    """Describe the op with most device time, how close kernels come to the device's limit, and MFU."""
    figures = Figures(document.values)
    text = sentences.kernels(figures, times, paced=document.run.paced, has_roofline=has_roofline)
    if (utilization := figures.overall("mfu")) is not None:
        text = f"{text} MFU is {quantity(utilization, Unit.FRACTION)}.".lstrip()
    return text


def host(document: Document) -> str:
    """Describe how long the device is idle because of its host, and how launches arrive."""
    figures = Figures(document.values)
    idle = {cause: figures.at("idle_time", cause=cause) or 0.0 for cause in IDLE}
    step_ns = sum(value for _, _, value in step_parts(figures))
    if not step_ns or not figures.along("idle_time", "cause"):
        return ""
    span = document.verdict.span
    total = quantity(sum(idle.values()) / step_ns, Unit.FRACTION)
    is_notable = sum(idle.values()) >= NOTABLE * step_ns
    apart = _waits_apart(idle_for_host(figures), step_ns)
    if is_notable:
        largest_first = sorted(idle, key=lambda cause: -idle[cause])
        parts = {cause: quantity(idle[cause] / step_ns, Unit.FRACTION) for cause in largest_first}
        phrases = [f"{part} {IDLE[cause]}" for cause, part in parts.items() if part != quantity(0, Unit.FRACTION)]
        why = ", ".join(phrases) if len(phrases) > 1 else IDLE[largest_first[0]]
        clauses = [f"The device is idle for {total} of the mean rank {span} because of the host ({why})", *apart]
    elif apart:
        clauses = [f"Few devices wait for their host: {apart[0]} ({total} of the mean rank {span})"]
    else:
        clauses = [f"The host keeps the device busy: it costs {total} of the mean rank {span}"]
    empty = figures.overall("empty_queue_fraction")
    if empty is not None:
        few = "the gaps are few and long: " if empty < FEW and is_notable else ""
        clauses.append(f"{few}{quantity(empty, Unit.FRACTION)} of all launches find an empty queue")
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."


def idle_for_host(figures: Figures) -> dict[Key, float]:
    """Return how long each rank's device is idle because of its host, from all causes."""
    total: dict[Key, float] = {}
    for cause in IDLE:
        for rank, value in figures.along("idle_time", "rank", cause=cause).items():
            total[rank] = total.get(rank, 0.0) + value
    return total


def _waits_apart(waited: Mapping[Key, Number], span: Number) -> list[str]:
    """Name the ranks whose devices wait far longer for their host than the mean rank."""
    apart = ranks_apart(waited, span)[:MOST_NAMED]
    if not apart:
        return []
    mean = sum(waited.values()) / len(waited)
    waits = " and ".join(f"rank {rank} waits {quantity(waited[rank], Unit.NS)}" for rank in apart)
    return [f"{waits}, the mean is {quantity(mean, Unit.NS)}"]


def ranks_apart(waited: Mapping[Key, Number], span: Number) -> list[Key]:
    """Return the ranks that wait far longer than the mean rank and for a notable part of the step, longest first."""
    if len(waited) < FEWEST_RANKS:
        return []
    least = max(APART * sum(waited.values()) / len(waited), NOTABLE * span)
    return sorted((rank for rank in waited if waited[rank] >= least), key=lambda rank: -waited[rank])


def memory(document: Document, calibration: Calibration | None = None) -> str:
    """Describe peak memory, the fullest rank, and whether it fits; the planner's prediction if nothing was recorded."""
    figures = Figures(document.values)
    is_recorded = figures.along("peak_memory", "rank") or figures.overall("taken_memory") is not None
    return sentences.memory(figures) if calibration is None or is_recorded else _predicted_peak(calibration)


def _predicted_peak(calibration: Calibration) -> str:
    """Describe the predicted peak, and whether it fits."""
    need, device = calibration.prediction.footprint.total_bytes, calibration.cluster.room_bytes
    filled = quantity(need, Unit.BYTES)
    if not isfinite(device):
        return f"Predicted, not measured: the fullest rank needs {filled}; the size of its device is unknown."
    answer = "it fits" if need <= device else "it does not fit"
    room = quantity(device, Unit.BYTES)
    return f"Predicted, not measured: {answer}. The fullest rank needs {filled}, and tensors can fill {room}."


def suggestions(document: Document) -> str:
    """Describe the cause to act on first, which the run's verdict names."""
    worst = document.verdict.worst
    return f"Start here: {worst}" if document.verdict.cause is not None else worst


def whatif(document: Document) -> str:
    """Describe the recorded step and the first change to try: that of the run's verdict."""
    span, length_ns, cause = document.verdict.span, document.verdict.length_ns, document.verdict.cause
    if length_ns is None:
        return ""
    if cause is None or not cause.finding.edit:
        return document.verdict.sentence
    change, gain = whatif_answer.in_words(parse_edit(cause.finding.edit)), saving(cause.finding)
    recorded = f"The recorded {span} takes {quantity(length_ns, Unit.NS)}."
    return f"{recorded} The change to try first saves {gain} {of_step(cause.finding)}: {change}."


def of_run(document: Document) -> str:
    """Return the verdict on the run."""
    return document.verdict.sentence


OF_PAGE: dict[str, Callable[[Document], str]] = {
    "overview": of_run,
    "ranks": ranks,
    "communication": communication,
    "pipeline": pipeline,
    "kernels": kernels,
    "host": host,
    "memory": memory,
    "suggestions": suggestions,
    "timeline": of_run,
    "whatif": whatif,
}
"""The sentence of each page, by its path."""
