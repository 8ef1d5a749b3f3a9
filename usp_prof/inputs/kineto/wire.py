"""Wire format of an event: the fields that are read, as msgspec types, and the decoders for pieces of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ABSENT = msgspec.Raw(b"")
MISSING = -(1 << 63)
"""Stands for a whole time that is not given."""
_UNHEARD_OF = "(phase)"
"""A key that no file has: the phase tells kinds of events apart and is none of their fields, so each kind brings it."""
Category = Literal[
    "",
    "Trace",
    "ac2g",
    "async_cpu_to_gpu",
    "collective_comm",
    "cpu_instant_event",
    "cpu_op",
    "cuda_driver",
    "cuda_event",
    "cuda_profiler_range",
    "cuda_runtime",
    "cuda_sync",
    "fwdbwd",
    "gpu_memcpy",
    "gpu_memset",
    "gpu_pm_counter",
    "gpu_user_annotation",
    "kernel",
    "mtia_ccp_events",
    "mtia_counters",
    "mtia_insight",
    "mtia_runtime",
    "mtia_workloadd",
    "overhead",
    "privateuse1_driver",
    "privateuse1_runtime",
    "python_function",
    "user_annotation",
    "xpu_runtime",
]
"""The categories that Kineto writes today."""


class Event(msgspec.Struct, gc=False):
    """One event with times as floats: exact to the nanosecond below 2**43 us, which `baseTimeNanoseconds` keeps."""

    cat: str = ""
    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: msgspec.Raw = ABSENT
    ph: str = ""


class ExactEvent(msgspec.Struct, gc=False):
    """One event with times as written, for traces whose times are too large for a float."""

    cat: str = ""
    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    args: msgspec.Raw = ABSENT
    ph: str = ""


class Timed(msgspec.Struct, gc=False):
    """What nearly all events are, with times as floats; the fields stand as in `Event`, of which the phase is last."""

    cat: Category = ""
    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: msgspec.Raw = ABSENT


class Complete(Timed, gc=False, tag_field="ph", tag="X"):
    """An event with a duration."""

    phase: str = msgspec.field(default="X", name=_UNHEARD_OF)


class Instant(Timed, gc=False, tag_field="ph", tag="i"):
    """An event without one, such as the allocations that a profiler of memory writes."""

    phase: str = msgspec.field(default="i", name=_UNHEARD_OF)


class WholeTimed(msgspec.Struct, gc=False):
    """The same with times in whole microseconds, which are exact however large they are."""

    cat: Category = ""
    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int = MISSING
    dur: int = MISSING
    args: msgspec.Raw = ABSENT


class WholeComplete(WholeTimed, gc=False, tag_field="ph", tag="X"):
    """An event with a duration."""

    phase: str = msgspec.field(default="X", name=_UNHEARD_OF)


class WholeInstant(WholeTimed, gc=False, tag_field="ph", tag="i"):
    """An event without one."""

    phase: str = msgspec.field(default="i", name=_UNHEARD_OF)


class Metadata(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """An event that names a process or thread."""

    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    args: msgspec.Raw = ABSENT


class FlowBegin(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """The begin of an arrow, of which nothing is kept."""


class FlowStep(msgspec.Struct, gc=False, tag_field="ph", tag="t"):
    """A point on an arrow."""


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """The end of an arrow."""


class Links(msgspec.Struct, gc=False):
    """The arguments that tie events together; -1 where one is absent.

    A field's name is how the code calls an argument, its `name=` the JSON key where that differs (`json_key`).
    """

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
    """The links of an op, its sequence number, and what went into it (`INPUT_FIELDS`)."""

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
"""Fields of `WorkArguments` that are kept as combinations, in the order of their JSON objects."""
INPUT_FIELDS = ("dims", "types", "concrete")
"""The same of `OpArguments`."""


def json_keys(arguments: type[msgspec.Struct], names: Iterable[str]) -> tuple[str, ...]:
    """Give the JSON keys of some fields."""
    key_of = {field.name: field.encode_name for field in msgspec.structs.fields(arguments)}
    return tuple(key_of[name] for name in names)


def by_field(read: Sequence[msgspec.Struct]) -> dict[str, tuple[Any, ...]]:
    """Put decoded arguments of one type side by side: the values of all rows by field name."""
    values = zip(*map(msgspec.structs.astuple, read), strict=True)
    return dict(zip(read[0].__struct_fields__, values, strict=True))


EVENTS = msgspec.json.Decoder(list[Event])
EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
ONE_EVENT = msgspec.json.Decoder(Event)
ONE_EXACT_EVENT = msgspec.json.Decoder(ExactEvent)
COMMON = (
    (msgspec.json.Decoder(list[Complete | Instant | Metadata | FlowBegin | FlowStep | FlowEnd]), (Complete, Instant)),
    (
        msgspec.json.Decoder(list[WholeComplete | WholeInstant | Metadata | FlowBegin | FlowStep | FlowEnd]),
        (WholeComplete, WholeInstant),
    ),
)
"""For pieces of what nearly all traces hold, with times as floats and as whole numbers: arrows are passed over, known
categories are not made texts of."""
LINKS = msgspec.json.Decoder(Links)
WORK_ARGUMENTS = msgspec.json.Decoder(WorkArguments)
OP_ARGUMENTS = msgspec.json.Decoder(OpArguments)
"""Their `decode_lines` takes values that follow each other, with or without lines between them."""
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
