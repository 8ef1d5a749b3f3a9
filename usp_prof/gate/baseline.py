"""What does a run have to keep up with? One JSON file with the measured runs of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from usp_prof.gate.measured import Measured  # noqa: TC001 - msgspec reads the annotations
from usp_prof.model.errors import InputError

FORMAT = "usp-prof-baseline"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """Runs of one configuration, recorded one after another; several tell how much runs differ among themselves."""

    runs: tuple[Measured, ...]
    format: str = FORMAT
    version: int = VERSION


def save(baseline: Baseline, path: str | Path) -> None:
    """Write a baseline; the same runs give the same bytes."""
    text = msgspec.json.format(msgspec.json.encode(baseline, order="deterministic"), indent=1)
    try:
        Path(path).write_bytes(text + b"\n")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", hint="name another file with -o") from error


def load(path: str | Path) -> Baseline:
    """Read a baseline."""
    hint = "make one with: usp-prof baseline save RUN -o baseline.json"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read baseline {path}: {error.strerror}", hint=hint) from error
    try:
        baseline = msgspec.json.decode(data, type=Baseline)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no baseline: {error}", hint=hint) from error
    if baseline.format != FORMAT or not baseline.runs:
        raise InputError(f"{path} is no baseline", hint=hint)
    if baseline.version > VERSION:
        raise InputError(f"{path} was written by a later usp-prof", hint="update usp-prof, or save the baseline again")
    return baseline
