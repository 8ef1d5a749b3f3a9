"""Classification of events: a device event's kind of work and library, and the phase that a host moment lies in.

Kinds and libraries follow the rules in the TOML file beside this; phases (forward, backward, optimizer) follow
marks and autograd.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.contract import parse_mark
from usp_prof.tables.events.frame import HOST_OPS, MARKS, compact

if TYPE_CHECKING:
    import pyarrow as pa

    from usp_prof.columns.arrays import Ints
    from usp_prof.columns.lanes import Tracks
    from usp_prof.tables.events.frame import EventFrame


class WorkKind(StrEnum):
    """The kinds of device work."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    MEMSET = "memset"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: a name in which the pattern is found is work of this kind, by this library."""

    pattern: re.Pattern[str]
    kind: WorkKind
    library: str
    why: str


@cache
def rules() -> tuple[Rule, ...]:
    """Give the rules in order; the first that matches decides."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return tuple(
        Rule(re.compile(r["pattern"]), WorkKind(r["kind"]), r.get("library", ""), r["why"]) for r in data["rule"]
    )


@cache
def classify(name: str) -> tuple[WorkKind, str]:
    """Give the kind of a kernel and, of a communication kernel, its library."""
    for rule in rules():
        if rule.pattern.search(name):
            return rule.kind, rule.library
    return WorkKind.COMPUTE, ""


# Names of operations in kernels and in "Collective name", from the most telling part; the order matters.
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
    """Name the operation that a kernel, c10d op, mark or collective name tells of; "other" for none."""
    if _EXPERTS.search(text):
        return "all_to_all"
    for op, pattern in _COMPILED:
        if pattern.search(text):
            return op
    return "other"


_EXPERTS = re.compile(r"dispatch|combine", re.IGNORECASE)


KINDS = [kind.value for kind in WorkKind]


def kinds(frame: EventFrame, rows: Ints) -> tuple[Ints, pa.DictionaryArray]:
    """Say for device work which kind it is (place in `KINDS`) and whose library's."""
    category, names = frame.codes("category")
    named = frame.by_name(rows, lambda name: KINDS.index(classify(name)[0]), np.int64)
    fixed = {"gpu_memcpy": KINDS.index(WorkKind.MEMCPY), "gpu_memset": KINDS.index(WorkKind.MEMSET)}
    by_category = lookup([fixed.get(name, -1) for name in names], category[rows], missing=-1)
    kind = np.where(by_category >= 0, by_category, named)
    owner = frame.by_name(rows, lambda name: classify(name)[1], object)
    libraries = sorted({*owner.tolist(), ""})
    place = {name: number for number, name in enumerate(libraries)}
    library = np.fromiter(map(place.__getitem__, owner.tolist()), np.int64, len(owner))
    library = np.where(by_category >= 0, libraries.index(""), library)
    return kind, compact(library, libraries)


# Phases of host moments.

PHASES = ["", "forward", "backward", "optimizer"]
_OPTIMIZER = re.compile(r"Optimizer\.step#|\W*optimi[sz]er(?:[ _-]?step)?\W*\Z", re.IGNORECASE)
_FORWARD = re.compile(r"\W*forward\W*\Z|\w*\.forward\Z|Forward \d+\Z", re.IGNORECASE)
_BACKWARD = re.compile(r"\W*backward\W*\Z|Backward \d+\Z", re.IGNORECASE)
ENGINE = "autograd::engine::evaluate_function"
"""How the ops of the autograd engine begin, one a node that it evaluates."""


def phase_of_mark(name: str) -> int:
    """Say which phase an annotation stands for (place in the list of phases); 0 for none."""
    mark = parse_mark(name)
    if mark is not None:
        if mark.area == "pp":
            return {"F": 1, "B": 2, "I": 2, "W": 2}.get(mark.what, 0)
        return {"forward": 1, "backward": 2, "optimizer": 3}.get(mark.what, 0) if mark.area == "train" else 0
    for place, pattern in ((3, _OPTIMIZER), (2, _BACKWARD), (1, _FORWARD)):
        if pattern.match(name):
            return place
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class PhaseFinder:
    """Says for moments on threads in which phase they lie: inside the autograd engine, else by the marks around."""

    _marks: Tracks
    _meaning: Ints
    _engine: Tracks

    def at(self, track: Ints, start: Ints) -> Ints:
        """Give the phases of moments (places in `PHASES`)."""
        inner = self._marks.innermost(track, start)
        phase = np.where(inner >= 0, np.r_[self._meaning, 0][inner], 0)
        inside = self._engine.innermost(track, start) >= 0
        return np.where(inside & (phase != PHASES.index("optimizer")), PHASES.index("backward"), phase)


def phases_of(frame: EventFrame) -> PhaseFinder:
    """Gather what tells phases in a trace."""
    marks = frame.rows(*MARKS)
    meaning = frame.by_name(marks, phase_of_mark, np.int64)
    marks, meaning = marks[meaning > 0], meaning[meaning > 0]
    ops = frame.rows(*HOST_OPS)
    engine = ops[frame.by_name(ops, lambda name: name.startswith(ENGINE))]
    return PhaseFinder(frame.nested(marks), meaning, frame.nested(engine))


def phases(frame: EventFrame, track: Ints, start: Ints) -> Ints:
    """Say for moments on threads in which phase they lie (places in `PHASES`)."""
    return phases_of(frame).at(track, start)
