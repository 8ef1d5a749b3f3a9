"""Arguments of Kineto's events that are decoded while reading: links, and combinations, each stored once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from usp_prof.columns.arrays import Flags
from usp_prof.columns.arrow import texts_of
from usp_prof.inputs.argument_decoder import ABSENT, DecodedArguments
from usp_prof.inputs.growing import Combinations
from usp_prof.inputs.trace_record import RepeatedArguments


class Links(msgspec.Struct, gc=False):
    """The arguments that link events; -1 if absent."""

    external: int = msgspec.field(default=-1, name="External id")
    device: int = -1
    stream: int = -1
    correlation: int = -1
    external_2021: int = msgspec.field(default=-1, name="external id")


class WorkArguments(msgspec.Struct, gc=False):
    """The links of device work, and how it was launched."""

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
    """The links of an op, its sequence number and its inputs."""

    external: int = msgspec.field(default=-1, name="External id")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    concrete: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    device: int = -1
    stream: int = -1
    correlation: int = -1
    external_2021: int = msgspec.field(default=-1, name="external id")


class GrowingArguments:
    """The values of some keys of the events read so far, as combinations.

    They are read together with the events: later, the arguments of every kernel and op would be decoded again.
    """

    def __init__(self, arguments: type[msgspec.Struct], fields: Sequence[str]) -> None:
        key_of = {field.name: field.encode_name for field in msgspec.structs.fields(arguments)}
        self.fields = fields
        self.keys = [key_of[name] for name in fields]
        self._combinations = Combinations(len(fields))

    def add(self, rows: Flags, decoded: DecodedArguments) -> None:
        """Append a piece with the decoded arguments of the marked rows."""
        self._combinations.add(rows, decoded.rows(self.fields))

    def columns(self) -> RepeatedArguments:
        """Return the columns; nothing can be added afterwards."""
        texts = [self._object(values) for values in self._combinations.distinct()]
        return RepeatedArguments(self._combinations.codes(), texts_of(texts))

    def _object(self, values: Sequence[bytes]) -> str:
        """Build a JSON object from values that are JSON already, without the absent ones."""
        parts = zip(self.keys, values, strict=True)
        return "{" + ",".join(f'"{key}":{text.decode()}' for key, text in parts if text) + "}"
