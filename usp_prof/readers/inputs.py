"""What went into the host's ops? Shapes, types and scalars, each distinct combination of them once for the whole file.

A training step runs the same few hundred combinations again and again, so they are coded as they are read; reading
them out of every op's arguments afterwards costs as much as all the rest of reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.readers._combinations import Combinations
from usp_prof.readers._numbers import NarrowNumbers, Numbers, spread
from usp_prof.readers.arrays import texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec
    import pyarrow as pa
    from numpy.typing import NDArray

KEYS = ("Input Dims", "Input type", "Concrete Inputs")


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What each event says of its inputs, by event row."""

    code: NDArray[np.int32]
    """Place in `texts`."""
    texts: pa.StringArray
    """Distinct combinations as JSON objects with the keys `KEYS`, as written; the first says nothing."""
    sequence: NDArray[np.int64] | NDArray[np.int32]
    """Autograd's sequence number; -1 without one."""

    @classmethod
    def none(cls, rows: int) -> Inputs:
        """Give the inputs of events that say nothing of any."""
        return cls(np.zeros(rows, np.int32), texts_of(["{}"]), np.full(rows, -1, np.int64))

    def kept(self, keep: NDArray[np.bool_]) -> Inputs:
        """Leave rows out."""
        return Inputs(self.code[keep], self.texts, self.sequence[keep])


@dataclass(slots=True)
class GrowingInputs:
    """The inputs of the events read so far."""

    _combinations: Combinations = field(default_factory=lambda: Combinations(KEYS))
    _code: Numbers[np.int32] = field(default_factory=lambda: Numbers(np.int32))
    _sequence: NarrowNumbers = field(default_factory=NarrowNumbers)

    def add(
        self,
        known: NDArray[np.bool_],
        texts: Iterable[Sequence[msgspec.Raw | bytes]],
        sequence: NDArray[np.int64] | None,
    ) -> None:
        """Append a piece: for the known rows what stands behind each of `KEYS`, and its sequence number if any."""
        self._code.add(spread(self._combinations.codes(texts, int(np.count_nonzero(known))), known, 0))
        if sequence is None:
            self._sequence.add_absent(len(known))
        else:
            self._sequence.add(spread(sequence, known))

    def whole(self) -> Inputs:
        """Give the columns; nothing can be added afterwards."""
        return Inputs(self._code.array(), self._combinations.texts(), self._sequence.array())
