"""Classification of events: kind and library of device work, and the phase of moments on the host.

Kinds and libraries follow the rules in the TOML file of this folder; phases (forward, backward, optimizer) follow marks
and autograd.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import array_of, numbers_of, texts_of
from usp_prof.columns.rows import distinct, lookup, numbered
from usp_prof.contract import parse_mark
from usp_prof.tables.events.frame import HOST_OPS, MARKS, EventFrame, compact


class WorkKind(StrEnum):
    """The kinds of device work."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    MEMSET = "memset"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: a name that matches the pattern is work of this kind, by this library."""

    pattern: re.Pattern[str]
    kind: WorkKind
    library: str
    why: str


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules in order; the first match decides."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return tuple(
        Rule(re.compile(r["pattern"]), WorkKind(r["kind"]), r.get("library", ""), r["why"]) for r in data["rule"]
    )


_MANY = 500
"""Number of names above which Arrow's engine (RE2) is faster, although its patterns take 10 ms to compile.

100,000 names of 400 letters take 2 s there, and 52 s one by one.
"""


def classify(names: Sequence[str]) -> list[tuple[WorkKind, str]]:
    """Return the kind of each kernel and, for communication kernels, the library."""
    if len(names) < _MANY:
        return [_classified(name) for name in names]
    rule_of_name = np.full(len(names), -1, np.int64)
    left, texts = np.arange(len(names)), texts_of(names)
    for place, rule in enumerate(rules()):
        is_found = numbers_of(pc.match_substring_regex(texts, rule.pattern.pattern))
        rule_of_name[left[is_found]] = place
        left, texts = left[~is_found], texts.filter(array_of(~is_found))
    results = [(rule.kind, rule.library) for rule in rules()] + [_OTHER]  # -1: no rule matches
    return [results[place] for place in rule_of_name.tolist()]


_OTHER = (WorkKind.COMPUTE, "")


@cache
def _classified(name: str) -> tuple[WorkKind, str]:
    return next(((rule.kind, rule.library) for rule in rules() if rule.pattern.search(name)), _OTHER)


# Names of operations in kernels and in "Collective name", most specific first; the order matters.
_OPERATIONS = (
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all|alltoall"),
    ("all_reduce", r"all_?reduce|cross_device_reduce|quick_?reduce|lamport"),
    ("broadcast", r"broad_?cast"),
    ("barrier", r"barrier"),
    ("send_recv", r"send_?recv|coalesced"),
    ("send", r"\bi?send\b|^i?send"),
    ("recv", r"\bi?recv|^i?recv"),
    ("scatter", r"scatter"),
    ("gather", r"gather"),
    ("reduce", r"reduce"),
)
_COMPILED = tuple((op, re.compile(pattern, re.IGNORECASE)) for op, pattern in _OPERATIONS)


@cache
def operation(text: str) -> str:
    """Return the operation of a kernel, c10d op, mark or collective name; "other" for none."""
    if _EXPERTS.search(text):
        return "all_to_all"
    for op, pattern in _COMPILED:
        if pattern.search(text):
            return op
    return "other"


_EXPERTS = re.compile(r"dispatch|combine", re.IGNORECASE)


KINDS = [kind.value for kind in WorkKind]


def kinds(frame: EventFrame, rows: Ints) -> tuple[Ints, pa.DictionaryArray]:
    """Return kind (index in `KINDS`) and library of device work."""
    category, names = frame.codes("category")
    codes, texts = frame.codes("name")
    used, name = numbered(codes.take(rows))
    results = classify([texts[code] for code in used.tolist()])
    kind_by_name = np.array([KINDS.index(kind) for kind, _ in results], np.int64)[name]
    fixed = {"gpu_memcpy": KINDS.index(WorkKind.MEMCPY), "gpu_memset": KINDS.index(WorkKind.MEMSET)}
    kind_by_category = lookup([fixed.get(name, -1) for name in names], category[rows], missing=-1)
    kind = np.where(kind_by_category >= 0, kind_by_category, kind_by_name)
    libraries = sorted({"", *(library for _, library in results)})
    library = np.array([libraries.index(library) for _, library in results], np.int64)[name]
    library = np.where(kind_by_category >= 0, libraries.index(""), library)
    return kind, compact(library, libraries)


