"""Compute edits: a faster rank, faster activities by name, or a rank as its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import work_of
from usp_prof.replay.peers import slowness, slowness_by_step
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.host_times import of_others, with_usual_hosts

if TYPE_CHECKING:
    from usp_prof.replay.graph import Flags, Graph, Ints


def compute_faster(graph: Graph, request: Request) -> Graph:
    """Let compute take 1/value of its time; keys: rank, stage (of the pipeline), name (part of the activity's name)."""
    edit, factor = request.edit, request.positive()
    rows = graph.nodes.kind == NodeKind.COMPUTE
    if edit.place("rank"):
        rows &= graph.nodes.rank == int(edit.number("rank"))
    if edit.place("stage"):
        stage = np.append(work_of(request.tables).stage, np.full(graph.added, -1))
        rows &= stage == int(edit.number("stage"))
    if edit.place("name"):
        named = np.array([edit.place("name") in name for name in graph.names] + [False])
        rows &= named[graph.nodes.name]
    return graph.with_changes(duration=scaled(graph.duration, rows, factor))


def rank_as_peers(graph: Graph, request: Request) -> Graph:
    """Let a rank (several: 2+3, or `all` slower ones) do its work as its peers do in the median, step by step.

    Its compute takes as long as theirs, and so does all that its host does: thinking, loading, pauses and launches.
    """
    edit, found = request.edit, slowness(request.tables, graph)
    every = edit.value in ("all", "")
    wanted = [rank for rank, each in found.items() if each.ratio > 1] if every else _ranks(edit)
    for rank in wanted:
        if rank not in found:
            raise UsageError(f"rank {rank} has no peers to be compared with", hint=f"one of {sorted(found)}")
    nodes, ratio = graph.nodes, np.ones(len(graph.nodes))
    for rank in wanted:
        compute = nodes.of_rank(rank)
        compute = compute[nodes.kind[compute] == NodeKind.COMPUTE]
        ratio[compute] = found[rank].ratio
        for step, in_step in slowness_by_step(found[rank], graph).items():
            ratio[compute[nodes.step[compute] == step]] = in_step
    changed = graph.with_changes(duration=np.rint(graph.duration / ratio).astype(np.int64))
    return with_usual_hosts(changed, request.tables, wanted, of_others)


def _ranks(edit: Edit) -> list[int]:
    return [int(Edit(edit.name, word).number()) for word in edit.value.split("+")]


def scaled(values: Ints, rows: Flags, factor: float) -> Ints:
    """Divide some values by a factor."""
    return np.where(rows, np.rint(values / factor).astype(np.int64), values)


EDITS = (
    EditKind("compute_faster", "compute_faster=1.5,rank=3", ("rank", "stage", "name"), compute_faster),
    EditKind("rank_as_peers", "rank_as_peers=7", (), rank_as_peers),
)
