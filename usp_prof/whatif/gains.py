"""What is each of many changes worth? Their replays made at once, of a long run those steps that stand for all.

A change that does not do the same in all steps (a pause now and then) is replayed as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from usp_prof.model.errors import UspProfError
from usp_prof.whatif.build import graph_of
from usp_prof.whatif.edited import Edited, as_recorded
from usp_prof.whatif.outcome import Replayed, outcome
from usp_prof.whatif.recorded import unedited
from usp_prof.whatif.replay import at_once
from usp_prof.whatif.replays import replay_each, replayed
from usp_prof.whatif.retimed import retimed
from usp_prof.whatif.sample import sample_of
from usp_prof.whatif.steady import saving
from usp_prof.whatif.step_times import step_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.model.finding import Basis
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Graph, Timeline

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gain:
    """What edits save, as a share of the measured step, how that is known, and how far it may be off."""

    gain_fraction: float
    basis: Basis
    error_fraction: float
    sampled: bool = False
    """Some steps stand for all."""


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """The mean step that a graph has, and its timeline where all of it was replayed."""

    mean_ns: float
    timeline: Timeline | None = None


def gains(tables: TableSet, edits: Sequence[Edit]) -> Iterator[Gain | UspProfError]:
    """Predict each edit alone; for what cannot be done give the error."""
    width = _width(tables)
    for low in range(0, len(edits), width):
        made = [_attempted(partial(as_recorded(tables).then, tables, edit)) for edit in edits[low : low + width]]
        known = _known(tables, [each for each in made if isinstance(each, Edited)])
        for each in made:
            yield _attempted(partial(_gain, tables, each, known)) if isinstance(each, Edited) else each


def gains_in_turn(tables: TableSet, edits: Sequence[Edit]) -> Iterator[Gain | UspProfError]:
    """Predict each edit with all before it; for one that cannot join them give the error, and go on without it."""
    made, place, width = as_recorded(tables), 0, _width(tables)
    while place < len(edits):
        several: list[Edited | UspProfError] = []
        last = made
        for edit in edits[place : place + width]:
            several.append(_attempted(partial(last.then, tables, edit)))
            last = several[-1] if isinstance(several[-1], Edited) else last
        known = _known(tables, [each for each in several if isinstance(each, Edited)])
        for each in several:
            place += 1
            found = _attempted(partial(_gain, tables, each, known)) if isinstance(each, Edited) else each
            yield found
            if isinstance(each, Edited):
                if isinstance(found, UspProfError):
                    break  # those behind it were made with it
                made = each


def _width(tables: TableSet) -> int:
    """Say how many edits are made before they are replayed: of a modelled one there are two graphs."""
    return max(1, at_once(graph_of(tables)) // 2)


def _attempted(make: Callable[[], T]) -> T | UspProfError:
    try:
        return make()
    except UspProfError as error:
        return error


def _gain(tables: TableSet, made: Edited, known: dict[int, _Known]) -> Gain:
    own = known[id(made.graph)]
    cautious = None if made.cautious is None else known[id(made.cautious)].mean_ns
    found = outcome(tables, made, Replayed(own.mean_ns, cautious), partial(_moved, tables, made.graph, own.timeline))
    return Gain(found.gain_fraction, found.basis, found.error_fraction, sampled=own.timeline is None)


def _moved(tables: TableSet, graph: Graph, timeline: Timeline | None) -> TableSet:
    """Give the tables as a replay moves them; of a long run the steps that stand for all."""
    recorded = sample_of(tables)
    steps = None if recorded is None else recorded.sample.labels[recorded.sample.counted]
    return retimed(tables, graph, timeline or replay_each(tables, [graph])[0], steps)


def _known(tables: TableSet, made: Sequence[Edited]) -> dict[int, _Known]:
    """Replay what several edits make, by the graphs' identity."""
    graphs = {id(graph): graph for each in made for graph in (each.graph, each.cautious) if graph is not None}
    # Where stages drift apart their window widens from step to step: what takes another order is replayed as a whole.
    whole = {id(graph_of(tables)), *(id(each.graph) for each in made if each.is_moved)}
    found = _by_sample(tables, [graph for key, graph in graphs.items() if key not in whole])
    rest = [graph for key, graph in graphs.items() if key not in found]
    for graph, timeline in zip(rest, replay_each(tables, rest), strict=True):
        found[id(graph)] = _Known(step_times(tables, graph, timeline).mean_replayed_ns, timeline)
    return found


def _by_sample(tables: TableSet, graphs: Sequence[Graph]) -> dict[int, _Known]:
    """Replay the sampled steps of a long run; without those graphs for which they do not stand."""
    recorded = sample_of(tables)
    graphs = [] if recorded is None else [graph for graph in graphs if graph.nodes is recorded.sample.base.nodes]
    if recorded is None or not graphs:
        return {}
    before = unedited(tables)
    parts = [recorded.sample.narrowed(graph) for graph in graphs]
    found = {}
    for graph, timeline in zip(graphs, replayed(parts, recorded.graph, lambda: recorded.plan, {}), strict=True):
        saved = saving(recorded, graph, timeline, before.mean_measured_ns)
        if saved is not None:
            found[id(graph)] = _Known(before.mean_replayed_ns - saved)
    return found
