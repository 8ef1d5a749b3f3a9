"""Startable configurations: rows of a search that a trainer can run, and why it cannot run the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.rows import group_codes
from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.launch import refusal
from usp_prof.model.configuration import Columns, Configuration

_NOT_READ = frozenset({"micro_batch", "micro_batches", "gradient_bytes"})
"""Knobs that no trainer's rule reads."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Configurations that a trainer cannot run for one reason."""

    reason: str
    count: int


def startable(
    trainer: str, model: ModelEntry, columns: Columns, configuration: Callable[[int], Configuration]
) -> tuple[NDArray[np.bool_], tuple[Refused, ...]]:
    """Mark the rows that a trainer can run, and count the reasons for the others, the most frequent first.

    `configuration` returns the record of a row. Rows that differ only in knobs that no rule reads are checked once.
    """
    rows = len(columns.dp)
    knobs = [
        np.broadcast_to(getattr(columns, field.name), rows) for field in fields(Columns) if field.name not in _NOT_READ
    ]
    code = group_codes(*knobs)
    _, first = np.unique(code, return_index=True)
    reasons = [refusal(trainer, model, configuration(row)) for row in first.tolist()]
    can_run = np.array([not reason for reason in reasons], bool)
    counted: Counter[str] = Counter()
    for reason, count in zip(reasons, np.bincount(code).tolist(), strict=True):
        counted[reason] += count
    del counted[""]
    return can_run[code], tuple(Refused(*reason_and_count) for reason_and_count in counted.most_common())
