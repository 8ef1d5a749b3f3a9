"""Edited run before its replay: graph, cautious graph, layout, another order of actions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from usp_prof.replay.build import graph_of
from usp_prof.whatif.edits import Lean, Request, apply, kind_of
from usp_prof.whatif.edits.pipeline import is_of_pipeline, lowered
from usp_prof.whatif.layout import Layout, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from usp_prof.model.edit import Edit
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet

_REORDERED = 0.1
"""Of what another order of actions changes, so much may not come about."""


class Later:
    """A graph that is made when it is asked for, once."""

    def __init__(self, make: Callable[[], Graph]) -> None:
        self._make = make
        self._made: Graph | None = None

    def __call__(self) -> Graph:
        """Give the graph."""
        if self._made is None:
            self._made = self._make()
        return self._made


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """What edits make of the graph, before it is replayed."""

    edits: tuple[Edit, ...]
    graph: Graph
    cautious: Later | None
    """The same by cautious models, where a model is in it: only who wants to know the error asks for it."""
    layout: Layout
    reordered: tuple[Edit, ...]
    """The edits of the pipeline's order, which are no changes of the graph."""
    is_plain: bool
    """Whether no edit was of another kind."""
    doubt: float = _REORDERED
    """Of a modelled change, the share that may not come about."""

    @property
    def is_moved(self) -> bool:
        """Whether the order of actions changes in a run whose times an edit has moved already."""
        return bool(self.reordered) and not self.is_plain

    def then(self, tables: TableSet, edit: Edit) -> Edited:
        """Make one more edit: those of the graph in their order, those of the pipeline behind all of them."""
        found, recorded = self, layout_of(tables)
        for part in lowered(edit, recorded):
            if is_of_pipeline(part, recorded):
                found = replace(found, reordered=(*found.reordered, part))
            else:
                found = _on_the_graph(found, tables, part)
        return replace(found, edits=(*self.edits, edit))


def _on_the_graph(made: Edited, tables: TableSet, edit: Edit) -> Edited:
    kind, cautious = kind_of(edit), made.cautious
    if cautious is not None or kind.modelled:
        before = cautious or Later(lambda: made.graph)
        cautious = Later(lambda: apply(before(), Request(edit, tables, made.layout, Lean.CAUTIOUS)))
    return replace(
        made,
        graph=apply(made.graph, Request(edit, tables, made.layout)),
        cautious=cautious,
        layout=kind.relayout(made.layout, edit),
        is_plain=False,
        doubt=max(made.doubt, kind.doubt),
    )


def as_recorded(tables: TableSet) -> Edited:
    """Begin without any edit."""
    return Edited((), graph_of(tables), None, layout_of(tables), (), is_plain=True)


def edited(tables: TableSet, edits: Iterable[Edit]) -> Edited:
    """Make edits one after the other."""
    found = as_recorded(tables)
    for edit in edits:
        found = found.then(tables, edit)
    return found
