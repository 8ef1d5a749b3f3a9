"""Private parts of torch that the recorder uses (2.11 to 2.13), each with a fallback.

All private names that torch may change without notice are used here. A missing name never raises: the caller gets
`None` or an empty result, and the manifest says what is missing.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def _always() -> bool:
    return True


profiler_enabled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", _always)
"""Whether anything records on this thread. Without it every mark is made, which costs microseconds but is correct."""


def naming_waits() -> Any:  # noqa: ANN401 - torch's own type
    """Return the profiler configuration with which CUDA names what streams and hosts wait for; `None` without it."""
    configuration = getattr(torch._C._profiler, "_ExperimentalConfig", None)  # noqa: SLF001
    try:
        return configuration(enable_cuda_sync_events=True) if configuration is not None else None
    except TypeError:
        return None


_PROFILE_KEY = "ProfilerStep"
"""Key under which `torch.profiler.profile` counts its steps, from its creation to the end of its `with` block."""


def profiler_enabled_elsewhere() -> bool:
    """Return whether a profiler records on any thread."""
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


_OURS: Any = object()
"""Replaces `True` in torch's flag while our profiler records; a profiler started later overwrites it with `True`."""


def claim_profiler() -> None:
    """Set our marker on the profiler that was just started."""
    setter = getattr(torch.autograd.profiler, "_set_is_profiler_enabled", None)
    if setter is not None:
        setter(_OURS)


def release_profiler() -> None:
    """Remove our marker from a profiler whose thread has ended."""
    setter = getattr(torch.autograd.profiler, "_set_is_profiler_enabled", None)
    if setter is not None and profiler_is_claimed():
        setter(False)  # noqa: FBT003 - torch's own signature


def profiler_is_claimed() -> bool:
    """Return whether the claimed profiler still exists on any thread, neither ended nor replaced by another."""
    return getattr(torch.autograd.profiler, "_is_profiler_enabled", _OURS) is _OURS


def profiler_is_ours() -> bool:
    """Return whether the claimed profiler still records on this thread."""
    return profiler_enabled() and profiler_is_claimed()


def profile_waits() -> bool:
    """Return whether the user has an open `torch.profiler.profile`: idle, warming up or recording."""
    if not forget_profile():
        return False
    torch.autograd.profiler.KinetoStepTracker.init_step_count(_PROFILE_KEY)
    return True


def forget_profile() -> bool:
    """Remove an open profile from torch's list, and return whether there was one."""
    tracker = getattr(torch.autograd.profiler, "KinetoStepTracker", None)
    return bool(tracker.erase_step_count(_PROFILE_KEY)) if tracker is not None else False


def collection_stopped() -> bool:
    """Return whether recording of device activity stopped early because its buffers were full."""
    return bool(getattr(torch.autograd, "_is_kineto_stopped", bool)())


def default_store() -> Any | None:  # noqa: ANN401 - dist.Store, whose stubs miss half of its methods
    """Return the key-value store of the default process group, which every rank can access without a collective."""
    getter = getattr(c10d, "_get_default_store", None)
    if getter is None or not dist.is_initialized():
        return None
    return getter()


def local_groups() -> list[dist.ProcessGroup]:
    """Return the process groups that this process belongs to, in order of creation."""
    world = getattr(c10d, "_world", None)
    group_map = getattr(world, "pg_map", {}) if world is not None else {}
    if group_map:
        return list(group_map)
    return [dist.group.WORLD] if dist.is_initialized() and dist.group.WORLD is not None else []


def flight_entries() -> list[Mapping[str, Any]] | None:
    """Return the flight recorder's collectives, or `None` if this version of torch has no flight recorder."""
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_fr_trace", None)  # noqa: SLF001
    if dump is None:
        return None
    include_collectives, include_stacks, only_active = True, False, False
    answer = pickle.loads(dump(include_collectives, include_stacks, only_active))  # noqa: S301 - made by this process
    entries = answer.get("entries", []) if isinstance(answer, dict) else []
    return list(entries)
