"""Outcomes: what became of each cell of a sweep, measured from the lines that the trainer prints, or why it failed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping  # noqa: TC003 - a field's type, which a file is held against
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any

from usp_prof.model.errors import InputError
from usp_prof.model.files import ERRORS, checked
from usp_prof.whole_files import whole_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SETTLING = 2
"""Steps left out before measuring: the first allocates, connects and compiles."""
FILE = "cell.json"


class Status(StrEnum):
    """What became of a cell."""

    OK = "ok"
    REFUSED = "refused"
    OUT_OF_MEMORY = "out of memory"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    FAILED = "failed"
    """A published table does not tell of what."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell that ended; figures are None where it failed. `reason` is what the trainer said."""

    name: str
    processes: int
    options: Mapping[str, str]
    status: Status
    reason: str = ""
    wall_seconds: float = 0.0
    step_seconds: float | None = None
    """The median step after the first `SETTLING`."""
    tokens_per_second: float | None = None
    mfu: float | None = None
    convention: str = ""
    memory_bytes: int | None = None
    steps: int = 0
    model: str = ""
    sequence: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


def measured(lines: Sequence[str]) -> dict[str, Any]:
    """Give the figures of a cell from the trainer's lines (`--metrics json`); empty where it made no step."""
    steps = [line for line in map(_json, lines) if line.get("seconds")]
    if not steps:
        return {}
    settled = steps[SETTLING:] or steps[1:] or steps
    seconds = median(line["seconds"] for line in settled)
    tokens = round(settled[-1]["tokens_per_second"] * settled[-1]["seconds"])
    middle = min(settled, key=lambda line: abs(line["seconds"] - seconds))
    shares = middle.get("mfu")
    named = re.search(r"^model: (\S+),", "\n".join(lines), re.MULTILINE)
    return {
        "step_seconds": seconds,
        "tokens_per_second": tokens / seconds,
        # MFU is of one step: the median step's own differs from it as its length does.
        "mfu": shares * middle["seconds"] / seconds if shares is not None else None,
        "convention": middle.get("mfu_convention", ""),
        "memory_bytes": max((line.get("memory_bytes") or 0 for line in steps), default=0) or None,
        "steps": len(steps),
        "model": named[1] if named else "",
        "extra": {"tokens_per_step": tokens},
    }


def _json(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def failure(status: int, errors: str) -> tuple[Status, str]:
    """Tell from an exit status and the error output why a cell failed."""
    if re.search(r"OutOfMemoryError|out of memory|not enough memory|can't allocate memory", errors, re.IGNORECASE):
        line = next(
            (line for line in errors.splitlines() if re.search(r"memory", line, re.IGNORECASE)), "out of memory"
        )
        return Status.OUT_OF_MEMORY, line.strip()
    refused = re.search(r"^error: (.+)$", errors, re.MULTILINE)
    if refused:
        return Status.REFUSED, refused[1]
    killed = status == -9 or re.search(r"exitcode\s*: -9\b", errors)
    if killed:
        return Status.OUT_OF_MEMORY, "killed by the system (signal 9), as where the host has no memory left"
    raised = re.findall(r"^(?:\[rank\d+\]: ?)?((?:[\w.]*\.)?\w*(?:Error|Exception): .+)$", errors, re.MULTILINE)
    own = [line for line in raised if "ChildFailedError" not in line]
    last = [line.strip() for line in errors.splitlines() if line.strip()]
    said = own[-1] if own else last[-1] if last else "it said nothing"
    return Status.CRASHED, f"exit status {status}: {said}"


def write(outcome: Outcome, folder: Path) -> None:
    """Keep an outcome in its cell's folder."""
    with whole_file(folder / FILE) as file:
        file.write((json.dumps(asdict(outcome), indent=1, sort_keys=True) + "\n").encode())


def read(folder: Path) -> Outcome | None:
    """Give a cell's outcome; None where it has not ended."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        outcome = checked(Outcome, json.loads(path.read_text(encoding="utf-8")))
        if outcome.name != folder.name:
            raise ValueError(f"it names the cell {outcome.name!r}")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint="check its rights") from error
    except ERRORS as error:
        raise InputError(f"{path} is no outcome of a cell: {error}", hint="remove it to run the cell again") from error
    return outcome
