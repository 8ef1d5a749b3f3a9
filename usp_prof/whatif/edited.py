"""A run with edits: its graph with the edits applied, before it is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits import Lean, Request, apply, kind_of, overrules, turn
from usp_prof.whatif.edits.pipeline import is_of_pipeline, lowered
from usp_prof.whatif.layout import Layout, layout_of

_REORDERED = 0.1
"""Share of the effect of another action order that may not materialize."""


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """The graph with edits applied, before it is replayed."""

    edits: tuple[Edit, ...]
    graph: Graph
    cautious: Callable[[], Graph] | None
    """Returns the graph from cautious models, memoized; `None` if no edit is modeled. Needed only for the error."""
    layout: Layout
    reordered: tuple[Edit, ...]
    """The edits of the pipeline's action order, which do not change the graph."""
    is_plain: bool
    """Whether there are no edits of the graph."""
    doubt: float = _REORDERED
    """Share of a modeled change that may not materialize."""

    @property
    def is_moved(self) -> bool:
        """Whether the action order changes in a run whose times were already changed by an edit."""
        return bool(self.reordered) and not self.is_plain

    def then(self, tables: TableSet, edit: Edit) -> Edited:
        """Return the result of one more edit: edits of the graph in order, then those of the pipeline."""
        remaining = tuple(before for before in self.edits if not overrules(edit, before))
        if len(remaining) < len(self.edits) or any(turn(before) > turn(edit) for before in remaining):
            return edited(tables, (*remaining, edit))
        changed, recorded = self, layout_of(tables)
        for part in lowered(edit, recorded):
            if is_of_pipeline(part, recorded):
                changed = replace(changed, reordered=(*changed.reordered, part))
            else:
                changed = _on_the_graph(changed, tables, part)
        return replace(changed, edits=(*self.edits, edit))


def _on_the_graph(made: Edited, tables: TableSet, edit: Edit) -> Edited:
    kind, cautious = kind_of(edit), made.cautious
    if cautious is not None or kind.modelled:
        before = cautious or (lambda: made.graph)
        cautious = cache(lambda: apply(before(), Request(edit, tables, made.layout, Lean.CAUTIOUS)))
    return replace(
        made,
        graph=apply(made.graph, Request(edit, tables, made.layout)),
        cautious=cautious,
        layout=kind.relayout(made.layout, edit),
        is_plain=False,
        doubt=max(made.doubt, kind.doubt),
    )


def as_recorded(tables: TableSet) -> Edited:
    """Return the recorded run without edits."""
    return Edited((), graph_of(tables), None, layout_of(tables), (), is_plain=True)


def edited(tables: TableSet, edits: Iterable[Edit]) -> Edited:
    """Return the run with edits applied in order of their turn; edits with equal turns keep the given order."""
    edited_run = as_recorded(tables)
    for edit in sorted(edits, key=turn):
        edited_run = edited_run.then(tables, edit)
    return edited_run
