"""Argument combinations: one code per event, and each distinct combination stored once.

A program repeats the same work, so its arguments repeat too: a few hundred combinations in millions of events. Reading
each of them once takes almost no time.
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
    """The distinct combinations of the values of some keys; the first is the empty one."""

    __slots__ = ("_codes", "_keys")

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._codes = Codes({_BETWEEN * (len(keys) - 1): 0})

    def __len__(self) -> int:
        """Return the number of combinations."""
        return len(self._codes)

    def codes(self, texts: Iterable[Sequence[msgspec.Raw | bytes]], rows: int) -> NDArray[np.int32]:
        """Return the codes of rows by the value of each key (empty if the key is absent)."""
        return np.fromiter(map(self._codes.__getitem__, map(_BETWEEN.join, texts)), np.int32, rows)

    def texts(self) -> pa.StringArray:
        """Return the combinations as JSON objects, in the order of their codes."""
        return texts_of([*map(self._object, self._codes)])

    def _object(self, combination: bytes) -> str:
        """Build a JSON object: each part is JSON already, and empty parts are left out."""
        parts = zip(self._keys, combination.decode().split(_BETWEEN.decode()), strict=True)
        return "{" + ",".join(f'"{key}":{text}' for key, text in parts if text) + "}"


# Launches of device work: grid, block and what Kineto adds, each distinct combination once per file. They are read
# together with the events: reading them from the arguments later would decode every kernel's arguments twice.


CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
LAUNCH_KEYS = json_keys(WorkArguments, LAUNCH_FIELDS)
_MANY = 1 << 16
"""Maximum number of distinct combinations: beyond it nearly every launch is different, and coding only costs memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """The launch of each piece of device work, by event row."""

    code: NDArray[np.int32]
    """Index in `texts`."""
    texts: pa.StringArray
    """Distinct combinations as JSON objects with the keys `LAUNCH_KEYS`, as written; the first is empty."""

    def kept(self, keep: Flags) -> Launches:
        """Return only the rows marked in `keep`."""
        return Launches(self.code[keep], self.texts)


@dataclass(slots=True)
class GrowingLaunches:
    """The launches of the events read so far."""

    _combinations: Combinations | None = field(default_factory=lambda: Combinations(LAUNCH_KEYS))
    """`None` once there are too many."""
    _code: Numbers[np.int32] = field(default_factory=lambda: Numbers(np.int32))
    _silent: int = 0
    """Number of last rows without device work: a trace without any stores no codes for them."""

    def add(self, known: Flags, texts: Iterable[Sequence[msgspec.Raw | bytes]]) -> None:
        """Append a piece: for the known rows, the values of `LAUNCH_KEYS`."""
        count = np.count_nonzero(known)
        if not count or self._combinations is None:
            self._silent += len(known)
            return
        self._speak()
        self._code.add(spread(self._combinations.codes(texts, int(count)), known, 0))
        if len(self._combinations) > _MANY:
            self._combinations, self._code = None, Numbers(np.int32)

    def whole(self) -> Launches | None:
        """Return the columns, or None if there were too many combinations. Nothing can be added afterwards."""
        if self._combinations is None:
            return None
        self._speak()
        return Launches(self._code.array(), self._combinations.texts())

    def _speak(self) -> None:
        self._code.add(np.zeros(self._silent, np.int32))
        self._silent = 0


# Inputs of host ops: shapes, types and scalars, each distinct combination once per file. A training step repeats the
# same few hundred combinations, so they are coded while reading. Reading them from every op's arguments later would
# double the read time.


INPUT_KEYS = json_keys(OpArguments, INPUT_FIELDS)


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The inputs of each event, by event row."""

    code: NDArray[np.int32]
    """Index in `texts`."""
    texts: pa.StringArray
    """Distinct combinations as JSON objects with the keys `INPUT_KEYS`, as written; the first is empty."""
    sequence: Ints | NDArray[np.int32]
    """Autograd's sequence number; -1 if there is none."""

    @classmethod
    def none(cls, rows: int) -> Inputs:
        """Return the inputs of events that have none."""
        return cls(np.zeros(rows, np.int32), texts_of(["{}"]), np.full(rows, -1, np.int64))

    def kept(self, keep: Flags) -> Inputs:
        """Return only the rows marked in `keep`."""
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
        """Append a piece: for the known rows, the values of `INPUT_KEYS` and the sequence number."""
        self._code.add(spread(self._combinations.codes(texts, int(np.count_nonzero(known))), known, 0))
        if sequence is None:
            self._sequence.add_absent(len(known))
        else:
            self._sequence.add(spread(sequence, known))

    def whole(self) -> Inputs:
        """Return the columns; nothing can be added afterwards."""
        return Inputs(self._code.array(), self._combinations.texts(), self._sequence.array())
