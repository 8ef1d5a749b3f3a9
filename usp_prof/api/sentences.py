"""Sentences: each question's answer in words, from the metric values; what is not known is said to be unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.analyses.measures.kernel_tally import PACED
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.figures import axes_in_order, label_of, parts
from usp_prof.report.format import quantity, share
from usp_prof.report.words import ranks_phrase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.analyses.measures.kernel_tally import OpStat
    from usp_prof.model.finding import Finding
    from usp_prof.report.document import Document, RunFacts
    from usp_prof.report.figures import Figures, Key, Number

_LEAST = 0.005
"""Parts of less than half a per cent of the step are not worth a word."""
_MOST_OPS = 3
"""Ops that a sentence names."""


def of_ranks(run: RunFacts, sentence: str) -> str:
    """Put before a sentence which ranks it is of, where the job has more."""
    return f"{ranks_phrase(run)} only: {sentence}" if run.is_part else sentence


def breakdown(figures: Figures) -> str:
    """Say which parts the mean step is made of, the largest first."""
    step_parts = parts(figures)
    total = sum(value for _, _, value in step_parts)
    if not total:
        return "No device work was recorded in the selection."
    largest = sorted(step_parts, key=lambda part: (-part[2], part[0]))
    shares = ", ".join(f"{label} {share(value, total)}" for label, _, value in largest if value >= _LEAST * total)
    return f"The mean rank's step of {quantity(total, Unit.NS)} is {shares}."


def overlap(figures: Figures) -> str:
    """Say how much communication is hidden, and which axis exposes most."""
    total = figures.whole("comm_time")
    if not total:
        return "No communication was recorded in the selection."
    exposed = figures.along("exposed_comm_time", "axis")
    text = f"Compute hides {quantity(figures.whole('overlap_fraction'), Unit.FRACTION)} of {quantity(total, Unit.NS)} "
    text += "of communication in a step."
    if exposed:
        worst, time = largest(exposed)
        text += f" Most is exposed on {worst}: {quantity(time, Unit.NS)}."
    return text


def communication(figures: Figures) -> str:
    """Say how much of the calls' time is waiting for late members and how much is transfer."""
    calls = figures.total("collective_calls", "axis", "collective", "size")
    if not calls:
        return "No collective call was recorded in the selection."
    waits, transfers = figures.along("wait_time", "axis"), figures.along("transfer_time", "axis")
    text = f"{counted(round(calls), 'call')}."
    if waits and transfers:
        rates = (
            f"{axis} waits {quantity(waits.get(axis), Unit.NS)} and transfers {quantity(transfers.get(axis), Unit.NS)}"
            for axis in axes_in_order(waits | transfers)
        )
        text += f" In a step of the mean rank, summed over calls that may run at once, {'; '.join(rates)}."
    else:
        text += " The other members of the calls were not recorded, so waiting and transfer cannot be separated."
    return text


def pipeline(figures: Figures) -> str:
    """Set the bubble beside that of the same order without losses."""
    measured = figures.whole("bubble_fraction")
    if measured is None:
        return "No pipeline action was recorded or could be inferred in the selection."
    text = f"The pipeline's bubble is {quantity(measured, Unit.FRACTION)} of its window"
    ideal = figures.whole("bubble_ideal_fraction")
    if ideal is not None:
        text += f"; the same order would leave {quantity(ideal, Unit.FRACTION)} with nothing lost between actions"
    return f"{text}."


def stragglers(figures: Figures) -> str:
    """Name the rank that the others wait for, and its cost."""
    cost = figures.along("straggler_cost", "rank")
    step = figures.whole("step_time") or figures.whole("window_time")
    if not cost:
        return "Which rank arrives last is not known: no call was recorded on more than one of its members."
    rank, time = largest(cost)
    if not step or time < _LEAST * step:
        return "No rank delays the others by more than half a per cent of the step."
    return (
        f"Rank {rank} delays the others by {quantity(time, Unit.NS)} in a step of {quantity(step, Unit.NS)} "
        f"({share(time, step)})."
    )


def longest_ops(ops: Sequence[OpStat]) -> str:
    """Name the ops that take most of the compute time, waits that stand for compute left out; empty without ops."""
    time_ns: dict[str, int] = {}
    for op in ops:
        if op.name != PACED:
            time_ns[op.name] = time_ns.get(op.name, 0) + op.time_ns
    whole_ns = sum(time_ns.values())
    first = sorted(time_ns.items(), key=lambda item: (-item[1], item[0]))[:_MOST_OPS]
    return ", ".join(f"{name} {share(time, whole_ns)}" for name, time in first if time >= _LEAST * whole_ns > 0)


