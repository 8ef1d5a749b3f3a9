"""Options of a recording with their meanings; missing values are detected or omitted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, TypedDict, get_args, get_origin, get_type_hints


class Phase(StrEnum):
    """State of a step in the recording: outside of every window, warming up the profiler, or recorded."""

    IDLE = "idle"
    WARMUP = "warmup"
    RECORD = "record"


class Options(TypedDict, total=False):
    """Options of `usp_prof.record.session`, in addition to the folder, mesh, model and groups."""

    skip: int
    wait: int
    warmup: int
    active: int
    repeat: int
    level: str
    shapes: bool
    memory: bool
    stack: bool
    waits: bool
    coordinates: Mapping[str, int]
    stages: Sequence[int]
    name: str
    schedule: str
    micro_batches: int
    gradient_accumulation: int
    tokens_per_step: int
    sequence: int
    micro_batch_tokens: int
    recompute: str
    dtype: object
    zero_stage: int
    device: str
    peak_flops: float
    peak_source: str
    paced: bool
    faults: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    gather_timeout: float


@dataclass(frozen=True, slots=True)
class Window:
    """Recorded steps: after `skip`, `repeat` times `wait` idle, `warmup` discarded and `active` recorded steps."""

    skip: int = 0
    wait: int = 1
    warmup: int = 1
    active: int = 2
    repeat: int = 1

    def __post_init__(self) -> None:
        """Raise if the window records nothing."""
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(f"{field.name} counts steps and cannot be {getattr(self, field.name)}")
        if self.active < 1:
            raise ValueError("active must be at least 1, or nothing is ever recorded")

    @property
    def last_step(self) -> int:
        """Number of steps after which all windows are written; 0 if they repeat forever."""
        return self.skip + self.repeat * (self.wait + self.warmup + self.active)

    def place(self, step: int) -> tuple[Phase, int]:
        """Return the phase of a step, and the first step of the next phase (-1 if there is none)."""
        cycle = self.wait + self.warmup + self.active
        turn, place = divmod(step - self.skip, cycle)
        if step < self.skip:
            return Phase.IDLE, self.skip
        if self.repeat and turn >= self.repeat:
            return Phase.IDLE, -1
        start = self.skip + turn * cycle
        if place < self.wait:
            return Phase.IDLE, start + self.wait
        if place < self.wait + self.warmup:
            return Phase.WARMUP, start + self.wait + self.warmup
        return Phase.RECORD, start + cycle


_LAST_ZERO_STAGE = 3


class Level(StrEnum):
    """Scope of the recording: host and device, or device activity only with the recorder's own steps and marks."""

    FULL = "full"
    LIGHT = "light"


@dataclass(frozen=True, slots=True)
class Content:
    """Content of the recording: its level, operand shapes, allocations and (expensive) Python stacks.

    With `waits`, CUDA names which stream and host waits for which work; otherwise it is inferred from times.
    """

    level: str = Level.FULL
    shapes: bool = True
    memory: bool = True
    stack: bool = False
    waits: bool = False

    def __post_init__(self) -> None:
        """Raise for an unknown level."""
        if self.level not in set(Level):
            raise ValueError(f"level is {' or '.join(Level)}, not {self.level!r}")


@dataclass(frozen=True, slots=True)
class Declared:
    """Values declared by the training loop: manifest fields, and this rank's position in the mesh."""

    coordinates: Mapping[str, int] | None = None
    stages: Sequence[int] = ()
    name: str = ""
    schedule: str = ""
    micro_batches: int = 0
    gradient_accumulation: int = 0
    tokens_per_step: int = 0
    sequence: int = 0
    micro_batch_tokens: int = 0
    recompute: str = ""
    dtype: object = ""
    zero_stage: int = -1
    device: str = ""
    peak_flops: float = 0.0
    peak_source: str = ""
    paced: bool = False
    faults: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] | None = None
    gather_timeout: float = 60.0

    def __post_init__(self) -> None:
        """Raise for negative counts, sizes or times."""
        for field in fields(self):
            value, least = getattr(self, field.name), -1 if field.name == "zero_stage" else 0
            if isinstance(value, (int, float)) and value < least:
                raise ValueError(f"{field.name} cannot be below {least}, and it is {value}")
        if self.zero_stage > _LAST_ZERO_STAGE:
            raise ValueError(f"zero_stage is 0, 1, 2 or 3, not {self.zero_stage}")


@dataclass(frozen=True, slots=True)
class Settings:
    """All options, grouped by topic."""

    window: Window
    content: Content
    declared: Declared


def resolve(given: Mapping[str, Any]) -> Settings:
    """Group options by topic; raise for an unknown one, with the nearest known names, and for one of another type.

    `None` means that an option is not given.
    """
    types = get_type_hints(Options)
    for name in given:
        if name not in types:
            raise TypeError(f"a session has no option {name!r}{_suggestion(name, types)}")
    values = {name: _as_type(name, value, types[name]) for name, value in given.items() if value is not None}
    kinds: tuple[Any, ...] = (Window, Content, Declared)
    window, content, declared = (
        kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values}) for kind in kinds
    )
    return Settings(window, content, declared)


_EXPECTED: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a string"),
    bool: (bool, "True or False"),
    Mapping: (Mapping, "a mapping"),
    Sequence: (Sequence, "a list"),
}
"""What an option of each type accepts, and how an error describes it; NumPy's numbers are numbers too."""


def _as_type(name: str, value: Any, hint: Any) -> Any:  # noqa: ANN401 - an option's value and its type
    """Return an option's value in its declared type; raise `TypeError` if it has another one."""
    kind = get_origin(hint) or hint
    if kind not in _EXPECTED:
        return value
    accepted, description = _EXPECTED[kind]
    is_confused = (isinstance(value, bool) and kind is not bool) or (isinstance(value, str) and kind is not str)
    if is_confused or not isinstance(value, accepted) or (isinstance(value, float) and not math.isfinite(value)):
        raise TypeError(f"{name} is {description}, not {value!r}")
    if isinstance(value, Mapping):
        return {key: _as_type(f"{name}[{key!r}]", item, get_args(hint)[1]) for key, item in value.items()}
    if isinstance(value, Sequence) and kind is Sequence:
        return [_as_type(f"{name}[{place}]", item, get_args(hint)[0]) for place, item in enumerate(value)]
    return kind(value) if kind in {int, float} else value


def _suggestion(name: str, choices: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(choices), n=2)
    return f"; did you mean {' or '.join(close)}?" if close else ""
