"""Event syncs: the work that a host waits for is found although the trace does not name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from injection import true_gain
from made_training import Delay, Job

from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet

DELAY = Delay("late_messages", 0, 6_000, only_in=3)


def sharded(folder: Path, delay: Delay | None, clock_error: float) -> TableSet:
    """Make a job whose hosts wait for the third last reduction, as sharded weights limit their memory."""
    job = Job("sharded", 263_122)
    job.clock_error = clock_error
    job.simulate(delay, 700_242)
    job.write(folder)
    return open_run(folder, cache_dir=folder / "cache").tables


@pytest.mark.parametrize("clock_error", [0.0, 15.0])
def test_hosts_wait_for_the_reduction_that_their_event_marks(clock_error: float, tmp_path: Path) -> None:
    graph = graph_of(sharded(tmp_path / "run", DELAY, clock_error))
    nodes, edges = graph.nodes, graph.edges
    of_syncs = np.flatnonzero((edges.kind == EdgeKind.SYNC) & (nodes.kind[edges.target] == NodeKind.RETURN))
    awaited = [graph.names[name] for name in nodes.name[edges.source[of_syncs]].tolist()]
    reductions = [name for name in awaited if "ReduceScatter" in name]
    returns = np.count_nonzero(nodes.kind == NodeKind.RETURN)
    drains = 4 * 4
    assert len(reductions) >= returns - 2 * drains  # the others are device syncs


@pytest.mark.parametrize("clock_error", [0.0, 15.0])
def test_the_repair_of_a_late_rank_ends_these_waits(clock_error: float, tmp_path: Path) -> None:
    usual, delayed = (sharded(tmp_path / name, delay, clock_error) for name, delay in (("u", None), ("d", DELAY)))
    repaired = predict(delayed, [Edit("rank_as_peers", "0")])
    truth = true_gain(unedited(usual), unedited(delayed))
    assert truth > 0.1
    assert repaired.gain_fraction == pytest.approx(truth, abs=min(repaired.error_fraction, 0.03))
