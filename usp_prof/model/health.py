"""Health rows: what was wrong with the input, or cannot be known because of it.

Damage is data: each fault is a row, shown on every screen. Only unusable input raises an error. `HEALTH_CODES` explains
each code and what to do about it (`usp-prof explain CODE`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from usp_prof.model.printable import spans

COUNTED_IN_BYTES = frozenset({"truncated", "corrupt_packing", "broken_fields"})
"""Codes whose count is a number of lost bytes, not of occurrences."""


class Severity(StrEnum):
    """Severity of a health row."""

    INFO = "info"
    ERROR = "error"
    DATA_LOSS = "data_loss"


@dataclass(frozen=True, slots=True, order=True)
class HealthRow:
    """One problem: its code, place, count and consequence for the figures."""

    code: str
    severity: Severity
    rank: int = -1
    count: int = 1
    detail: str = ""
    file: str = ""


def gathered(rows: Iterable[HealthRow]) -> tuple[HealthRow, ...]:
    """Sort and deduplicate rows; the same problem on several ranks becomes one row that names them."""
    rows_of_kind: dict[tuple[str, Severity, str], list[HealthRow]] = {}
    for row in sorted(set(rows)):
        rows_of_kind.setdefault((row.code, row.severity, row.detail), []).append(row)
    return tuple(sorted(_combined(same_rows) for same_rows in rows_of_kind.values()))


def _combined(same_rows: list[HealthRow]) -> HealthRow:
    """Combine rows that differ only in rank, count and file."""
    first = same_rows[0]
    ranks = sorted({row.rank for row in same_rows if row.rank >= 0})
    if len(ranks) < 2:
        return first
    count = sum(row.count for row in same_rows)
    return replace(first, rank=-1, count=count, detail=f"ranks {spans(ranks)}: {first.detail}", file="")


HEALTH_CODES: dict[str, str] = {
    # files
    "merged_trace": "The file holds several ranks. Each rank is read from its own processes.",
    "not_in_format": "The format of the trace does not record some facts. Figures that need them are not shown.",
    "truncated": "The file ends early. Complete events are kept; record again to get the rest.",
    "corrupt_packing": "The gzip or Zstandard data is damaged. Everything before the damage is kept.",
    "broken_events": "Parts of the file are not valid JSON. The events around them are kept.",
    "broken_fields": "Fields next to the events are damaged. Complete fields are kept.",
    "unplaced_events": "Events have no usable time. They are left out.",
    "repaired_events": "Events contain NaN, wrong types or control characters. Usable fields are kept.",
    "odd_values": "Values are outside their valid ranges. They are treated as missing.",
    "invalid_utf8": "Bytes are not valid UTF-8. They are shown as U+FFFD.",
    "duplicate_events": "Events appear twice with equal fields. Each is kept once.",
    "missing_duration": "Events have no duration. They are kept as instants.",
    "negative_duration": "Events have a negative duration. They are kept as instants.",
    "events_without_phase": "Events have no phase (ph), or one unknown to Chrome's format. They are not counted.",
    "unpaired_phases": "Begin and end events do not pair. A begin alone is kept, an end alone is left out.",
    "no_events": "The trace has no events. Check that the profiler ran while it was recorded.",
    "no_base_time": "The file has no baseTimeNanoseconds. Times count from the file's own zero.",
    "finer_than_ns": "Times are finer than a nanosecond. They are rounded to 1 ns.",
    "skipped_file": "A file is not a trace, or its rank is unknown. It is left out.",
    "broken_manifest": "The recorder's run.json cannot be read. The run is read without it.",
    "not_cached": "The cache could not be written. The next command reads the traces again.",
    "cache_damaged": "The cache of a rank is damaged. Its trace was read again.",
    # the run
    "rank_unreadable": "A rank's trace cannot be read. The other ranks are read.",
    "missing_ranks": "Ranks of the job have no trace here. Figures cover only the ranks that have one; add the others.",
    "ranks_left_out": "--ranks excluded ranks. Figures cover only the others; omit --ranks to read all.",
    "rank_unknown": "A file does not name its rank. It got a free number.",
    "other_runs": "The folder has more than one run. Choose with --run NAME, or --run all.",
    "one_rank": "Only one rank was read. Stragglers are unknown; record all ranks.",
    "mesh_unknown": "The parallel layout is unknown. Use the recorder, or name the process groups.",
    "axis_unknown": "A process group has no known axis. Its communication is shown as axis unknown.",
    "axis_inferred": "A group has no description. Its axis was inferred from its ranks and calls.",
    "hosts_unnamed": "The traces do not name their hosts. Shared clocks were inferred from their calls.",
    "exchanges_grouped": "Communication names no group. Its groups are the ranks that wait for each other.",
    "hosts_contradicted": "Ranks name one host but do not share a clock. Each has an offset from its collectives.",
    "clock_jump": "A clock jumped during the recording. Times before and after are not comparable; record again.",
    "clocks_untied": "No collective connects the clocks of some ranks. Their times are not compared.",
    "collectives_on_host_only": "Collectives were recorded on the host only. Their device time is unknown.",
    # steps
    "no_steps": "No step marks were found. Call profiler.step(), or use the recorder.",
    "window_is_no_step": "Steps are unknown; figures cover the whole window. Call profiler.step().",
    "steps_inferred": "No step marks were found. Steps are the periods of a repeating pattern.",
    "steps_by_calls": "No step marks were found. Steps are periods of the collectives that all ranks share.",
    "steps_unknown": "Ranks have no step marks and no repeating pattern. Call profiler.step().",
    "steps_not_comparable": "The steps of the ranks do not match. They are not compared; call profiler.step().",
    "ranks_not_compared": "The steps of the ranks do not match. No rank is reported as slow or late.",
    "steps_by_host": "The trace does not link device work to launches. Steps are cut at the host's marks.",
    "steps_without_work": "Steps have no device work. They are left out.",
    "steps_warm_up": "The first steps are longer than the others. They count as warm-up.",
    "steps_odd": "Steps are much longer or shorter than the others. They are marked as outliers.",
    "work_outside_steps": "Device work is outside all steps. It counts in no step.",
    # kernels and launches
    "launched_before_window": "Device work was launched before recording started. Its host call and op are unknown.",
    "unlinked_kernels": "Device work has no launch in the trace. Its host call is unknown.",
    "lost_device_work": "Launches and copies have no device work. Where it may have run is shown as not recorded.",
    "device_ends_early": "The record of the device ends before the host's launches. Record again; MFU is not shown.",
    "ops_incomplete": "Some launches have no op around them. Figures by op leave out their kernels.",
    "sequence_gaps": "Sequence numbers of collectives are missing. Communication figures are unknown.",
    "calls_missing": "A rank lacks collectives that other members of its groups posted. Its waits are unknown.",
    "identical_ranks": "Traces of several ranks are copies of one. Give each rank its own trace.",
    "steps_missing": "A rank lacks steps that other ranks have. Record all ranks over the same steps.",
    "figures_withheld": "Figures that missing device work or calls would falsify are not shown.",
    "overlapping_kernels": "Work of one stream overlaps. Each moment counts once.",
    "duplicate_correlation": "A runtime call and the driver call inside it share a number. The outer one counts.",
    "ambiguous_correlation": "Separate host calls share a correlation number. Their work is assigned to none of them.",
    "overrunning_durations": "Device work ends after the next work of its stream starts. It is cut at that start.",
    "no_device_activity": "The trace has no device work. Record with activities=[CPU, CUDA].",
    "light_mode": "Recorded in light mode: no ops, shapes, host work or memory. Record a window with level='full'.",
    "no_shapes": "Ops have no shapes. Record with record_shapes=True.",
    "kernels_without_op": "Kernels belong to no op. Their efficiency is unknown.",
    "bound_beaten": "Ops are faster than the device's peaks allow. Their efficiency is not shown.",
    "precision_unknown": "The precision of matrix products is unknown. Their efficiency is not shown.",
    "no_precision_peak": "The device has no known peak in this precision. Use --device, or see the table of peaks.",
    "no_device_peak": "The device's peaks are unknown. Use --device, such as H100-SXM.",
    "no_python_functions": "Python functions were not recorded. Record with with_stack=True.",
    # communication
    "calls_incomplete": "Participants of calls are missing. Wait and transfer of these calls are unknown.",
    "calls_without_size": "Calls have no size in bytes. Their bandwidth is unknown.",
    "parts_unmatched": "Ranks' parts of collectives could not be matched to calls.",
    "gloo_without_post": "Gloo work has no op that posted it. What its rank waited for is unknown.",
    "sends_wait": "Sends wait for their receivers. The wait counts as exposed pp.",
    "axes_contend": "Several axes communicate at once. The time counts for the axis that ends last.",
    "arrivals_tied": "Ranks arrive within the error of the clocks. No rank is reported as late.",
    "arrivals_unknown": "Calls are unmatched or clocks not connected. The last rank to arrive is unknown.",
    "rings_not_counted": "Lateness counts collectives. What a rank costs in sends and receives shows in its repair.",
    "depends_on_one_rank": "Broadcasts and scatters wait for one rank's data. No rank is reported as late.",
    "no_peers": "No other rank does the same work. The rank's compute slowdown is unknown.",
    "bubble_in_pp": "One side of pipeline transfers is unknown. Some bubble may be counted as exposed pp.",
    "idle_cause_unknown": "Launches are missing. The cause of idle time is unknown.",
    # pipeline, experts, context parallelism, memory, MFU
    "pipeline_unmarked": "Pipeline actions are not marked. Use the recorder, or pp:: marks.",
    "pipeline_unnamed": "Actions do not name stage and micro-batch. The ideal bubble is unknown; use the recorder.",
    "pipeline_inferred": "Pipeline actions are not marked. They were inferred from sends and receives.",
    "pipeline_incomplete": "Pipeline ranks or actions are missing. The bubble is incomplete; record all ranks.",
    "pipeline_irregular": "The order of actions is not that of a known schedule.",
    "pipeline_clocks": "Clocks of pipeline ranks differ. The bubble over ranks is unknown.",
    "no_cp_marks": "Context-parallel rounds are not marked. Their balance is unknown; use the recorder.",
    "no_expert_loads": "Tokens per expert were not recorded. Use the recorder's moe mark.",
    "memory_since_recording": "On a CPU, torch counts memory from the start of the profiler. The peak is unknown.",
    "no_memory_events": "Allocations were not recorded. Record with profile_memory=True.",
    "impossible_figure": "A figure is outside its possible range and is not shown. The row names the doubtful input.",
    "impossible_memory": "Memory figures are impossible, such as more allocated than reserved. They are not shown.",
    "snapshot_of_no_rank": "A memory snapshot belongs to none of the ranks. Use --memory-snapshot RANK=FILE.",
    "no_model": "The model is unknown. Pass it to the recorder, or use --model config.json.",
    "model_description": "Part of the model's description is unsupported or was assumed.",
    "recompute_unknown": "Whether activations are recomputed was not recorded. HFU is not shown.",
    "no_tokens": "Tokens per step are unknown. Pass tokens_per_step to the recorder, or use --tokens-per-step N.",
    "no_model_flop": "The model's FLOP count is unknown.",
    "paced_compute": "Timed waits replace compute. MFU and HFU are not shown.",
    "model_contradicted": "Shapes of the ops contradict the model or the tokens per step. MFU and HFU are not shown.",
    "peak_contradicted": "Matrix products run faster than the device's peak. MFU and HFU are not shown; set the peak.",
    "devices_contradicted": "Mesh and world size do not match. MFU and HFU are not shown; add the run's run.json.",
    # findings and predictions
    "rules_skipped": "Rules were skipped: their inputs are damaged or missing.",
    "findings_of_all_steps": "Only some steps were selected. Tables and figures cover these; findings cover all steps.",
    "steps_cut": "A rank's recording ended before its last step did, so figures per step do not include this step.",
    "ranks_represented": "The run is too large to replay completely. Findings come from replicas that represent all.",
    "recording_cost": "A recorded step is longer than the steps before the recording. Gains are shares of the latter.",
    "recording_cost_unknown": "The cost of recording is unknown; the error of gains includes it. Record with wait=5.",
    "unexplained_idle": "Devices are idle for reasons that the trace does not show. The error of gains includes it.",
    "replay_disagrees": "Measured lateness and replay disagree. No gain is stated, and no finding names the rank.",
    "device_clock_offset": "Timestamps of host and device contradict each other. Predictions correct them.",
    "edits_apart": "A finding's change cannot be combined with those above it. The combined gain excludes it.",
    "predicted": "This is a predicted run, not a recorded one.",
    "predicted_ranks": "The predicted run has other ranks than the recorded one.",
    "predicted_calls": "The predicted run has the calls of the recorded one, at new times.",
    "rearranged": "The predicted run has another order of pipeline actions.",
}
"""One or two sentences per code: what happened, the consequence, what to do. A test finds missing codes."""
