"""Host calls: the kind of a runtime or driver call by its name, and the kinds of device work that a call promises."""

from __future__ import annotations

import re

CALL_KINDS = ("launch", "graph_launch", "memcpy", "memset", "sync", "event", "malloc", "other")
LOST_COMMUNICATION, LOST_COPY, LOST_COMPUTE = "communication", "memcpy", "compute"
LOST_KINDS = ("", LOST_COMMUNICATION, LOST_COPY, LOST_COMPUTE)
"""Kinds of device work that a call promised and the trace lacks; empty for a call that lacks none."""
LAUNCHING = ("launch", "graph_launch", "memcpy", "memset")
"""Kinds of calls that put work on the device."""
_PATTERNS = (
    ("sync", r"Synchronize|StreamWaitValue"),
    ("graph_launch", r"GraphLaunch"),
    ("event", r"Event|StreamWaitEvent"),
    ("memcpy", r"Memcpy|MemcpyWithStream|Copy"),
    ("memset", r"Memset"),
    ("malloc", r"Malloc|MemAlloc|HostAlloc|cudaFree|MemFree|hipFree|MemMap|MemCreate"),
    ("launch", r"Launch"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)
# A plain copy returns when it is done; an Async copy does not. Freeing device memory waits for the device too.
BLOCKING = re.compile(
    r"(Stream|Device|Event|Ctx)Synchronize|Memcpy(?!.*(Async|Batch|Peer))|hipMemcpyWithStream|^(cuda|hip)Free$"
)


def kind_of(name: str) -> str:
    """Return the kind of a runtime or driver call, by its name."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), "other")
