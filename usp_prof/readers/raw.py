"""What does the reader hand to the builders of tables? One rank's file as columns, with what was wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from usp_prof.model.health import HealthRow
    from usp_prof.readers.device_work import DeviceWork
    from usp_prof.readers.inputs import Inputs


@dataclass(frozen=True, slots=True)
class RawTrace:
    """One trace file: its events and threads as tables, and the top-level fields beside the events."""

    events: pa.Table
    """By the schema of `readers.events`, integers as narrow as they fit (`widened` gives them as the schema has them)
    and without the rank; times are absolute (`baseTimeNanoseconds` + ts)."""

    inputs: Inputs
    """What went into the ops among the events, read on the way."""

    threads: pa.Table
    """By the schema of `readers.threads`."""

    metadata: Mapping[str, Any]
    """Every top-level field of the file but the events, as JSON gives them."""

    health: tuple[HealthRow, ...]
    file: str
    json_bytes: int
    """Size of the uncompressed JSON."""

    work: DeviceWork | None = None
    """How the device work among the events was launched, read on the way; `None` where only the arguments tell."""
