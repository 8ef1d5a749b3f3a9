"""Arguments of Kineto's events that are decoded while reading: one struct per kind of event."""

from __future__ import annotations

import msgspec

from usp_prof.inputs.argument_decoder import ABSENT


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
