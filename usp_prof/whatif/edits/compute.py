"""Compute edits: faster ranks, activities or ops, compute without interference, and fused optimizers.

Only optimizers with an elementwise update have a fused form (Adam, SGD and similar ones), and only their elementwise
kernels are fused. Other work inside the optimizer's annotation is unchanged: matrix products (the Newton-Schulz
iterations of Muon), collectives of a sharded optimizer, reductions (norms for clipping) and copies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.intervals import union
from usp_prof.columns.rows import distinct, first_of_run, group_codes, lookup, rows_of
from usp_prof.columns.table import Columns
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind, events_of
from usp_prof.replay.host_gaps import overlap
from usp_prof.replay.node_work import work_of
from usp_prof.replay.peers import slowness
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.compute_times import with_repaired_compute
from usp_prof.whatif.edits.kind import Again, EditKind, Request, no_peers
from usp_prof.whatif.host_times import with_repaired_hosts


def compute_faster(graph: Graph, request: Request) -> Graph:
    """Speed up compute by this factor; keys: rank, stage (pipeline), name (part of a kernel's or op's name)."""
    edit, factor = request.edit, request.positive()
    rows = graph.nodes.kind == NodeKind.COMPUTE
    if edit.place("rank"):
        rows &= graph.nodes.rank == int(edit.number("rank"))
    if edit.place("stage"):
        stage = graph.spread(work_of(request.tables).stage, missing=-1)
        rows &= stage == int(edit.number("stage"))
    if edit.place("name"):
        rows &= lookup([edit.place("name") in name for name in graph.names], graph.nodes.name, missing=False)
    return graph.with_changes(duration=scaled(graph.duration, rows, factor))


def rank_as_peers(graph: Graph, request: Request) -> Graph:
    """Make a rank as fast as the median of its peers; the value is one rank, several (2+3) or `all` slower ones.

    This covers compute and everything that its host does: think time, data loading, pauses and launches. Compute and
    host then take at most as long as those of the peers, in total and in each unusually long part. The host waits for
    the device as often as the hosts of the peers. Parts that are faster than the peers' do not change.
    """
    edit, slow_ranks = request.edit, slowness(request.tables, graph)
    every = edit.value in ("all", "")
    wanted = [rank for rank, slow in slow_ranks.items() if slow.ratio > 1] if every else request.ranks()
    for rank in wanted:
        if rank not in slow_ranks:
            raise no_peers(rank, slow_ranks)
    changed = with_repaired_compute(graph, request.tables, {rank: slow_ranks[rank] for rank in wanted})
    return with_repaired_hosts(changed, request.tables, wanted)


def scaled(values: Ints, rows: Flags, factor: float) -> Ints:
    """Return the values with the given rows divided by a factor."""
    return np.where(rows, np.rint(values / factor).astype(np.int64), values)


EDITS = (
    EditKind(
        "compute_faster", "compute_faster=1.5,rank=3", ("rank", "stage", "name"), compute_faster, again=Again.MULTIPLIES
    ),
    EditKind("rank_as_peers", "rank_as_peers=7", (), rank_as_peers),
)


# Op edits: a faster op with a given name and shape, or compute that is not slowed by communication.

FEWEST = 4
"""Minimum number of kernels of one kind, both with and without concurrent communication, for a comparison."""
_DEEPEST = 20


def op_faster(graph: Graph, request: Request) -> Graph:
    """Speed up the kernels of an op by this factor; keys: op, dims (as 4096x512.512x50257), size (one of the dims)."""
    edit = request.edit
    rows = of_op(graph, request.tables, edit.place("op"), edit.place("dims"), edit.place("size"))
    if not rows.any():
        raise UsageError(
            f"edit {edit}: no kernel belongs to this op", hint="list ops with `usp-prof analyze RUN --section kernels`"
        )
    return graph.with_changes(duration=scaled(graph.duration, rows, request.positive()))


def shape_word(dims: str) -> str:
    """Return an op's shapes for use in an edit, in which commas have another meaning."""
    return dims.replace(" ", "").replace("],[", ".").strip("[]").replace(",", "x")


def of_op(graph: Graph, tables: TableSet, name: str, word: str = "", size: str = "") -> Flags:
    """Mark the compute of ops with this name and these shapes (or this size in them), and of ops inside them."""
    events, is_of_op = events_of(graph), np.zeros(len(graph.nodes), dtype=bool)
    for rank in tables.ranks:
        ops, work = tables.columns("ops", rank), tables.columns("activities", rank)
        wanted = _wanted(ops, name, word, size)
        hits = np.isin(work["op_event"], wanted) & (work["op_event"] >= 0) & work.matches("kind", "compute")
        nodes_of_rank = graph.nodes.of_rank(rank)
        nodes_of_rank = nodes_of_rank[graph.nodes.kind[nodes_of_rank] == NodeKind.COMPUTE]
        is_of_op[nodes_of_rank] = np.isin(events[nodes_of_rank], work["event"][hits])
    return is_of_op


