"""Sentences: the answer to each question in words, from metric values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from usp_prof.analyses.measures.kernel_tally import PACED, OpStat
from usp_prof.findings.causes import causes_of
from usp_prof.findings.draft import skipped_sentence
from usp_prof.model.finding import Finding
from usp_prof.model.health import HealthRow
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.document import Document
from usp_prof.report.figures import Figures, Key, Number, axes_in_order, label_of, parts
from usp_prof.report.format import quantity, share
from usp_prof.report.run_facts import RunFacts
from usp_prof.report.verdict import Verdict, first_notable, gains_in_messages
from usp_prof.report.words import ranks_phrase

_LEAST_CONTRADICTION = 0.05
"""Lateness may exceed the gain of a repair by this share of the step, due to transfers and clock errors."""
_MOST = 0.5
"""A repair that saves less than half of the lateness leaves most of the step to another cause."""
_LEAST = 0.005
"""Parts below 0.5% of the step are not mentioned."""
_MANY_SMALL = 0.1
"""A smaller share of compute time in short kernels is not mentioned."""


def naming_ranks(run: RunFacts, sentence: str) -> str:
    """Prefix a sentence with the ranks that it covers, if the job has more."""
    return f"{ranks_phrase(run)} only: {sentence}" if run.is_part else sentence


def breakdown(figures: Figures) -> str:
    """Describe the parts of the mean rank's step, largest first."""
    step_parts = parts(figures)
    total = sum(value for _, _, value in step_parts)
    if not total:
        return "No device work was recorded in the selection."
    largest = sorted(step_parts, key=lambda part: (-part[2], part[0]))
    shares = ", ".join(f"{label} {share(value, total)}" for label, _, value in largest if value >= _LEAST * total)
    span = "step" if figures.has("step_time") else "window"
    sentence = f"The mean rank's {span} takes {quantity(total, Unit.NS)}: {shares}."
    unrecorded = figures.overall("unrecorded_time")
    if not unrecorded:
        return sentence
    idle = figures.overall("idle_time") or 0
    bounds = f"{share(idle, total)} to {share(idle + unrecorded, total)}"
    return f"{sentence} Device work is missing from the trace: the device idles {bounds} of the {span}."


def overlap(figures: Figures) -> str:
    """Describe how much communication is hidden, and which axis exposes most."""
    total = figures.overall("comm_time")
    if not total:
        return "No communication was recorded in the selection, or health says why its figures are not shown."
    exposed = figures.along("exposed_comm_time", "axis")
    hidden = quantity(figures.overall("overlap_fraction"), Unit.FRACTION)
    text = f"Compute hides {hidden} of the {quantity(total, Unit.NS)} of communication per step."
    if exposed:
        worst, time = largest(exposed)
        text += f" Most exposed time is on {worst}: {quantity(time, Unit.NS)}."
    return text


def communication(figures: Figures) -> str:
    """Describe how much of the calls' time is waiting and how much is transfer."""
    calls = figures.total("collective_calls", "axis", "collective", "size")
    if not calls:
        return "No collectives were recorded in the selection."
    waits, transfers = figures.along("wait_time", "axis"), figures.along("transfer_time", "axis")
    text = f"{counted(round(calls), 'call')}."
    if waits and transfers:
        rates = (
            f"{axis} waits {quantity(waits.get(axis), Unit.NS)} and transfers {quantity(transfers.get(axis), Unit.NS)}"
            for axis in axes_in_order(waits | transfers)
        )
        text += f" Per step of the mean rank: {'; '.join(rates)}."
    else:
        text += " Other participants were not recorded, so waiting and transfer cannot be separated."
    return text


def pipeline(figures: Figures) -> str:
    """Describe the bubble and the ideal of the same schedule."""
    measured = figures.overall("bubble_fraction")
    if measured is None:
        return "No pipeline actions were recorded or could be inferred in the selection."
    text = f"The pipeline bubble is {quantity(measured, Unit.FRACTION)} of its window"
    ideal = figures.overall("bubble_ideal_fraction")
    if ideal is not None:
        text += f"; the ideal of the same schedule is {quantity(ideal, Unit.FRACTION)}"
    return f"{text}."


