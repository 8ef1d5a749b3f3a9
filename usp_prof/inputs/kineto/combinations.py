"""Argument combinations: a code for each event, and each distinct combination once.

A program that does the same again and again says the same again and again: a few hundred combinations in millions of
events, of which reading each once is next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import texts_of
from usp_prof.inputs.kineto.argument_types import INPUT_FIELDS, LAUNCH_FIELDS, OpArguments, WorkArguments, json_keys
from usp_prof.inputs.kineto.growing import Codes, NarrowNumbers, Numbers, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec
    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints


_BETWEEN = b"\0"


class Combinations:
    """The distinct combinations of what stands behind some keys; the first is that nothing does."""

    __slots__ = ("_codes", "_keys")

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._codes = Codes({_BETWEEN * (len(keys) - 1): 0})

    def __len__(self) -> int:
        """Count them."""
        return len(self._codes)

    def codes(self, texts: Iterable[Sequence[msgspec.Raw | bytes]], rows: int) -> NDArray[np.int32]:
        """Give the codes of rows, by what stands behind each of the keys (nothing where the key is not there)."""
        return np.fromiter(map(self._codes.__getitem__, map(_BETWEEN.join, texts)), np.int32, rows)

    def texts(self) -> pa.StringArray:
        """Give them as JSON objects, in the order of their codes."""
        return texts_of([*map(self._object, self._codes)])

    def _object(self, combination: bytes) -> str:
        """Make a JSON object: a part is JSON as it stands, an empty one is left out."""
        parts = zip(self._keys, combination.decode().split(_BETWEEN.decode()), strict=True)
        return "{" + ",".join(f'"{key}":{text}' for key, text in parts if text) + "}"


# Launches of device work: grid, block and what Kineto adds, each distinct combination once for the whole file.
#
# Read as the events are read: to read them out of the arguments afterwards is to decode every kernel's a second time.


CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
LAUNCH_KEYS = json_keys(WorkArguments, LAUNCH_FIELDS)
_MANY = 1 << 16
"""Distinct combinations beyond which telling them apart only takes room: each piece of work is another then."""


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """What each piece of device work says of its launch, by event row."""

    code: NDArray[np.int32]
    """Place in `texts`."""
    texts: pa.StringArray
    """Distinct combinations as JSON objects with the keys `LAUNCH_KEYS`, as written; the first says nothing."""

    def kept(self, keep: Flags) -> Launches:
        """Leave rows out."""
        return Launches(self.code[keep], self.texts)


@dataclass(slots=True)
class GrowingLaunches:
    """The device work of the events read so far."""

    _combinations: Combinations | None = field(default_factory=lambda: Combinations(LAUNCH_KEYS))
    """`None` from when there are too many."""
    _code: Numbers[np.int32] = field(default_factory=lambda: Numbers(np.int32))
    _silent: int = 0
    """Rows at the end of which none is device work: a trace without any keeps no code for them."""

    def add(self, known: Flags, texts: Iterable[Sequence[msgspec.Raw | bytes]]) -> None:
        """Append a piece: for the known rows what stands behind each of `LAUNCH_KEYS`."""
        count = np.count_nonzero(known)
        if not count or self._combinations is None:
            self._silent += len(known)
            return
        self._speak()
        self._code.add(spread(self._combinations.codes(texts, int(count)), known, 0))
        if len(self._combinations) > _MANY:
            self._combinations, self._code = None, Numbers(np.int32)

    def whole(self) -> Launches | None:
        """Give the columns; `None` when there were too many combinations. Nothing can be added afterwards."""
        if self._combinations is None:
            return None
        self._speak()
        return Launches(self._code.array(), self._combinations.texts())

    def _speak(self) -> None:
        self._code.add(np.zeros(self._silent, np.int32))
        self._silent = 0


# Inputs of the host's ops: shapes, types and scalars, each distinct combination once for the whole file.
#
# A training step runs the same few hundred combinations again and again, so they are coded as they are read; reading
# them out of every op's arguments afterwards costs as much as all the rest of reading.


INPUT_KEYS = json_keys(OpArguments, INPUT_FIELDS)


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What each event says of its inputs, by event row."""

    code: NDArray[np.int32]
    """Place in `texts`."""
    texts: pa.StringArray
    """Distinct combinations as JSON objects with the keys `INPUT_KEYS`, as written; the first says nothing."""
    sequence: Ints | NDArray[np.int32]
    """Autograd's sequence number; -1 without one."""

    @classmethod
    def none(cls, rows: int) -> Inputs:
        """Give the inputs of events that say nothing of any."""
        return cls(np.zeros(rows, np.int32), texts_of(["{}"]), np.full(rows, -1, np.int64))

    def kept(self, keep: Flags) -> Inputs:
        """Leave rows out."""
        return Inputs(self.code[keep], self.texts, self.sequence[keep])


@dataclass(slots=True)
class GrowingInputs:
    """The inputs of the events read so far."""

    _combinations: Combinations = field(default_factory=lambda: Combinations(INPUT_KEYS))
    _code: Numbers[np.int32] = field(default_factory=lambda: Numbers(np.int32))
    _sequence: NarrowNumbers = field(default_factory=NarrowNumbers)

    def add(
        self,
        known: Flags,
        texts: Iterable[Sequence[msgspec.Raw | bytes]],
        sequence: Ints | None,
    ) -> None:
        """Append a piece: for the known rows what stands behind each of `INPUT_KEYS`, and its sequence number."""
        self._code.add(spread(self._combinations.codes(texts, int(np.count_nonzero(known))), known, 0))
        if sequence is None:
            self._sequence.add_absent(len(known))
        else:
            self._sequence.add(spread(sequence, known))

    def whole(self) -> Inputs:
        """Give the columns; nothing can be added afterwards."""
        return Inputs(self._code.array(), self._combinations.texts(), self._sequence.array())