def _wanted(ops: Columns, name: str, word: str, size: str) -> Ints:
    """Return the events of matching ops, and of ops inside them."""
    codes, names = ops.codes("name")
    hits = lookup([text == name or not name for text in names], codes, missing=False)
    codes, texts = ops.codes("input_dims")
    words = [shape_word(text) for text in texts]
    if word:
        hits &= lookup([text == word for text in words], codes, missing=False)
    if size:
        hits &= lookup([size in re.split(r"[x.\[\]]+", text) for text in words], codes, missing=False)
    events = ops["event"][hits]
    for _ in range(_DEEPEST):
        inside = np.isin(ops["parent"], events) & ~np.isin(ops["event"], events)
        if not inside.any():
            break
        events = np.union1d(events, ops["event"][inside])
    return np.asarray(events)


@dataclass(frozen=True, slots=True, eq=False)
class Interference:
    """Slowdown of compute by concurrent communication, per node (1 if none or unknown)."""

    ratio: Floats
    kinds: int
    """Number of kinds of kernels that ran often enough both with and without communication."""
    knows_shapes: bool
    """Whether the shapes of any kernel's op are known; kernels without shapes cannot be compared."""


def no_interference(graph: Graph, request: Request) -> Graph:
    """Remove the slowdown of compute by simultaneous communication; communication keeps its speed."""
    measured = interference(graph, request.tables)
    if not measured.knows_shapes:
        raise UsageError(
            "kernels cannot be compared, because the shapes of their ops are unknown",
            hint="record with record_shapes=True",
        )
    ratio = measured.ratio
    if request.cautious:
        ratio = 1 + (ratio - 1) / 2
    return graph.with_changes(duration=np.rint(graph.duration / ratio).astype(np.int64))


def interference(graph: Graph, tables: TableSet) -> Interference:
    """Return the slowdown of each kind of kernel (name, grid and shapes) by concurrent communication."""
    nodes, events = graph.nodes, events_of(graph)
    ratio, kinds, knows_shapes = np.ones(len(nodes)), 0, False
    for rank in tables.ranks:
        kernels = tables.columns("kernels", rank)
        rows = nodes.of_rank(rank)
        compute = rows[nodes.kind[rows] == NodeKind.COMPUTE]
        if not len(kernels) or not len(compute):
            continue
        kind = _kind_of(kernels, tables.columns("ops", rank), events[compute])
        knows_shapes |= bool((kind >= 0).any())
        talks = rows[nodes.kind[rows] == NodeKind.COMMUNICATION]
        communicating = union(nodes.start[talks], nodes.end[talks])
        start, end = nodes.start[compute], nodes.end[compute]
        shared = communicating.within(start, end) / np.maximum(end - start, 1)
        for code in distinct(kind[(kind >= 0) & (shared > 1 / 2)]).tolist():
            of_kind = kind == code
            with_it, alone = of_kind & (shared > 1 / 2), of_kind & (shared == 0)
            if min(int(with_it.sum()), int(alone.sum())) < FEWEST:
                continue
            usual = float(np.median(nodes.duration[compute[alone]]))
            slowed = float(np.median(nodes.duration[compute[with_it]]))
            kinds += 1
            if usual > 0 and slowed > usual:
                ratio[compute[with_it]] = slowed / usual
    return Interference(ratio, kinds, knows_shapes)


def _kind_of(kernels: Columns, ops: Columns, events: Ints) -> Ints:
    """Return each node's kind of kernel: its name, grid, and the shapes of its op; -1 where the shapes are unknown.

    The grid alone does not distinguish sizes, because persistent kernels have one block per SM for any size.
    """
    op = rows_of(ops["event"], kernels["op_event"])
    codes, texts = ops.codes("input_dims")
    dims = lookup(codes, op, missing=-1)
    has_shapes = lookup([re.search(r"\d", text) is not None for text in texts], dims, missing=False)
    kind = group_codes(kernels.codes("name")[0], kernels["blocks"], kernels["threads_per_block"], dims)
    return lookup(np.where(has_shapes, kind, -1), rows_of(kernels["event"], events), missing=-1)


