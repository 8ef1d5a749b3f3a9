"""Peak of this machine in FLOP per second, measured once per machine if the hardware table does not have it.

The peak is the fastest of a few square matrix products in the training dtype, on all cores that the process may use.
Ranks on the same machine measure one after another, so the first measures without interference and the others reuse its
result. A result measured while other programs used the cores is too low: the next run measures again and keeps the
higher one.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from usp_prof.whole_files import one_writer, whole_file

_SIZES = (256, 512, 1024, 2048)
_SECONDS_PER_SIZE = 0.2
_UNDISTURBED_SHARE = 0.9
"""Minimum share of the cores' time; products get 0.99 on 2 idle cores, and 0.43 next to two busy processes."""
_FOLDER_VARIABLE = "USP_PROF_CACHE"


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP per second of a whole device and the source of the value; 0 if unknown."""

    flops: float = 0.0
    source: str = ""


def cpu_peak(dtype: torch.dtype = torch.float32, *, folder: Path | None = None) -> Peak:
    """Return this machine's peak for `dtype`, measured at the first call on this machine (about a second)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    name = str(dtype).removeprefix("torch.")
    source = f"measured: largest {name} matrix product on {cores} cores, torch {torch.__version__}"
    place = (folder or _cache_folder()) / f"peak-{platform.node()}-{name}-{cores}-{torch.__version__}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    with one_writer(place):
        flops, is_final = _read(place)
        if not is_final:
            measured, is_final = measure(dtype, cores)
            flops = max(flops, measured)
            with whole_file(place) as file:
                file.write(json.dumps({"flops": flops, "undisturbed": is_final}).encode())
    return Peak(flops, source)


def measure(dtype: torch.dtype, threads: int) -> tuple[float, bool]:
    """Measure square matrix products of a few sizes on `threads` threads.

    Return the best FLOP per second, and whether the threads had their cores to themselves.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with torch.no_grad():
            best = max(_rate(size, dtype) for size in _SIZES)
    finally:
        torch.set_num_threads(before)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall) / threads
    return best, share >= _UNDISTURBED_SHARE


def _rate(size: int, dtype: torch.dtype) -> float:
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    torch.mm(left, right)
    best = float("inf")
    end = time.perf_counter() + _SECONDS_PER_SIZE
    while True:
        start = time.perf_counter()
        torch.mm(left, right)
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return 2.0 * size**3 / best


def _read(place: Path) -> tuple[float, bool]:
    """Return the stored FLOP per second (0 if none are usable) and whether they were measured without interference."""
    try:
        stored = json.loads(place.read_text())
        flops, is_final = float(stored["flops"]), stored["undisturbed"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, False
    return (flops, is_final) if 0 < flops < math.inf else (0.0, False)


def _cache_folder() -> Path:
    given = os.environ.get(_FOLDER_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "usp-prof"
