"""What was wrong with the input, and what cannot be known because of it?

Damage is data: each fault is a row, shown on every screen; only input that nothing can be made of raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