def kernels(figures: Figures, *, paced: bool = False, longest: str = "") -> str:
    """Say which ops take the time, how near kernels come to the roofline, and how many are tiny."""
    clauses = [f"Most of the {'unpaced ' if paced else ''}compute time: {longest}"] if longest else []
    efficiency, covered = figures.whole("kernel_efficiency"), figures.whole("formula_fraction")
    if efficiency is not None:
        text = "ops whose work is known"
        if covered is not None:
            text += f" ({quantity(covered, Unit.FRACTION)} of {'the unpaced ' if paced else ''}compute time)"
        clauses.append(f"{text} run at {quantity(efficiency, Unit.FRACTION)} of what the roofline allows")
    small = figures.whole("small_kernel_fraction")
    if small is not None:
        clauses.append(f"{quantity(small, Unit.FRACTION)} of compute time is in kernels shorter than 10 \u03bcs")
    if not clauses:
        return "Which ops take the time is not known: no compute was recorded."
    if efficiency is None:
        clauses.append("how near that is to the roofline is not known: shapes or the device's peaks are missing")
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."


def mfu(figures: Figures, convention: str = "") -> str:
    """Give MFU with the convention that it is counted by, and HFU, or say that they are not known."""
    utilisation = figures.whole("mfu")
    if utilisation is None:
        return "MFU is not known: its notes say what is missing, and `run.assume(...)` takes what you know."
    hfu = figures.whole("hfu")
    again = f", with recomputation counted {quantity(hfu, Unit.FRACTION)} (HFU)" if hfu is not None else ""
    by = f" by the {convention} convention" if convention else ""
    return f"MFU is {quantity(utilisation, Unit.FRACTION)}{by}{again}."


def host(figures: Figures) -> str:
    """Say whether devices wait for launches, and how long the host blocks."""
    clauses = []
    empty = figures.whole("empty_queue_fraction")
    if empty is not None:
        clauses.append(f"{quantity(empty, Unit.FRACTION)} of launches found the device waiting")
    for metric, what in (
        ("host_sync_time", "in calls that wait for the device"),
        ("input_time", "in the data loader"),
        ("gc_time", "in Python's garbage collector"),
    ):
        time = figures.whole(metric)
        if time:
            clauses.append(f"{quantity(time, Unit.NS)} of a step {what}")
    if clauses and empty is None:
        clauses.append("no launches were recorded (a run on CPUs has none)")
    return f"Host: {'; '.join(clauses)}." if clauses else "Nothing of the host was recorded that the device waited for."


def memory(figures: Figures) -> str:
    """Give the fullest rank's peak."""
    peak, taken = figures.whole("peak_memory"), figures.whole("taken_memory")
    if peak is None and taken is not None:
        most = quantity(taken, Unit.BYTES)
        return f"A rank took {most} at most after the profiler began; what it held before is not known."
    if peak is None:
        return "Memory was not recorded: use `profile_memory=True` or give an allocator snapshot."
    text = f"The fullest rank holds {quantity(peak, Unit.BYTES)} at its peak"
    reserved = figures.whole("peak_reserved_memory")
    return f"{text}, of {quantity(reserved, Unit.BYTES)} reserved." if reserved is not None else f"{text}."


def critical_path(figures: Figures) -> str:
    """Say what the critical path consists of."""
    shares_of_parts = figures.along("critical_path_fraction", "part")
    if not shares_of_parts:
        return "The critical path is not known: no steps with device work were recorded."
    largest = sorted(shares_of_parts.items(), key=lambda item: (-item[1], str(item[0])))
    shares = ", ".join(
        f"{label_of(str(part))} {quantity(value, Unit.FRACTION)}" for part, value in largest if value >= _LEAST
    )
    return f"The critical path is {shares}."


def findings(ranked: Sequence[Finding]) -> str:
    """Name the most important finding with its gain."""
    certain = [finding for finding in ranked if not finding.is_noise]
    if not certain:
        return "Nothing was found that is worth acting on."
    first = certain[0]
    gain = f": worth {quantity(first.gain_fraction, Unit.FRACTION)} of the step" if first.gain_fraction > 0 else ""
    more = f" {len(certain) - 1} more." if len(certain) > 1 else ""
    begins_with_name = "::" in first.title.partition(" ")[0]  # an op, which is written as PyTorch does
    title = first.title if begins_with_name else f"{first.title[:1].upper()}{first.title[1:]}"
    return f"{title}{gain}.{more}"


def summary(document: Document, figures: Figures) -> str:
    """Give the step and where it goes, then the first finding."""
    step = figures.whole("job_step_time")
    lead = f"The job's median step takes {quantity(step, Unit.NS)}. " if step is not None else ""
    return f"{lead}{breakdown(figures)} {findings(document.findings)}"


def largest(values: Mapping[Key, Number]) -> tuple[Key, Number]:
    """Give the key of the largest value, and the value; of equal ones the last by name."""
    return max(values.items(), key=lambda item: (item[1], str(item[0])))
