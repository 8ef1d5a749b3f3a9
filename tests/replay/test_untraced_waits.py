"""Untraced waits: a silent host may wait for the device, but not if it does so only once by chance."""

from __future__ import annotations

import pytest
from tiny import Trace, table_set

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind

US = 1_000
STEP = 3_000 * US


def _silent_for(*idle_us: int) -> Trace:
    """Launch one kernel per step, then stay silent; the device is idle that long before the next launch.

    Steps are equally long, except those with an idle device for longer than a step.
    """
    trace, at = Trace(), 0
    for step, idle in enumerate((*idle_us, 0)):
        length = STEP + (idle * US if idle * US > STEP else 0)
        trace.step(step, at, length)
        trace.kernel("work", at + 20 * US, length - (10 + idle) * US, launch_at=at + 10 * US)
        at += length
    return trace


@pytest.mark.parametrize(
    ("idle_us", "waits"),
    [
        ((20, 20, 20), 3),
        ((20, 20, 3_500), 2),  # most of its kind
        ((20, 20, 900), 0),  # the third is as long, although its work has ended
        ((20, 900, 900), 0),  # once, by chance
        ((900, 900, 900), 0),
    ],
)
def test_a_silence_is_a_wait_if_most_of_its_kind_end_with_the_device(idle_us: tuple[int, ...], waits: int) -> None:
    edges = graph_of(table_set({0: _silent_for(*idle_us)})).edges
    assert int((edges.kind == EdgeKind.SYNC).sum()) == waits
