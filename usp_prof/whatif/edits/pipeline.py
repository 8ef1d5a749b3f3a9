"""Pipeline edits: changes of the action order rather than the graph, and of the number of micro-batches per step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import lookup, range_at
from usp_prof.columns.table import Columns
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.replay.graph import Graph
from usp_prof.replay.node_work import work_of
from usp_prof.schedule import Schedule, schedule_by_name
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.kind import Again, EditKind, Request
from usp_prof.whatif.layout import Layout, layout_of

_FOREVER = np.iinfo(np.int64).max
SCHEDULE, BALANCE, MOVE, PASSES = "schedule", "balance_stages", "move_layers", "micro_batches"
SAME = "same"
"""Value of `schedule` for the run's own schedule, or the one that an earlier edit has chosen."""


@dataclass(frozen=True, slots=True)
class PipelineEdit:
    """One kind of edit of the pipeline's action order, with the description of other edit kinds."""

    name: str
    example: str
    keys: tuple[str, ...]
    doc: str


PIPELINE_EDITS = (
    PipelineEdit(
        SCHEDULE,
        "schedule=interleaved,v=2",
        ("v", "m"),
        f"Change the pipeline schedule: {', '.join(Schedule)}, or {SAME} (the current one); "
        "keys: v (stages per rank), m (micro-batches; the batch stays, so they get smaller).",
    ),
    PipelineEdit(
        BALANCE, "balance_stages", (), "Make all pipeline stages equally long: each takes the mean of all stages."
    ),
    PipelineEdit(
        MOVE,
        "move_layers=1,source=3,target=0",
        ("source", "target"),
        "Move this number of layers from one pipeline stage to another; keys: source, target (stages).",
    ),
)


def is_of_pipeline(edit: Edit, layout: Layout) -> bool:
    """Return whether an edit changes the pipeline's action order; raise for keys that it does not take."""
    if edit.name == PASSES:
        return layout.pp > 1
    kind = next((candidate for candidate in PIPELINE_EDITS if candidate.name == edit.name), None)
    if kind is None:
        return False
    for key, _ in edit.places:
        if key not in kind.keys:
            raise unknown_name(f"key of {kind.name}", key, kind.keys)
    return True


def lowered(edit: Edit, layout: Layout) -> tuple[Edit, ...]:
    """Return the basic edits of an edit: strong scaling is another degree with fewer micro-batches per rank."""
    if edit.name != "dp" or edit.place("scaling", "weak") != "strong":
        return (edit,)
    plain = Edit(edit.name, edit.value, tuple(pair for pair in edit.places if pair[0] != "scaling"))
    size = int(edit.number())
    passes = layout.micro_batches * layout.dp / max(size, 1)
    if not layout.micro_batches:
        raise UsageError(f"edit {edit}: the number of micro-batches is unknown", hint="record a manifest")
    if passes < 1 or passes != int(passes):
        raise UsageError(
            f"edit {edit}: {layout.micro_batches} micro-batches on {layout.dp} replicas cannot be shared by {size}",
            hint="choose a degree that divides them, or scaling=weak",
        )
    return (plain, Edit(PASSES, str(int(passes))))


def relaid(layout: Layout, edit: Edit) -> Layout:
    """Return the layout after an edit of the pipeline's action order."""
    if edit.name == PASSES:
        return after_passes(layout, edit)
    if edit.name != SCHEDULE:
        return layout
    passes = int(edit.number("m", default=float(layout.micro_batches)))
    tokens = layout.micro_batch_tokens * layout.micro_batches // passes if passes else layout.micro_batch_tokens
    schedule, chunks = schedule_of(edit, layout.schedule, layout.chunks)
    return replace(layout, schedule=schedule, chunks=chunks, micro_batches=passes, micro_batch_tokens=tokens)


def after_passes(layout: Layout, edit: Edit) -> Layout:
    """Return the layout with more or fewer micro-batches of the same size; the batch size changes accordingly."""
    passes = int(edit.number())
    tokens = layout.tokens_per_step * passes // layout.micro_batches if layout.micro_batches else 0
    return replace(layout, micro_batches=passes, tokens_per_step=tokens)


