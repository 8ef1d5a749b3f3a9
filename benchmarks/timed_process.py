"""Cost of a small program in a separate process: CPU time with its children, wall time, peak memory."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from read_bodies import Body

_FRAME = """
import json, os, resource, sys, time
path, cache = sys.argv[1:3]
{imports}
extra, seen = 0, []
def now():
    spent = os.times()
    return time.perf_counter(), sum(spent[:4]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def stop():
    seen.append(now())
began = now()
{body}
stop()
wall, cpu, peak = seen[0]
tick = 1 / os.sysconf("SC_CLK_TCK")  # less CPU time than a tick cannot be measured
print(json.dumps([max(cpu - began[1], tick), wall - began[0], peak, int(events), extra]))
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of one measurement."""

    cpu: float
    wall: float
    peak: float
    events: int
    extra: int = 0

    @classmethod
    def median(cls, each: Sequence[Figures]) -> Figures:
        """Return the median of every value."""
        return cls(
            median(one.cpu for one in each),
            median(one.wall for one in each),
            median(one.peak for one in each),
            each[0].events,
            each[0].extra,
        )

    def __str__(self) -> str:
        """Format the values as a line."""
        return f"{self.cpu:.2f} s CPU, {self.wall:.2f} s on the clock, peak {self.peak / 1e6:.0f} MB"


def measure(python: str, body: Body, path: str, cache: str) -> Figures:
    """Run one measurement."""
    script = _FRAME.format(imports=body.imports, body=body.code)
    done = subprocess.run([python, "-c", script, path, cache], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a measurement failed:\n{done.stderr[-2000:]}")
    return Figures(*json.loads(done.stdout.splitlines()[-1]))
