"""How does an event stand in the file? The fields we take of it, and the decoders for pieces of text."""

from __future__ import annotations

import math

import msgspec

ABSENT = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """One event with times as floats: exact to the nanosecond below 2**43 us, which `baseTimeNanoseconds` keeps."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: msgspec.Raw = ABSENT


class ExactEvent(msgspec.Struct, gc=False):
    """One event with times as written, for traces whose times are too large for a float."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    args: msgspec.Raw = ABSENT


class Arguments(msgspec.Struct, gc=False):
    """The arguments that tie events together, and those that say what went into an op."""

    external: int = msgspec.field(default=-1, name="External id")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    concrete: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    device: int = -1
    stream: int = -1
    correlation: int = -1
    external_2021: int = msgspec.field(default=-1, name="external id")


EVENTS = msgspec.json.Decoder(list[Event])
EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
ONE_EVENT = msgspec.json.Decoder(Event)
ONE_EXACT_EVENT = msgspec.json.Decoder(ExactEvent)
ARGUMENTS = msgspec.json.Decoder(Arguments)
"""Its `decode_lines` takes values that follow each other, with or without lines between them."""
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
