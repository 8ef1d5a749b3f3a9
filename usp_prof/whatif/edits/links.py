"""Network edits: more bandwidth, less latency, another algorithm of collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import unknown_name
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.network import Algorithm, hops, network_of, talk, volume

if TYPE_CHECKING:
    from usp_prof.replay.graph import Flags, Graph

DOUBT = 1.5
"""A latency may be so many times what the line through the run's messages says."""
GUESSED = 3.0
"""Where all messages are large and of one size, it may be so many times what is usual."""


def bandwidth(graph: Graph, request: Request) -> Graph:
    """Let bytes move value times as fast, latencies as they are; keys: axis, op."""
    latency = _latency(graph, request)
    return _with_transfer(graph, talk(graph, request), latency + (graph.transfer - latency) / request.positive())


def latency(graph: Graph, request: Request) -> Graph:
    """Let latencies be 1/value of what they are, bytes as fast as before; keys: axis, op."""
    found = network_of(request.tables)
    own = found.latency(graph)
    if request.cautious:
        own = np.minimum(own * np.where(found.spread(graph, found.guessed, 0.0) > 0, GUESSED, DOUBT), graph.transfer)
    return _with_transfer(graph, talk(graph, request), graph.transfer - own + own / request.positive())


def algorithm(graph: Graph, request: Request) -> Graph:
    """Let collectives run as ring, tree or direct; keys: axis, op, now (what they run as: ring unless told)."""
    wanted, now = (_named(word) for word in (request.edit.value, request.edit.place("now", Algorithm.RING)))
    found = network_of(request.tables)
    fewer, less = [], []
    for code, size in zip(found.op_code.tolist(), found.size.tolist(), strict=True):
        op = found.op[code]
        counted = size > 1
        fewer.append(hops(op, size, wanted) / hops(op, size, now) if counted else 1.0)
        less.append(volume(op, size, wanted) / volume(op, size, now) if counted else 1.0)
    own = _latency(graph, request)
    changed = own * found.spread(graph, fewer, 1.0)
    changed += (graph.transfer - own) * found.spread(graph, less, 1.0)
    return _with_transfer(graph, talk(graph, request), changed)


def _named(word: str) -> Algorithm:
    if word not in list(Algorithm):
        raise unknown_name("algorithm", word, list(Algorithm))
    return Algorithm(word)


def _latency(graph: Graph, request: Request) -> np.ndarray:
    """Give each node's latency; cautiously more of the transfer is latency."""
    own = network_of(request.tables).latency(graph)
    return np.asarray(np.minimum(own * (DOUBT if request.cautious else 1.0), np.maximum(graph.transfer, 0)))


def _with_transfer(graph: Graph, rows: Flags, transfer: np.ndarray) -> Graph:
    """Change the transfers of some calls; communication that is tied to no other rank keeps its time."""
    rows &= graph.tied & (graph.transfer > 0)
    return graph.with_changes(transfer=np.where(rows, np.rint(transfer), graph.transfer).astype(np.int64))


_KEYS = ("axis", "op")
EDITS = (
    EditKind("bandwidth", "bandwidth=2,axis=dp", _KEYS, bandwidth, modelled=True),
    EditKind("latency", "latency=4,axis=tp", _KEYS, latency, modelled=True),
    EditKind("algorithm", "algorithm=tree,axis=dp", (*_KEYS, "now"), algorithm, modelled=True),
)
