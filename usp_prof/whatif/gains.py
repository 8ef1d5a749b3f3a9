"""What is each of many changes worth? Their replays made at once, of a long run those steps that stand for all.

A change that does not do the same in all steps (a pause now and then) is replayed as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeVar

from usp_prof.model.errors import UspProfError
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph
from usp_prof.replay.longest_path import at_once
from usp_prof.replay.recorded import unedited
from usp_prof.replay.replays import replay_each, replayed
from usp_prof.replay.sample import sample_of
from usp_prof.replay.steady import saving
from usp_prof.replay.step_times import step_times
from usp_prof.whatif.edited import Edited, as_recorded
from usp_prof.whatif.outcome import Outcome, outcome
from usp_prof.whatif.predicted_tables import retimed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.model.finding import Basis
    from usp_prof.replay.graph import Timeline
    from usp_prof.tables.table_set import TableSet

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


def gains(tables: TableSet, edits: Sequence[Edit], least: Sequence[float] = ()) -> Iterator[Gain | UspProfError]:
    """Predict each edit alone; for what cannot be done give the error.

    `least` gives for each edit the gain that is wanted of it: of one that saves less, nobody asks how sure that is.
    """
    width, floors = _width(tables), least or [-inf] * len(edits)
    for low in range(0, len(edits), width):
        made = [_attempted(partial(as_recorded(tables).then, tables, edit)) for edit in edits[low : low + width]]
        yield from _gains(tables, made, floors[low : low + width])


def gains_in_turn(
    tables: TableSet, begun: Edited, edits: Sequence[Edit], least: Sequence[float] = ()
) -> Iterator[Gain | UspProfError]:
    """Predict each edit with all before it; for one that cannot join them give the error, and go on without it."""
    made, place, width, floors = begun, 0, _width(tables), least or [-inf] * len(edits)
    while place < len(edits):
        several: list[Edited | UspProfError] = []
        last = made
        for edit in edits[place : place + width]:
            several.append(_attempted(partial(last.then, tables, edit)))
            last = several[-1] if isinstance(several[-1], Edited) else last
        for each, found in zip(several, _gains(tables, several, floors[place : place + width]), strict=True):
            place += 1
            yield found
            if isinstance(each, Edited):
                if isinstance(found, UspProfError):
                    break  # those behind it were made with it
                made = each


def _gains(
    tables: TableSet, made: Sequence[Edited | UspProfError], least: Sequence[float]
) -> list[Gain | UspProfError]:
    """Replay what edits make of the run, and cautiously what of it saves enough."""
    there = [each for each in made if isinstance(each, Edited)]
    known = _known(tables, [each.graph for each in there], [each.graph for each in there if each.is_moved])
    found = [_attempted(partial(_outcome, tables, each, known)) if isinstance(each, Edited) else each for each in made]
    counts = [
        isinstance(each, Outcome) and each.gain_fraction >= wanted for each, wanted in zip(found, least, strict=True)
    ]
    cautious = [
        _attempted(each.made.cautious) if count and isinstance(each, Outcome) and each.made.cautious else None
        for each, count in zip(found, counts, strict=True)
    ]
    doubted = _known(tables, [each for each in cautious if isinstance(each, Graph)])
    return [
        _gain(each, known, doubted, against) if isinstance(each, Outcome) else each
        for each, against in zip(found, cautious, strict=True)
    ]


def _width(tables: TableSet) -> int:
    """Say how many edits are made before they are replayed: of a modelled one there may be two graphs."""
    return max(1, at_once(graph_of(tables)) // 2)


def _attempted(make: Callable[[], T]) -> T | UspProfError:
    try:
        return make()
    except UspProfError as error:
        return error


def _outcome(tables: TableSet, made: Edited, known: dict[int, _Known]) -> Outcome:
    own = known[id(made.graph)]
    return outcome(tables, made, own.mean_ns, partial(_moved, tables, made.graph, own.timeline))


def _gain(
    found: Outcome, known: dict[int, _Known], doubted: dict[int, _Known], cautious: Graph | UspProfError | None
) -> Gain | UspProfError:
    if isinstance(cautious, UspProfError):
        return cautious
    error = found.error_fraction(None if cautious is None else doubted[id(cautious)].mean_ns)
    sampled = known[id(found.made.graph)].timeline is None
    return Gain(found.gain_fraction, found.basis, error, sampled)


def _moved(tables: TableSet, graph: Graph, timeline: Timeline | None) -> TableSet:
    """Give the tables as a replay moves them; of a long run the steps that stand for all."""
    recorded = sample_of(tables)
    steps = None if recorded is None else recorded.sample.labels[recorded.sample.counted]
    return retimed(tables, graph, timeline or replay_each(tables, [graph])[0], steps)


def _known(tables: TableSet, several: Sequence[Graph], moved: Sequence[Graph] = ()) -> dict[int, _Known]:
    """Replay several graphs, by their identity; of those that are `moved` the order of actions changes then."""
    graphs = {id(graph): graph for graph in several}
    # Where stages drift apart their window widens from step to step: what takes another order is replayed as a whole.
    whole = {id(graph_of(tables)), *(id(graph) for graph in moved)}
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
