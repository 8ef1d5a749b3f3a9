"""Health: rows that say what was wrong with the input, or what cannot be known because of it.

Damage is data: each fault is a row, shown on every screen; only input that nothing can be made of raises. `CODES` says
what each code means and what to do about it (`usp-prof explain CODE`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Severity(StrEnum):
    """How bad a row of health is."""

    INFO = "info"
    ERROR = "error"
    DATA_LOSS = "data_loss"


@dataclass(frozen=True, slots=True, order=True)
class HealthRow:
    """One thing that was found wrong or missing: where, how often, and what it means for the figures."""

    code: str
    severity: Severity
    rank: int = -1
    count: int = 1
    detail: str = ""
    file: str = ""


def gathered(rows: Iterable[HealthRow]) -> tuple[HealthRow, ...]:
    """Sort rows, each once; what was found alike on several ranks becomes one row that names them."""
    alike: dict[tuple[str, Severity, str], list[HealthRow]] = {}
    for row in sorted(set(rows)):
        alike.setdefault((row.code, row.severity, row.detail), []).append(row)
    return tuple(sorted(_joined(found) for found in alike.values()))


def _joined(found: list[HealthRow]) -> HealthRow:
    ranks = sorted({row.rank for row in found if row.rank >= 0})
    if len(ranks) < 2:
        return found[0]
    detail = f"ranks {spans(ranks)}: {found[0].detail}"
    return replace(found[0], rank=-1, count=sum(row.count for row in found), detail=detail, file="")


def spans(numbers: Iterable[int]) -> str:
    """Write numbers shortly: 0-3, 7."""
    out: list[list[int]] = []
    for number in sorted(numbers):
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


HEALTH_CODES: dict[str, str] = {
    # the file
    "truncated": "The file ends early. All complete events are kept; record again for the rest.",
    "corrupt_packing": "Bytes inside gzip or Zstandard are wrong. Everything before the fault is kept.",
    "broken_events": "Places in the text are no JSON. The events around them are kept.",
    "broken_fields": "Fields beside the events are damaged. The complete ones are kept.",
    "unplaced_events": "Events have no usable time. They are left out.",
    "repaired_events": "Events hold NaN, wrong types or control characters. What is usable of them is kept.",
    "odd_values": "Values are outside of the ranges in docs/limits.md. They count as absent.",
    "invalid_utf8": "Bytes are no UTF-8. They are shown as U+FFFD.",
    "duplicate_events": "Events stand twice, alike in every field. They are kept once.",
    "missing_duration": "Events have no duration. They are kept as instants.",
    "negative_duration": "Events have a negative duration. They are kept as instants.",
    "unpaired_phases": "A begin has no end, or an end no begin. A begin stays, an end is left out.",
    "no_events": "The trace has no events.",
    "no_base_time": "The file has no baseTimeNanoseconds. Times count from the file's own zero.",
    "finer_than_ns": "Times are written finer than a nanosecond. They are rounded to 1 ns.",
    "skipped_file": "A file beside the traces is of no rank, or no trace. It was left out.",
    "broken_manifest": "The recorder's manifest cannot be read. The run is read without it.",
    "not_cached": "What was read could not be kept. The next command reads the traces anew.",
    "cache_damaged": "What was kept of a rank cannot be read. Its trace was read anew.",
    # the run
    "rank_unreadable": "A rank's trace cannot be read. The other ranks are.",
    "missing_ranks": "Ranks of the job have no trace here. Figures are of those that were read.",
    "ranks_left_out": "Ranks were left out by choice (--ranks). Figures are of the others alone.",
    "rank_unknown": "A file does not say which rank it is of. It got a free number.",
    "other_runs": "Another run lies in the same folder. Choose with --run NAME, or --run all.",
    "one_rank": "Only one rank was read. What others waited for is not known; record all ranks.",
    "mesh_unknown": "The parallel layout is not known. Use the recorder, or describe the process groups.",
    "axis_unknown": "A process group belongs to no known axis. Its communication is shown as axis unknown.",
    "axis_inferred": "A group's axis follows from its ranks and calls, not from a description.",
    "hosts_unnamed": "The traces do not name their hosts. Each rank gets a clock of its own.",
    "exchanges_grouped": "Exchanges name no group. They are calls of all ranks, as a late rank held up all others.",
    "clocks_untied": "No collective ties the clocks of some ranks. They are not compared in time.",
    "collectives_on_host_only": "Collectives were recorded on the host alone. Their time on the device is not known.",
    # steps
    "no_steps": "Nothing marks steps. Call profiler.step(), or use the recorder.",
    "window_is_no_step": "Nothing tells the steps. Figures are of the whole window, none of a step. Mark steps.",
    "steps_inferred": "Steps are cut by a pattern that repeats, as nothing marks them.",
    "steps_by_calls": "Nothing marks steps. They are cut once for the job, from the calls that all ranks share.",
    "steps_unknown": "The steps of ranks are not known: nothing marks them and nothing repeats alike. Mark steps.",
    "steps_not_comparable": "Ranks' steps could not be cut alike. They are not compared with one another.",
    "ranks_not_compared": "Ranks are not compared, and nobody is blamed: their steps could not be cut alike.",
    "steps_by_host": "Device work has no launches in the trace. Steps are cut by the host's marks.",
    "steps_without_work": "Steps hold no device work. They are left out.",
    "steps_warm_up": "The first steps are longer than the others. They are warm-up.",
    "steps_odd": "Steps are far from the others. They are shown as odd.",
    "work_outside_steps": "Device work lies outside all steps. It counts in no step.",
    # kernels and launches
    "launched_before_window": "Device work was launched before recording began. It has no host call or op.",
    "unlinked_kernels": "Device work has no launch in the trace. Its host call is not known.",
    "overlapping_kernels": "Device work overlaps other work of its stream. Times are counted once.",
    "duplicate_correlation": "Several host calls have one correlation number. The nearest is taken.",
    "overrunning_durations": "Device work outlasts what ran after it on its stream. It is cut at the next start.",
    "no_device_activity": "The trace holds no device work, so none is shown. Record with activities=[CPU, CUDA].",
    "light_mode": "Recorded in light mode: no ops, shapes, host work or memory. Record a window with level='full'.",
    "no_shapes": "Ops have no shapes. Record with record_shapes=True.",
    "kernels_without_op": "Kernels belong to no op. Their efficiency is not known.",
    "bound_beaten": "Ops are faster than the device's peaks allow. Their efficiency is not shown.",
    "precision_unknown": "The arithmetic of products is not known. Their efficiency is not shown.",
    "no_precision_peak": "The device has no known peak in this precision. Give --device, or see the table of peaks.",
    "no_device_peak": "The device's peaks are not known. Give --device, such as H100-SXM.",
    "no_python_functions": "Python functions were not recorded. Record with with_stack=True.",
    # communication
    "calls_incomplete": "Members of calls are missing. Wait and transfer of these calls are not known.",
    "calls_without_size": "Calls do not say how many bytes they move. Their bandwidth is not known.",
    "parts_unmatched": "Ranks' parts of collectives could not be matched to calls.",
    "gloo_without_post": "gloo's work has no op that posted it. What its rank waited for is not known.",
    "sends_wait": "Sends wait for their receivers. That time is not the network's.",
    "axes_contend": "Several axes communicate at once. The time goes to the one that ends last.",
    "arrivals_tied": "Ranks arrive within the clocks' error of one another. Nobody is blamed.",
    "arrivals_unknown": "Who arrives last is not known: calls are unmatched or clocks untied.",
    "depends_on_one_rank": "Broadcasts and scatters carry what one rank alone has. Nobody is blamed as last.",
    "no_peers": "A rank has no peer that does the same work. Its slowdown is not known.",
    "bubble_in_pp": "One side of transfers is not known. Pipeline bubble may be in exposed pp.",
    "idle_cause_unknown": "Why the device was idle is not known: launches are missing.",
    # pipeline, experts, context parallelism, memory, MFU
    "pipeline_unmarked": "Pipeline actions are not marked. Use the recorder, or pp:: marks.",
    "pipeline_unnamed": "Which stage and micro-batch actions are of is not known. The bubble has no ideal.",
    "pipeline_inferred": "Pipeline actions follow from sends and receives, not from marks.",
    "pipeline_incomplete": "Pipeline ranks or actions are missing. The bubble is not whole.",
    "pipeline_irregular": "The order of actions is no known schedule.",
    "pipeline_clocks": "Clocks of pipeline ranks differ. The bubble over ranks is not known.",
    "no_cp_marks": "Context-parallel rounds are not marked. Their balance is not known.",
    "no_expert_loads": "Tokens per expert were not recorded. Use the recorder's moe mark.",
    "memory_since_recording": "On a CPU torch counts memory from when the profiler began, so that no peak is known.",
    "no_memory_events": "Allocations were not recorded. Record with profile_memory=True.",
    "impossible_figure": "A figure is outside its possible range. It is not shown; the row names the input to doubt.",
    "impossible_memory": "Memory figures are impossible, such as more allocated than reserved. They are not shown.",
    "snapshot_of_no_rank": "A memory snapshot belongs to no rank that was read.",
    "no_model": "The model is not known. Give the recorder a description, or --model config.json.",
    "model_description": "What of the model's description is not understood or was assumed.",
    "recompute_unknown": "Whether activations are recomputed was not recorded. HFU is not shown.",
    "no_tokens": "Tokens per step are not known. Give the recorder tokens_per_step.",
    "no_model_flop": "The model's floating-point operations are not known.",
    # findings and predictions
    "rules_skipped": "Rules could not look: their inputs are damaged or missing.",
    "edits_apart": "A finding's change cannot be made with those before it. It adds nothing to the gain of all.",
    "predicted": "This is a predicted run, not a recorded one.",
    "predicted_ranks": "The predicted run has other ranks than the recorded one.",
    "predicted_calls": "Calls of the predicted run are those of the recorded one, moved.",
    "rearranged": "The predicted run's pipeline has another order of actions.",
}
"""One or two sentences a code; a test walks the package for codes that are missing here."""
