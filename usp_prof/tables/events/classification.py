"""Classification of device events: kind of work, and whose collective. The rules are in the TOML file beside this."""

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
from usp_prof.tables.events.frame import compact

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.tables.events.frame import EventFrame


class Work(StrEnum):
    """The kinds of device work."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    MEMSET = "memset"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: a name in which the pattern is found is work of this kind, by this library."""

    pattern: re.Pattern[str]
    kind: Work
    library: str
    why: str


@cache
def rules() -> tuple[Rule, ...]:
    """Give the rules in order; the first that matches decides."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return tuple(Rule(re.compile(r["pattern"]), Work(r["kind"]), r.get("library", ""), r["why"]) for r in data["rule"])


@cache
def classify(name: str) -> tuple[Work, str]:
    """Give the kind of a kernel and, of a communication kernel, its library."""
    for rule in rules():
        if rule.pattern.search(name):
            return rule.kind, rule.library
    return Work.COMPUTE, ""


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


KINDS = [kind.value for kind in Work]


def kinds(frame: EventFrame, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], pa.DictionaryArray]:
    """Say for device work which kind it is (place in `KINDS`) and whose library's."""
    category, names = frame.codes("category")
    named = frame.by_name(rows, lambda name: KINDS.index(classify(name)[0]), np.int64)
    fixed = {"gpu_memcpy": KINDS.index(Work.MEMCPY), "gpu_memset": KINDS.index(Work.MEMSET)}
    by_category = lookup([fixed.get(name, -1) for name in names], category[rows], missing=-1)
    kind = np.where(by_category >= 0, by_category, named)
    whose = frame.by_name(rows, lambda name: classify(name)[1], object)
    libraries = sorted({*whose.tolist(), ""})
    place = {name: number for number, name in enumerate(libraries)}
    library = np.fromiter(map(place.__getitem__, whose.tolist()), np.int64, len(whose))
    library = np.where(by_category >= 0, libraries.index(""), library)
    return kind, compact(library, libraries)
