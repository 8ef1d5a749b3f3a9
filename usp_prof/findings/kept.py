"""Were these findings found before? Then they lie beside the run's stored tables, and no rule is asked again.

They are kept under everything that they follow from: the traces' contents and the manifest (in the tables' own keys),
health, topology, selection and what was assumed, and every line of this package's code. Where a part of that cannot be
told by name (rules of somebody else's, memory snapshots), nothing is kept.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from usp_prof._version import fingerprint
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import (
    Finding,  # noqa: TC001 - msgspec reads what `Found` holds
    IdealStep,  # noqa: TC001
)
from usp_prof.model.health import HealthRow  # noqa: TC001

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet

FILE = "findings.msgpack"


@dataclass(frozen=True, slots=True)
class Found:
    """The findings, most important first, which rules could not be asked, and the step with all ranks alike."""

    findings: tuple[Finding, ...]
    skipped: tuple[HealthRow, ...]
    ideal: IdealStep | None = None
    """`None` of one rank alone, which is nobody's equal."""


def form(tables: TableSet, selection: Selection) -> str:
    """Name what the findings of these tables follow from beside the tables; empty where they are not to be kept."""
    if tables.kept is None or tables.assumptions.snapshots:
        return ""
    made_by = (fingerprint(), platform.python_version(), np.__version__)
    facts = (made_by, tables.assumptions, tables.topology, tables.health, selection)
    return f"findings-{blake2b(repr(facts).encode(), digest_size=16).hexdigest()}"


def write(found: Found, folder: Path) -> None:
    """Keep findings in a folder."""
    (folder / FILE).write_bytes(msgspec.msgpack.encode(found, enc_hook=_plain))


def read(folder: Path) -> Found:
    """Read findings back."""
    try:
        return msgspec.msgpack.decode((folder / FILE).read_bytes(), type=Found)
    except (OSError, msgspec.DecodeError) as error:
        raise UspProfError(f"{folder / FILE} holds no findings: {error}", hint="usp-prof cache clear") from None


def _plain(value: Any) -> object:  # noqa: ANN401 - whatever stands in evidence
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be kept in a finding")
