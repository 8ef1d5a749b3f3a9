"""Quality of the graph: durations of one half of the steps, replayed on the waits of the other half.

The unedited replay is exact by construction, so it shows nothing about dependencies. Here each step gets another step's
durations and transfers: the replay must then give that other step's length.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_faults import run_of

from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import replay
from usp_prof.replay.step_times import step_times

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph

NOISY = {"noise": 0.15}


def with_other_steps(graph: Graph) -> Graph:
    """Assign each step the durations and transfers of the next one (the last: of the first), node by node."""
    nodes = graph.nodes
    duration, transfer = graph.duration.copy(), graph.transfer.copy()
    for lane in np.unique(nodes.lane).tolist():
        rows = np.flatnonzero((nodes.lane == lane) & (nodes.step >= 0))
        if not len(rows):
            continue
        steps = np.unique(nodes.step[rows])
        parts = [rows[nodes.step[rows] == step] for step in steps.tolist()]
        alike = len({len(part) for part in parts}) == 1
        for place, part in enumerate(parts if alike else ()):
            other = parts[(place + 1) % len(parts)]
            duration[part], transfer[part] = graph.duration[other], graph.transfer[other]
    return graph.with_changes(duration=duration, transfer=transfer)


@pytest.mark.parametrize("style", ["nccl", "gloo"])
@pytest.mark.parametrize("mesh", [{"dp": 4}, {"dp": 2, "pp": 2}, {"dp": 2, "tp": 2}])
def test_a_step_with_the_durations_of_another_takes_as_long(mesh: dict[str, int], style: str) -> None:
    side = {
        "mesh": mesh,
        "style": style,
        "speed": NOISY,
        "work": {"steps": 5, "micro_batches": 3},
        "shape": {"layers": 2},
    }
    tables = run_of(json.dumps(side)).tables
    graph = graph_of(tables)
    swapped = with_other_steps(graph)
    times = step_times(tables, swapped, replay(swapped))
    errors = []
    for rank in np.unique(times.rank).tolist():
        of_rank = times.rank == rank
        measured, replayed = times.measured_ns[of_rank], times.replayed_ns[of_rank]
        errors += np.abs(replayed[1:-2] / measured[2:-1] - 1).tolist()  # the last ends with its work
    spread = np.ptp(times.measured_ns[of_rank]) / times.measured_ns[of_rank].mean()
    assert spread > 0.01, "steps that are all alike would prove nothing"
    assert np.median(errors) <= 0.01
    assert max(errors) <= 0.03
