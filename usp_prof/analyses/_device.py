"""What can this run's device do at best, and who says so? The user, the manifest, the trace's device name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model import hardware
from usp_prof.model.health import HealthRow, Severity

if TYPE_CHECKING:
    from usp_prof.model.hardware import Device, Precision
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Roof:
    """The bounds that rates are held against. A rate that is not known is 0."""

    name: str
    device: Device | None
    stated: float
    source: str
    notes: tuple[HealthRow, ...] = ()

    def peak(self, kind: Precision | None) -> float:
        """Give the dense peak in FLOP per second for a precision."""
        if self.stated:
            return self.stated
        return self.device.peak(kind) if self.device is not None and kind is not None else 0.0

    @property
    def memory_rate(self) -> float:
        """The memory bandwidth in bytes per second."""
        return self.device.memory_rate if self.device is not None else 0.0


def roof(tables: TableSet) -> Roof:
    """Find the bounds of the run's device."""
    assumed, manifest = tables.assumptions, tables.manifest
    name = assumed.device or _recorded(tables)
    device = hardware.find(name)
    if assumed.peak_flops:
        return Roof(name, device, assumed.peak_flops, "given by hand")
    if device is None and manifest is not None and manifest.peak_flops:
        shared = max(1, manifest.processes_per_device)
        return Roof(name or "CPU", None, manifest.peak_flops / shared, manifest.peak_source or "manifest")
    if device is not None:
        return Roof(name, device, 0.0, device.source)
    detail = f"the peak of {name!r} is not known" if name else "the trace names no device"
    note = HealthRow(
        "no_device_peak", Severity.INFO, detail=f"{detail}: no MFU or efficiency; --device NAME gives one"
    )  # fmt: skip
    return Roof(name, None, 0.0, "", (note,))


def _recorded(tables: TableSet) -> str:
    names = sorted({str(name) for rank in tables.ranks for name in tables.columns("ranks", rank)["device"] if name})
    if names:
        return names[0]
    return tables.manifest.device if tables.manifest is not None else ""
