"""What is a finding? A named pattern, its place, an edit of the run as plain data, and what the edit is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

Plain = str | int | float | bool | None
PlainMap = Mapping[str, Plain]
EMPTY: PlainMap = MappingProxyType({})


class Basis(StrEnum):
    """How a gain was got."""

    REPLAYED = "replayed"
    MODELLED = "modelled"
    BOUND = "bound"


class Level(StrEnum):
    """How much a finding matters."""

    NOTE = "note"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. Gains are fractions of the job's step; `error_fraction` is the gain's own uncertainty."""

    code: str
    title: str
    where: PlainMap
    evidence: PlainMap
    edit: str = ""
    gain_fraction: float = 0.0
    cumulative_gain_fraction: float = 0.0
    basis: Basis = Basis.BOUND
    error_fraction: float = 0.0
    level: Level = Level.WARNING
    advice: str = ""
    settings: PlainMap = field(default_factory=lambda: EMPTY)
