"""Options of a recording, each with its meaning; what is not given is found out or left out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Phase(StrEnum):
    """What a step is to the recording: outside of every window, preparing the profiler, or recorded."""

    IDLE = "idle"
    WARMUP = "warmup"
    RECORD = "record"


class Options(TypedDict, total=False):
    """Everything that `usp_prof.record.session` takes besides the folder, the mesh, the model and the groups."""

    skip: int
    wait: int
    warmup: int
    active: int
    repeat: int
    level: str
    shapes: bool
    memory: bool
    stack: bool
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
    """Which steps are recorded: after `skip`, `repeat` times `wait` idle, `warmup` thrown away, `active` recorded."""

    skip: int = 0
    wait: int = 1
    warmup: int = 1
    active: int = 2
    repeat: int = 1

    def __post_init__(self) -> None:
        """Refuse a window that records nothing."""
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(f"{field.name} counts steps and cannot be {getattr(self, field.name)}")
        if self.active < 1:
            raise ValueError("active must be at least 1, or nothing is ever recorded")

    @property
    def last_step(self) -> int:
        """The number of steps after which all windows are written; 0 when they repeat for ever."""
        return self.skip + self.repeat * (self.wait + self.warmup + self.active)

    def place(self, step: int) -> tuple[Phase, int]:
        """Return the phase that a step lies in, and the first step of the next phase (-1: none follows)."""
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


class Level(StrEnum):
    """How much is recorded: host and device, or device activity alone with the recorder's own steps and marks."""

    FULL = "full"
    LIGHT = "light"


@dataclass(frozen=True, slots=True)
class Content:
    """How much is recorded, and what each event carries: operand shapes, allocations, Python stacks (heavy)."""

    level: str = Level.FULL
    shapes: bool = True
    memory: bool = True
    stack: bool = False

    def __post_init__(self) -> None:
        """Refuse a level that there is not."""
        if self.level not in set(Level):
            raise ValueError(f"level is {' or '.join(Level)}, not {self.level!r}")


@dataclass(frozen=True, slots=True)
class Declared:
    """What the training loop says about itself; the manifest's fields, and this rank's place in the mesh."""

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
        """Refuse counts, sizes and times below zero."""
        for field in fields(self):
            value, least = getattr(self, field.name), -1 if field.name == "zero_stage" else 0
            if isinstance(value, (int, float)) and value < least:
                raise ValueError(f"{field.name} cannot be below {least}, and it is {value}")


@dataclass(frozen=True, slots=True)
class Settings:
    """All options, sorted by what they are about."""

    window: Window
    content: Content
    declared: Declared


def resolve(given: Mapping[str, Any]) -> Settings:
    """Sort options by what they are about; an unknown one is refused with the nearest known names."""
    kinds: tuple[Any, ...] = (Window, Content, Declared)
    known = {field.name for kind in kinds for field in fields(kind)}
    for name in given:
        if name not in known:
            raise TypeError(f"a session has no option {name!r}{_suggestion(name, known)}")
    window, content, declared = (
        kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given}) for kind in kinds
    )
    return Settings(window, content, declared)


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(known), n=2)
    return f"; did you mean {' or '.join(close)}?" if close else ""
