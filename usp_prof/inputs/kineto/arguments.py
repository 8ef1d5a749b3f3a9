"""Arguments of Kineto's events that are decoded while reading: links, and combinations, each stored once.

A program repeats the same work, so its arguments repeat too: a few hundred combinations in millions of events. Reading
each of them once takes almost no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import texts_of
from usp_prof.inputs.argument_decoder import ABSENT, json_keys
from usp_prof.inputs.growing import Codes, NarrowNumbers, Numbers, spread
from usp_prof.inputs.trace_record import Inputs, Launches


class Links(msgspec.Struct, gc=False):
    """The arguments that link events; -1 if absent."""

    external: int = msgspec.field(default=-1, name="External id")
    device: int = -1
    stream: int = -1
    correlation: int = -1
    external_2021: int = msgspec.field(default=-1, name="external id")


class WorkArguments(msgspec.Struct, gc=False):
    """The links of device work, and how it was launched (`LAUNCH_FIELDS`)."""

    external: int = msgspec.field(default=-1, name="External id")
    device: int = -1
    stream: int = -1
    correlation: int = -1
    grid: msgspec.Raw = ABSENT
    block: msgspec.Raw = ABSENT
    occupancy: msgspec.Raw = msgspec.field(default=ABSENT, name="est. achieved occupancy %")
    graph: msgspec.Raw = msgspec.field(default=ABSENT, name="graph id")
    bytes: msgspec.Raw = ABSENT
    size: msgspec.Raw = ABSENT
    external_2021: int = msgspec.field(default=-1, name="external id")


class OpArguments(msgspec.Struct, gc=False):
    """The links of an op, its sequence number and its inputs (`INPUT_FIELDS`)."""

    external: int = msgspec.field(default=-1, name="External id")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    concrete: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    device: int = -1
    stream: int = -1
    correlation: int = -1
    external_2021: int = msgspec.field(default=-1, name="external id")


LAUNCH_FIELDS = ("grid", "block", "occupancy", "graph", "bytes", "size")
"""Fields of `WorkArguments` that are stored as combinations, in the order of their JSON objects."""
INPUT_FIELDS = ("dims", "types", "concrete")
"""Fields of `OpArguments` that are stored as combinations, in the order of their JSON objects."""


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


# Launches of device work and inputs of host ops. They are read together with the events: later, the arguments of every
# kernel and op would have to be decoded again.


LAUNCH_KEYS = json_keys(WorkArguments, LAUNCH_FIELDS)
INPUT_KEYS = json_keys(OpArguments, INPUT_FIELDS)
_MANY = 1 << 16
"""Maximum number of distinct combinations: beyond it nearly every launch is different, and coding only costs memory."""


@dataclass(slots=True)
class GrowingLaunches:
    """The launches of the events read so far."""

    _combinations: Combinations | None = field(default_factory=lambda: Combinations(LAUNCH_KEYS))
    """`None` once there are too many."""
    _code: Numbers[np.int32] = field(default_factory=lambda: Numbers(np.int32))
    _absent_rows: int = 0
    """Number of last rows without device work, whose codes are not stored yet."""

    def add(self, has_values: Flags, texts: Iterable[Sequence[msgspec.Raw | bytes]]) -> None:
        """Append a piece: for the rows in `has_values`, the values of `LAUNCH_KEYS`."""
        count = np.count_nonzero(has_values)
        if not count or self._combinations is None:
            self._absent_rows += len(has_values)
            return
        self._add_absent()
        self._code.add(spread(self._combinations.codes(texts, int(count)), has_values, 0))
        if len(self._combinations) > _MANY:
            self._combinations, self._code = None, Numbers(np.int32)

    def columns(self) -> Launches | None:
        """Return the columns, or None if there were too many combinations. Nothing can be added afterwards."""
        if self._combinations is None:
            return None
        self._add_absent()
        return Launches(self._code.array(), self._combinations.texts())

    def _add_absent(self) -> None:
        self._code.add(np.zeros(self._absent_rows, np.int32))
        self._absent_rows = 0


@dataclass(slots=True)
class GrowingInputs:
    """The inputs of the events read so far."""

    _combinations: Combinations = field(default_factory=lambda: Combinations(INPUT_KEYS))
    _code: Numbers[np.int32] = field(default_factory=lambda: Numbers(np.int32))
    _sequence: NarrowNumbers = field(default_factory=NarrowNumbers)

    def add(
        self,
        has_values: Flags,
        texts: Iterable[Sequence[msgspec.Raw | bytes]],
        sequence: Ints | None,
    ) -> None:
        """Append a piece: for the rows in `has_values`, the values of `INPUT_KEYS` and the sequence number."""
        self._code.add(spread(self._combinations.codes(texts, int(np.count_nonzero(has_values))), has_values, 0))
        if sequence is None:
            self._sequence.add_absent(len(has_values))
        else:
            self._sequence.add(spread(sequence, has_values))

    def columns(self) -> Inputs:
        """Return the columns; nothing can be added afterwards."""
        return Inputs(self._code.array(), self._combinations.texts(), self._sequence.array())