def is_any_rank_late(figures: Figures) -> bool:
    """Return whether a rank delays the others by a share of the step worth naming."""
    cost = figures.along("straggler_cost", "rank")
    step = figures.rank_step_ns
    if not cost or not step:
        return False
    return largest(cost)[1] >= _LEAST * step


def stragglers(figures: Figures, cause: str = "") -> str:
    """Name the straggler, its lateness, the gain of its repair if that was replayed, and its `cause`.

    A sum of lateness is not a cost: if the hosts limit the step, the ranks catch up before the next collective. Nor is
    it measured in sends and receives, where only the gain of a repair shows who delays the others.
    """
    cost = figures.along("straggler_cost", "rank")
    step = figures.rank_step_ns
    late = largest(cost)[0] if is_any_rank_late(figures) else None
    in_messages = _in_messages(figures, late)
    if not cost:
        return in_messages or "Stragglers are unknown: no call was recorded on more than one of its ranks."
    if not step or late is None:
        return in_messages or "No rank delays the others by more than 0.5% of the step."
    why = f"Cause: {cause}." if cause else ""
    return " ".join(part for part in (_late_in_collectives(figures, *largest(cost), step), why, in_messages) if part)


def _in_messages(figures: Figures, first: Key | None) -> str:
    """Name the rank that delays others most in sends and receives, unless it is the `first` rank of the sentence."""
    rank, gain = next(iter(gains_in_messages(figures).items()), (first, 0.0))
    if rank == first:
        return ""
    saves = f"{quantity(gain, Unit.FRACTION)} of the step"
    return f"Rank {rank} delays the others in sends and receives. Repairing it saves {saves}."


def _late_in_collectives(figures: Figures, rank: Key, time: Number, step: Number) -> str:
    """Describe how late a rank is in collectives, and what its repair saves."""
    late = f"Rank {rank} arrives last by {quantity(time, Unit.NS)} per step, summed over its collectives"
    gain = figures.along("repair_gain", "rank").get(rank)
    if gain is None:
        return f"{late}; what its repair saves is unknown."
    saves = f"{quantity(gain, Unit.FRACTION)} of the step"
    if abs(gain - time / step) <= _LEAST_CONTRADICTION:
        return (
            f"Rank {rank} delays the others by {quantity(time, Unit.NS)} per step ({share(time, step)} of the mean "
            f"rank step). Repairing it saves {saves}."
        )
    if gain >= _MOST * time / step:
        more = "; lateness leaves out sends, receives and other axes" if gain > time / step else ""
        return f"{late}. Repairing it saves {saves}{more}."
    saves, limits = (saves, "rest") if gain >= _LEAST else ("nothing", "step")
    return f"{late}. Repairing it alone saves {saves}: something else limits the {limits}."


def time_of_ops(ops: Sequence[OpStat]) -> dict[str, int]:
    """Sum the device time of each op over its shapes, in ns; without paced waits, which are no op."""
    time_ns: dict[str, int] = {}
    for op in ops:
        if op.name != PACED:
            time_ns[op.name] = time_ns.get(op.name, 0) + op.time_ns
    return time_ns


def kernels(figures: Figures, time_ns: Mapping[str, int], *, paced: bool = False, has_roofline: bool = True) -> str:
    """Describe the op with most device time, how close kernels come to the device's limit, and tiny kernels.

    Empty if no compute was recorded.
    """
    sentences = []
    if total_ns := sum(time_ns.values()):
        first = min(time_ns, key=lambda op: (-time_ns[op], op))
        unpaced = "unpaced " if paced else ""
        sentences.append(
            f"{first} takes {share(time_ns[first], total_ns)} of {unpaced}device time, more than any other op."
        )
    efficiency, small = figures.overall("kernel_efficiency"), figures.overall("small_kernel_fraction")
    if efficiency is not None:
        limit = "the roofline" if has_roofline else "the device's peak FLOP rate"
        covered = "Unpaced kernels" if paced else "Kernels"
        sentences.append(f"{covered} reach {quantity(efficiency, Unit.FRACTION)} of {limit}.")
    if small is not None and small >= _MANY_SMALL:
        sentences.append(f"{quantity(small, Unit.FRACTION)} of compute time is in kernels shorter than 10 \u03bcs.")
    return " ".join(sentences)


