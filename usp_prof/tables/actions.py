"""Table of actions: (stage, kind, micro-batch) of each pipeline action, from any marks in the trace."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from usp_prof import limits
from usp_prof.columns.rows import range_at
from usp_prof.contract import PIPELINE_KINDS, parse_mark
from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, integer, text
from usp_prof.tables.build import table
from usp_prof.tables.events.frame import MARKS, EventFrame
from usp_prof.tables.events.links import Links
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "actions",
    "Pipeline actions: forward, full backward, input-gradient and weight-gradient of one micro-batch on one stage.",
    (
        RANK,
        EVENT,
        text("kind", "F, B, I or W."),
        integer("stage", "Pipeline stage (virtual stages counted through)."),
        integer("micro_batch", "Micro-batch number."),
        START,
        DURATION,
        integer("device_start_ns", "First device activity launched inside; the start itself on CPU.", "ns"),
        integer("device_end_ns", "Last device activity launched inside ends; the end itself on CPU.", "ns"),
        text("source", "mark (ours), torch, megatron, deepspeed or inferred."),
        STEP,
    ),
)


class Action(NamedTuple):
    """A parsed annotation: kind of action, stage, micro-batch, and the grammar of the mark."""

    kind: str
    stage: int
    micro_batch: int
    source: str


# torch.distributed.pipelining: "Forward 3" (GPipe, micro-batch), "PP:1F0" (stage, kind, micro-batch).
_TORCH_RUNTIME = re.compile(r"PP:(?P<stage>\d+)(?P<kind>[FBIW])(?P<mb>\d+)\Z")
_TORCH_PLAIN = re.compile(r"(?P<kind>Forward|Backward) (?P<mb>\d+)\Z")
_MEGATRON = re.compile(r"(?:megatron[ .:])?(?P<kind>forward|backward)[-_]?step\Z", re.IGNORECASE)
_DEEPSPEED = re.compile(r"(?:PipelineEngine\.)?_exec_(?P<kind>forward|backward)_pass\Z")


def parse_action(name: str) -> Action | None:
    """Parse an annotation as an action; return `None` if it is not one."""
    mark = parse_mark(name)
    if mark is not None:
        if mark.area != "pp" or mark.what not in PIPELINE_KINDS:
            return None
        return Action(mark.what, mark.number("stage"), mark.number("mb"), "mark")
    for pattern, source in ((_TORCH_RUNTIME, "torch"), (_TORCH_PLAIN, "torch"), (_MEGATRON, "megatron"),
                            (_DEEPSPEED, "deepspeed")):  # fmt: skip
        match = pattern.match(name)
        if match:
            words = match.groupdict()
            stage = _within(words.get("stage"), limits.STAGE)
            micro_batch = _within(words.get("mb"), limits.MICRO_BATCHES)
            return Action(words["kind"][0].upper(), stage, micro_batch, source)
    return None


def build(frame: EventFrame, links: Links, steps: Steps) -> pa.Table:
    """Build the table, one row per action in order of start; of two mark grammars, keep the more informative."""
    rows = frame.rows(*MARKS)
    action_of_row = frame.by_name(rows, parse_action, object)
    is_action = np.array([action is not None for action in action_of_row.tolist()], bool)
    rows, action_of_row = rows[is_action], action_of_row[is_action]
    order = np.lexsort((rows, frame.start[rows]))
    rows, actions = rows[order], action_of_row[order].tolist()
    sources = {action.source for action in actions}
    best = next((source for source in ("mark", "torch", "megatron", "deepspeed") if source in sources), "")
    is_best = np.array([action.source == best for action in actions], dtype=bool)
    rows, actions = rows[is_best], [action for action in actions if action.source == best]
    first, last = _on_device(frame, links, rows)
    columns = {
        **frame.event_columns(rows),
        "kind": [action.kind for action in actions],
        "stage": np.array([action.stage for action in actions], np.int64),
        "micro_batch": _micro_batches(frame, rows, actions, steps),
        "device_start_ns": first,
        "device_end_ns": last,
        "source": best,
        "step": steps.of_host(frame.start[rows]),
    }
    return table(SCHEMA, columns, len(rows))


def _micro_batches(frame: EventFrame, rows: np.ndarray, actions: list[Action], steps: Steps) -> np.ndarray:
    """Count micro-batches within a step, by kind and stage, if annotations leave them out."""
    marked = np.array([action.micro_batch for action in actions], np.int64)
    if (marked >= 0).all():
        return marked
    step = steps.of_host(frame.start[rows]).tolist()
    count_by_key: Counter[tuple[int, str, int]] = Counter()
    counted = []
    for number, action in zip(step, actions, strict=True):
        key = (number, action.kind, action.stage)
        counted.append(count_by_key[key])
        count_by_key[key] += 1
    return np.where(marked >= 0, marked, np.array(counted, np.int64))


def _on_device(frame: EventFrame, links: Links, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of the device work launched inside each action, or of the action if it launched none."""
    start, end = frame.start[rows].copy(), frame.end[rows].copy()
    if not len(rows) or not len(links.work):
        return start, end
    linked = links.call >= 0
    work, call = links.work[linked], links.call[linked]
    # Actions of one rank are sequential. Backward launches from autograd's thread, so time decides, not the thread.
    action_of_work = range_at(start, end, frame.start[call])
    inside = action_of_work >= 0
    work, action_of_work = work[inside], action_of_work[inside]
    # Start of each action's first work and end of its last; the initial values mean none.
    first = np.full(len(rows), np.iinfo(np.int64).max)
    last = np.full(len(rows), np.iinfo(np.int64).min)
    np.minimum.at(first, action_of_work, frame.start[work])
    np.maximum.at(last, action_of_work, frame.end[work])
    has_work = last > np.iinfo(np.int64).min
    return np.where(has_work, first, start), np.where(has_work, last, end)


def _within(text: str | None, wanted: limits.Range) -> int:
    number = limits.parse_integer(text or "", wanted)
    return -1 if number is None else number
