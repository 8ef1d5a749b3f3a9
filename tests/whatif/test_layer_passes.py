"""Layers of a pass: cut at the end of one layer's work, even if a layer is one long node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from usp_prof.replay.build import graph_of
from usp_prof.replay.node_work import FORWARD
from usp_prof.run import open_run
from usp_prof.whatif.edits.zero_messages import first_forwards, heads, passes_of

RUN = Path(__file__).parents[2] / "traces" / "recorded-zero3-prefetch"
LAYERS = 6


@pytest.mark.skipif(not RUN.is_dir(), reason="the recorded run is not here")
def test_each_layers_paced_forward_is_a_separate_piece(tmp_path: Path) -> None:
    tables = open_run(RUN, cache_dir=tmp_path).tables
    graph = graph_of(tables)
    for rank in tables.ranks:
        forwards = [layer_pass for layer_pass in passes_of(graph, tables, rank) if layer_pass.key[1] == FORWARD]
        assert len(first_forwards(forwards)) == len(forwards) == 2  # of two steps
        for layer_pass in forwards:
            begins = np.array([head for _, head in heads(graph, layer_pass.rows, LAYERS)])
            paces = [row for row in layer_pass.rows if graph.names[graph.nodes.name[row]] == "pace::fwd"]
            assert [layer for layer, _ in heads(graph, layer_pass.rows, LAYERS)] == list(range(LAYERS))
            assert np.searchsorted(begins, paces, side="right").tolist() == list(range(1, LAYERS + 1))
