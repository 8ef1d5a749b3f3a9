"""Wire format of an event: the fields that are read, as msgspec types, and the decoders for pieces of text."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from usp_prof.inputs.argument_decoder import ABSENT
from usp_prof.inputs.growing import plain_text

MISSING = -(1 << 63)
"""Marks an integer time that is missing."""
_UNHEARD_OF = "(phase)"
"""A key that no file has. The phase is the tag of the event types, not a field of them, so each type adds it as one."""
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
    """One event with times as floats, exact to 1 ns below 2**43 us; `baseTimeNanoseconds` keeps times that small."""

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
    """The fields of nearly all events, with times as floats; in the order of `Event`, whose phase is last."""

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
    """An event without a duration, such as the allocations that a memory profiler writes."""

    phase: str = msgspec.field(default="i", name=_UNHEARD_OF)


class WholeTimed(msgspec.Struct, gc=False):
    """The same fields with times in integer microseconds, which are always exact."""

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
    """An event without a duration."""

    phase: str = msgspec.field(default="i", name=_UNHEARD_OF)


class Metadata(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """An event that names a process or thread."""

    name: str = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    args: msgspec.Raw = ABSENT


class FlowBegin(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """The start of an arrow; its fields are ignored."""


class FlowStep(msgspec.Struct, gc=False, tag_field="ph", tag="t"):
    """A point on an arrow."""


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """The end of an arrow."""


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
"""For pieces with only common kinds of events, with times as floats and as integers.

Arrows are skipped, and no strings are created for known categories.
"""


_TODAY = {
    "operator": "cpu_op",
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "cuda_runtime",
    "driver": "cuda_driver",
    "pythonfunction": "python_function",
    "trace": "Trace",
    "user annotation": "user_annotation",
    "userannotation": "user_annotation",
    "user_annotation": "user_annotation",
}
"""Category names of 2021 and similar ones, lower case, with today's spelling."""


def category_text(value: object) -> str:
    """Convert a category to Kineto's spelling of today."""
    text = plain_text(value)
    return _TODAY.get(text.lower(), text) if text[:1].isupper() else text
