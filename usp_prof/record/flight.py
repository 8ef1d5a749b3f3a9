"""What did PyTorch's flight recorder note of each collective: group, sequence number, sizes, dtype, moment?"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from usp_prof.record import _torch_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One collective as it was called on this rank."""

    group: str
    description: str
    sequence: int
    name: str
    created_ns: int
    in_elements: int
    out_elements: int
    dtype: str


def recorded() -> list[FlightEntry] | None:
    """Read what the flight recorder holds now, in order of calls; `None` where this torch has none."""
    entries = _torch_private.flight_entries()
    return None if entries is None else read(entries)


def read(entries: Iterable[Mapping[str, Any]]) -> list[FlightEntry]:
    """Turn the recorder's entries into ours; point-to-point ones are left out, their sequence is another."""
    found = [_entry(entry) for entry in entries if not entry.get("is_p2p")]
    return sorted(found, key=lambda entry: entry.created_ns)


def elements(shapes: Sequence[Sequence[int]]) -> int:
    """Count the elements of several tensors."""
    return sum(prod(shape) for shape in shapes)


def _entry(entry: Mapping[str, Any]) -> FlightEntry:
    name, description = entry["process_group"]
    dtypes = [*entry.get("input_dtypes", ()), *entry.get("output_dtypes", ())]
    return FlightEntry(
        group=str(name),
        description=str(description),
        sequence=int(entry["collective_seq_id"]),
        name=str(entry["profiling_name"]),
        created_ns=int(entry["time_created_ns"]),
        in_elements=elements(entry.get("input_sizes", ())),
        out_elements=elements(entry.get("output_sizes", ())),
        dtype=str(dtypes[0]) if dtypes else "",
    )
