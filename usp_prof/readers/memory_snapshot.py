"""What does a memory snapshot of PyTorch's allocator hold? Segments and the trace of what was taken and given back.

`torch.cuda.memory._dump_snapshot` writes a pickle. It is read without running anything that it names: plain
containers, numbers and texts only.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_TAKES = {"alloc": 1, "free_completed": -1}


class _Plain(pickle.Unpickler):
    """Refuse every class and function: a snapshot needs none."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - never returns
        raise pickle.UnpicklingError(f"it names {module}.{name}")


@dataclass(frozen=True, slots=True, eq=False)
class MemorySnapshot:
    """One device at the moment of the snapshot, and its history: what each event took or gave back."""

    device: int
    reserved: int
    allocated: int
    largest_free: int
    segments: int
    out_of_memory: int
    time_us: Ints
    change: Ints

    @property
    def peak(self) -> int:
        """Most bytes in use within the history, which ends at the snapshot; what is in use now where there is none."""
        after = np.cumsum(self.change)
        before = self.allocated - (int(after[-1]) if len(after) else 0)
        return before + max(0, int(after.max(initial=0)))

    @property
    def fragmentation(self) -> float:
        """Reserved bytes that no tensor uses, over reserved."""
        return (self.reserved - self.allocated) / self.reserved if self.reserved else 0.0


def read_memory_snapshot(path: Path) -> tuple[MemorySnapshot, ...]:
    """Read a snapshot; one entry for each device that holds memory or has a history."""
    try:
        with path.open("rb") as file:
            data = _Plain(file).load()
        segments, traces = data["segments"], data.get("device_traces", [])
        devices = sorted({int(s["device"]) for s in segments} | {n for n, trace in enumerate(traces) if trace})
        return tuple(_of_device(device, segments, traces) for device in devices)
    except (
        OSError,
        pickle.UnpicklingError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
    ) as error:
        raise InputError(
            f"{path} is no memory snapshot: {error}", hint="torch.cuda.memory._dump_snapshot(FILE) writes one"
        ) from error


def _of_device(device: int, segments: list[dict[str, Any]], traces: list[list[dict[str, Any]]]) -> MemorySnapshot:
    own = [segment for segment in segments if int(segment["device"]) == device]
    free = [int(b["size"]) for s in own for b in s.get("blocks", []) if str(b["state"]) == "inactive"]
    history = traces[device] if device < len(traces) else []
    known = [event for event in history if event["action"] in _TAKES]
    return MemorySnapshot(
        device=device,
        reserved=sum(int(segment["total_size"]) for segment in own),
        allocated=sum(int(segment["allocated_size"]) for segment in own),
        largest_free=max(free, default=0),
        segments=len(own),
        out_of_memory=sum(1 for event in history if event["action"] == "oom"),
        time_us=np.array([int(event.get("time_us", -1)) for event in known], np.int64),
        change=np.array([_TAKES[event["action"]] * int(event["size"]) for event in known], np.int64),
    )
