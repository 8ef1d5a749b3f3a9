"""How was device work launched? Grid, block and what Kineto adds, each distinct combination once for the whole file.

Read as the events are read: to read them out of the arguments afterwards is to decode every kernel's a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.readers._combinations import Combinations
from usp_prof.readers._numbers import Numbers, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec
    import pyarrow as pa
    from numpy.typing import NDArray

CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
KEYS = ("grid", "block", "est. achieved occupancy %", "graph id", "bytes", "size")
_MANY = 1 << 16
"""Distinct combinations beyond which telling them apart only takes room: each piece of work is another then."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """What each piece of device work says of its launch, by event row."""

    code: NDArray[np.int32]
    """Place in `texts`."""
    texts: pa.StringArray
    """Distinct combinations as JSON objects with the keys `KEYS`, as written; the first says nothing."""

    def kept(self, keep: NDArray[np.bool_]) -> DeviceWork:
        """Leave rows out."""
        return DeviceWork(self.code[keep], self.texts)


@dataclass(slots=True)
class GrowingDeviceWork:
    """The device work of the events read so far."""

    _combinations: Combinations | None = field(default_factory=lambda: Combinations(KEYS))
    """`None` from when there are too many."""
    _code: Numbers[np.int32] = field(default_factory=lambda: Numbers(np.int32))
    _silent: int = 0
    """Rows at the end of which none is device work: a trace without any keeps no code for them."""

    def add(self, known: NDArray[np.bool_], texts: Iterable[Sequence[msgspec.Raw | bytes]]) -> None:
        """Append a piece: for the known rows what stands behind each of `KEYS`."""
        count = np.count_nonzero(known)
        if not count or self._combinations is None:
            self._silent += len(known)
            return
        self._speak()
        self._code.add(spread(self._combinations.codes(texts, int(count)), known, 0))
        if len(self._combinations) > _MANY:
            self._combinations, self._code = None, Numbers(np.int32)

    def whole(self) -> DeviceWork | None:
        """Give the columns; `None` when there were too many combinations. Nothing can be added afterwards."""
        if self._combinations is None:
            return None
        self._speak()
        return DeviceWork(self._code.array(), self._combinations.texts())

    def _speak(self) -> None:
        self._code.add(np.zeros(self._silent, np.int32))
        self._silent = 0