OP_EDITS = (
    EditKind("op_faster", "op_faster=1.5,op=aten::mm", ("op", "dims", "size"), op_faster, again=Again.MULTIPLIES),
    EditKind("no_interference", "no_interference", (), no_interference, modelled=True),
)


# Fused optimizer: the elementwise kernels of an update become one launch.

STEP_OF = re.compile(r"^Optimizer\.step#(?P<optimizer>.+)\.step$")
"""Annotation of a step by `torch.optim`, which contains the optimizer's class."""
KNOWN = re.compile(r"adam|sgd|adagrad|adadelta|rmsprop|rprop|lion", re.IGNORECASE)
"""Classes whose update is elementwise: Adam, AdamW, NAdam, RAdam, FusedAdam, DistAdam, SGD, ASGD, RMSprop, ..."""
OTHERWISE = re.compile(r"muon|shampoo|soap|adam_?mini|adafactor|lamb|lars", re.IGNORECASE)
"""Classes that match KNOWN but whose update also multiplies matrices or reduces."""
ELEMENTWISE = re.compile(r"elementwise_kernel|multi_tensor_apply|^triton_poi_")
NO_UPDATE = re.compile(r"copy|fill|norm|reduce", re.IGNORECASE)
"""Elementwise kernels that move, clear or measure values rather than update them."""


def fused_optimizer(graph: Graph, request: Request) -> Graph:
    """Run the optimizer's update as one launch: kernels back to back, and no host time between them."""
    nodes = graph.nodes
    update, launch = updates(graph, request.tables)
    later_update, later_launch = (rows & ~_firsts(graph, rows) for rows in (update, launch))
    is_launch_of_update = (graph.edges.kind == EdgeKind.LAUNCH) & later_update[graph.edges.target]
    gap = np.where(later_update | later_launch, np.minimum(graph.gap, 0), graph.gap)
    duration = np.where(later_launch & (nodes.kind == NodeKind.HOST), 0, graph.duration)
    return graph.with_changes(gap=gap, duration=duration, edges=graph.edges.without(is_launch_of_update))


def updates(graph: Graph, tables: TableSet) -> tuple[Flags, Flags]:
    """Mark the elementwise kernels in steps of known optimizers, and the host calls that launch them."""
    nodes, events = graph.nodes, events_of(graph)
    elementwise = [ELEMENTWISE.search(name) is not None and NO_UPDATE.search(name) is None for name in graph.names]
    is_elementwise = lookup(elementwise, nodes.name, missing=False)
    update, launch = np.zeros(len(nodes), dtype=bool), np.zeros(len(nodes), dtype=bool)
    for rank in tables.ranks:
        begin, end = _steps_of_known(tables, rank)
        if not len(begin):
            continue
        launches = tables.columns("launches", rank)
        at = launches["start_ns"]
        launched_inside = launches["event"][overlap(begin, end, at, at + 1) > 0]
        work = tables.columns("activities", rank)
        inside = np.isin(work["launch_event"], launched_inside) & (work["launch_event"] >= 0)
        rows = nodes.of_rank(rank)
        update[rows] = (
            is_elementwise[rows] & (nodes.kind[rows] == NodeKind.COMPUTE) & np.isin(events[rows], work["event"][inside])
        )
        updating_nodes = rows[update[rows]]
        updating = np.isin(work["event"], events[updating_nodes])
        launch[rows] = (nodes.kind[rows] == NodeKind.HOST) & np.isin(events[rows], work["launch_event"][updating])
    return update, launch


def _steps_of_known(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    """Return starts and ends of known optimizers' steps on a rank's host, on its own clock, sorted by start."""
    marks = tables.columns("annotations", rank)
    codes, names = marks.codes("name")
    hits = lookup([_is_known(name) for name in names], codes, missing=False) & ~marks["on_device"]
    begin = marks["start_ns"][hits]
    order = np.argsort(begin, kind="stable")
    end = (begin + marks["dur_ns"][hits])[order]
    return begin[order], np.maximum.accumulate(end) if len(end) else end


def _is_known(mark: str) -> bool:
    step_mark = STEP_OF.match(mark)
    if step_mark is None:
        return False
    optimizer = step_mark["optimizer"]
    return KNOWN.search(optimizer) is not None and not OTHERWISE.search(optimizer)


def _firsts(graph: Graph, rows: Flags) -> Flags:
    """Mark the first of the given nodes in each lane and step."""
    place = np.flatnonzero(rows)
    is_first = np.zeros(len(rows), dtype=bool)
    is_first[place[first_of_run(graph.nodes.lane[place], graph.nodes.step[place])]] = True
    return is_first


FUSED_EDITS = (EditKind("fused_optimizer", "fused_optimizer", (), fused_optimizer),)
