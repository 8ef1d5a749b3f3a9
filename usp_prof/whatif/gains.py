"""Gains of edits: the share of the measured step that each saves, how that is known, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from usp_prof.model.errors import UspProfError
from usp_prof.replay.replays import step_times, timeline_of
from usp_prof.whatif.edited import Edited, as_recorded
from usp_prof.whatif.outcome import outcome
from usp_prof.whatif.predicted_tables import retimed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.model.finding import Basis
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Gain:
    """What edits save, as a share of the measured step, how that is known, and how far it may be off."""

    gain_fraction: float
    basis: Basis
    error_fraction: float


def gain_of(tables: TableSet, made: Edited, least: float = -inf) -> Gain:
    """Replay what edits make of the run; raises where that cannot be done.

    Where less than `least` is saved, nobody asks how sure that is, and the cautious replay is left out.
    """
    timeline = timeline_of(tables, made.graph)
    replayed_ns = step_times(tables, made.graph, timeline).mean_replayed_ns
    found = outcome(tables, made, replayed_ns, lambda: retimed(tables, made.graph, timeline))
    cautious_ns = None
    if made.cautious is not None and found.gain_fraction >= least:
        cautious = made.cautious()
        cautious_ns = step_times(tables, cautious, timeline_of(tables, cautious)).mean_replayed_ns
    return Gain(found.gain_fraction, found.basis, found.error_fraction(cautious_ns))


def gains(tables: TableSet, edits: Sequence[Edit], least: Sequence[float]) -> Iterator[Gain | UspProfError]:
    """Give the gain of each edit alone, or why it cannot be made; `least` is the gain that is wanted of each."""
    for edit, wanted in zip(edits, least, strict=True):
        try:
            yield gain_of(tables, as_recorded(tables).then(tables, edit), wanted)
        except UspProfError as error:
            yield error
