"""Device of a rank: its kind, its name and properties, and whether its work is missing in the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from usp_prof.inputs.trace_record import DEVICE_WORK
from usp_prof.model.hardware import find
from usp_prof.tables.events.frame import HOST_CALLS, MARKS, EventFrame
from usp_prof.tables.events.host_calls import LAUNCHING, kind_of

UNRECORDED = "unrecorded"
"""Kind of device whose work is not in the trace: host ops only launch that work."""


def device_kind(frame: EventFrame) -> str:
    """Return the kind of device, by its calls and names; cpu without a device."""
    codes, values = frame.codes("category")
    present = {values[code] for code in np.flatnonzero(np.bincount(codes)).tolist() if code < len(values)}
    if any(name.startswith("mtia") for name in present):
        return "mtia"
    if "xpu_runtime" in present:
        return "xpu"
    if not present & {"kernel", "gpu_memcpy", "gpu_memset"}:
        return UNRECORDED if lacks_device_work(frame) else "cpu"
    calls = frame.rows("cuda_runtime", "cuda_driver")
    if bool(frame.by_name(calls, lambda name: name.startswith("hip")).any()):
        return "rocm"
    return "rocm" if "amd" in device_name(frame).lower() else "cuda"


def lacks_device_work(frame: EventFrame) -> bool:
    """Return whether the rank used a device whose work is missing in the trace.

    Launches and copies prove it. Without runtime calls, the file must name a known device, and neither gloo
    communication nor paced compute may show that the work is in the host's ranges.
    """
    if len(frame.rows(*DEVICE_WORK)):
        return False
    calls = frame.rows(*HOST_CALLS)
    if len(calls):
        return bool(frame.by_name(calls, lambda name: kind_of(name) in LAUNCHING).any())
    host_work = frame.by_name(frame.rows(*MARKS), lambda name: name.startswith(("gloo:", "pace::")))
    return find(device_name(frame)) is not None and not bool(host_work.any())


def device_name(frame: EventFrame) -> str:
    """Return the name of the used device; empty if the file has none."""
    return str(device_properties(frame).get("name") or "")


def device_properties(frame: EventFrame) -> Mapping[str, Any]:
    """Return the properties of the used device, or of the first one."""
    properties = frame.metadata.get("deviceProperties")
    devices = [d for d in properties if isinstance(d, dict)] if isinstance(properties, list) else []
    used = frame.ints("device", frame.rows("kernel", "gpu_memcpy"))
    chosen = [d for d in devices if len(used) and d.get("id") == int(used[0])] or devices
    return chosen[0] if chosen else {}