def mfu(figures: Figures, convention: str = "") -> str:
    """Describe MFU with its convention, and HFU, or how to get them."""
    utilization = figures.overall("mfu")
    if utilization is None:
        return "MFU is unknown. The notes list what is missing; supply it with `run.assume(...)`."
    hfu = figures.overall("hfu")
    again = f", HFU (with recomputation) is {quantity(hfu, Unit.FRACTION)}" if hfu is not None else ""
    by = f" ({convention} convention)" if convention else ""
    return f"MFU is {quantity(utilization, Unit.FRACTION)}{by}{again}."


def host(figures: Figures) -> str:
    """Describe whether devices wait for launches, and how long the host blocks."""
    clauses = []
    empty = figures.overall("empty_queue_fraction")
    if empty is not None:
        clauses.append(f"{quantity(empty, Unit.FRACTION)} of launches found an idle device")
    for metric, activity in (
        ("host_sync_time", "in calls that wait for the device"),
        ("input_time", "in the data loader"),
        ("gc_time", "in Python's garbage collector"),
    ):
        time = figures.overall(metric)
        if time:
            clauses.append(f"{quantity(time, Unit.NS)} per step {activity}")
    if clauses and empty is None:
        clauses.append("no launches were recorded (a run on CPUs has none)")
    return f"Host: {'; '.join(clauses)}." if clauses else "No host activity was recorded that delays the device."


def memory(figures: Figures) -> str:
    """Describe peak memory, the fullest rank, and whether it fits."""
    peaks, allocated = figures.along("peak_memory", "rank"), figures.overall("taken_memory")
    if not peaks and allocated is not None:
        most = quantity(allocated, Unit.BYTES)
        return f"The fullest rank allocated {most} after the profiler started; earlier allocations are unknown."
    if not peaks:
        return "Memory was not recorded: use `profile_memory=True` or a memory snapshot."
    rank = max(peaks, key=lambda each_rank: peaks[each_rank])  # the first of equal ones, like the key figures
    peak, headroom = quantity(peaks[rank], Unit.BYTES), figures.at("memory_headroom", rank=rank)
    if headroom is None:
        return f"Rank {rank} has the highest peak memory: {peak}."
    left = quantity(headroom, Unit.FRACTION)
    return f"Memory fits: the peak is {peak} on rank {rank}, and {left} of its device memory was never reserved."


def critical_path(figures: Figures) -> str:
    """Describe the parts of the critical path."""
    shares_of_parts = figures.along("critical_path_fraction", "part")
    if not shares_of_parts:
        return "The critical path is unknown: no steps with device work were recorded."
    largest = sorted(shares_of_parts.items(), key=lambda item: (-item[1], str(item[0])))
    shares = ", ".join(
        f"{label_of(str(part))} {quantity(value, Unit.FRACTION)}" for part, value in largest if value >= _LEAST
    )
    return f"The critical path consists of {shares}."


def findings(ranked: Sequence[Finding], health: Iterable[HealthRow] = ()) -> str:
    """Describe the most important finding with its gain; without any, whether rules were skipped (`health`)."""
    return _worst(Verdict(cause=first_notable(ranked)), ranked, health)


def _worst(verdict: Verdict, ranked: Sequence[Finding], health: Iterable[HealthRow]) -> str:
    if verdict.cause is None:
        skipped = skipped_sentence(health)
        return f"{verdict.worst.removesuffix('.')} ({skipped})." if skipped else verdict.worst
    more = len(causes_of(ranked).causes) - 1
    return f"{verdict.worst} {counted(more, 'more cause')}." if more else verdict.worst


def summary(document: Document, figures: Figures) -> str:
    """Describe the step, where it goes, and the first finding."""
    step = figures.overall("job_step_time")
    lead = f"The job's median step takes {quantity(step, Unit.NS)}. " if step is not None else ""
    return f"{lead}{breakdown(figures)} {_worst(document.verdict, document.findings, document.health)}"


def largest(values: Mapping[Key, Number]) -> tuple[Key, Number]:
    """Return the largest value and its key; for equal values, the last key by name."""
    return max(values.items(), key=lambda item: (item[1], str(item[0])))