def schedule_of(edit: Edit, now: str, chunks: int) -> tuple[str, int]:
    """Return the schedule of an edit and its stages per rank; `now` and `chunks` are those before the edit."""
    if edit.value == SAME:
        return now, int(edit.number("v", default=float(chunks)))
    schedule = schedule_by_name(edit.value)
    if schedule is None:
        raise unknown_name("schedule", edit.value, [*map(str, Schedule), SAME])
    return edit.value, int(edit.number("v", default=float(schedule.traits.usual_stages_per_rank)))


# Accumulation edit: more or fewer micro-batches between two updates, in runs without a pipeline.
#
# The last micro-batch of a step also reduces gradients and is unchanged. The time of the others is multiplied by the
# ratio of their numbers.


def micro_batches(graph: Graph, request: Request) -> Graph:
    """Change the number of micro-batches per step; their size stays, so the batch and the step change."""
    wanted, number = request.integer(), passes_of(graph, request.tables)
    now = int(number.max(initial=-1)) + 1
    declared = layout_of(request.tables).micro_batches
    if declared and now and declared != now:
        raise UsageError(
            f"edit {request.edit}: the trace shows {now} passes a step, and the run's description says {declared}",
            hint="mark each pass: record.phase('forward')",
        )
    layout = request.layout.micro_batches
    shown = now if layout == declared else layout  # number of passes in the graph after earlier edits
    if wanted == shown:
        return graph
    if min(now, shown) < 2:
        few = "one micro-batch" if now else "no micro-batches"
        raise UsageError(
            f"edit {request.edit}: the run shows {few} per step; the time of one without gradient sync is unknown",
            hint="record with gradient accumulation, and marks for each pass (pp::F mb=..., or train::fwd_bwd)",
        )
    number = graph.spread(number, missing=-1)
    factor = np.where((number >= 0) & (number < now - 1), (wanted - 1) / (shown - 1), 1.0)
    edges = graph.edges
    lag = np.rint(edges.lag * factor[edges.target]).astype(np.int64)
    return graph.with_changes(
        duration=_times(graph.duration, factor),
        transfer=_times(graph.transfer, factor),
        gap=_times(graph.gap, factor),
        edges=replace(edges, lag=lag),
    )


def passes_of(graph: Graph, tables: TableSet) -> Ints:
    """Return the micro-batch number of each measured node within its step; -1 outside of micro-batches."""
    work = work_of(tables)
    if (work.micro_batch >= 0).any():
        return work.micro_batch
    pass_of_node = np.full(len(graph.nodes) - graph.added, -1, np.int64)
    for rank in tables.ranks:
        begin, end, number = _marked_passes(tables.columns("annotations", rank))
        of_rank = np.flatnonzero(graph.nodes.rank[: len(pass_of_node)] == rank)
        pass_of_node[of_rank] = lookup(number, range_at(begin, end, work.issued_ns[of_rank]), missing=-1)
    return pass_of_node


def _marked_passes(marks: Columns) -> tuple[Ints, Ints, Ints]:
    """Return starts and ends of a rank's passes, in order, and the number of each within its step.

    A pass starts with an annotation `train::forward` and lasts until the next one of its step. If forward is not
    annotated separately, a pass is an annotation `train::fwd_bwd`.
    """
    on_host = ~marks["on_device"] & (marks["step"] >= 0)
    forwards = np.flatnonzero(on_host & marks.matches("name", "train::forward"))
    rows = forwards if len(forwards) else np.flatnonzero(on_host & marks.matches("name", "train::fwd_bwd"))
    rows = rows[np.argsort(marks["start_ns"][rows], kind="stable")]
    begin, step = marks["start_ns"][rows], marks["step"][rows]
    end = begin + marks["dur_ns"][rows]
    if len(forwards):
        same_step = step[1:] == step[:-1]
        end = np.append(np.where(same_step, begin[1:], _FOREVER), _FOREVER)
    return begin, end, np.arange(len(rows)) - np.searchsorted(step, step)


def _times(values: Ints, factor: np.ndarray) -> Ints:
    return np.asarray(np.rint(values * factor), np.int64)


PASS_EDITS = (
    EditKind(PASSES, "micro_batches=16", (), micro_batches, after_passes, modelled=True, again=Again.REPLACES),
)