# Phases of host moments.

PHASES = ["", "forward", "backward", "optimizer"]
_OPTIMIZER = re.compile(r"Optimizer\.step#|\W*optimi[sz]er(?:[ _-]?step)?\W*\Z", re.IGNORECASE)
_FORWARD = re.compile(r"\W*forward\W*\Z|\w*\.forward\Z|Forward \d+\Z", re.IGNORECASE)
_BACKWARD = re.compile(r"\W*backward\W*\Z|Backward \d+\Z", re.IGNORECASE)
ENGINE = "autograd::engine::evaluate_function"
"""Prefix of ops of the autograd engine, one per evaluated node."""


def phase_of_mark(name: str) -> int:
    """Return the phase of an annotation (index in the list of phases); 0 for none."""
    mark = parse_mark(name)
    if mark is not None:
        if mark.area == "pp":
            return {"F": 1, "B": 2, "I": 2, "W": 2}.get(mark.what, 0)
        return {"forward": 1, "backward": 2, "optimizer": 3}.get(mark.what, 0) if mark.area == "train" else 0
    for place, pattern in ((3, _OPTIMIZER), (2, _BACKWARD), (1, _FORWARD)):
        if pattern.match(name):
            return place
    return 0


def phase_finder(frame: EventFrame) -> Callable[[Ints, Ints], Ints]:
    """Return the function that looks up the phases of moments on threads (indexes in `PHASES`).

    A moment inside the autograd engine is backward; marks show the phase of all others.
    """
    marks = frame.rows(*MARKS)
    meaning = frame.by_name(marks, phase_of_mark, np.int64)
    marks, meaning = marks[meaning > 0], meaning[meaning > 0]
    ops = frame.rows(*HOST_OPS)
    engine = ops[frame.by_name(ops, lambda name: name.startswith(ENGINE))]
    nested_marks, nested_engine = frame.nested(marks), frame.nested(engine)

    def phases(track: Ints, start: Ints) -> Ints:
        inner = nested_marks.innermost(track, start)
        phase = np.where(inner >= 0, np.r_[meaning, 0][inner], 0)
        inside = nested_engine.innermost(track, start) >= 0
        return np.where(inside & (phase != PHASES.index("optimizer")), PHASES.index("backward"), phase)

    return phases


def after_backward(frame: EventFrame, track: Ints, start: Ints) -> Flags:
    """Return whether each moment on a thread is between a backward pass and the next forward pass or optimizer step.

    Trainers reduce their last gradients there. The forward pass has begun when autograd's sequence number grows: each
    recorded op gets the next number, and ops that are not recorded show the current one.
    """
    ops = frame.rows(*HOST_OPS)
    is_engine = frame.by_name(ops, lambda name: name.startswith(ENGINE))
    marks = frame.rows(*MARKS)
    updates = marks[frame.by_name(marks, phase_of_mark, np.int64) == PHASES.index("optimizer")]
    engine_end, update_end = np.sort(frame.end[ops[is_engine]]), np.sort(frame.end[updates])
    numbered_ops = ops[~is_engine & (frame.record.sequence[ops] >= 0)]
    is_after = np.zeros(len(start), dtype=bool)
    for thread in distinct(track[track >= 0]).tolist():
        of_thread = frame.in_order_of_time(numbered_ops[frame.track[numbered_ops] == thread])
        begin, sequence = frame.start[of_thread], frame.record.sequence[of_thread]
        # If the engine ran between two ops, the number may have grown before it ran.
        is_forward = (np.diff(sequence) > 0) & (_latest(engine_end, begin[1:]) <= begin[:-1])
        if is_forward.any():
            moments = np.flatnonzero(track == thread)
            ended = _latest(engine_end, start[moments])
            began = _latest(begin[1:][is_forward], start[moments])
            is_after[moments] = ended > np.maximum(began, _latest(update_end, start[moments]))
    return is_after


def _latest(times: Ints, moments: Ints) -> Ints:
    """Return the last of the sorted times at or before each moment; -1 for none."""
    latest: Ints = np.r_[-1, times][np.searchsorted(times, moments, side="right")]
    return latest
