"""What comes of edits, and how sure is it? The replayed step, less what another order of actions saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.finding import Basis
from usp_prof.whatif.edits.pipeline import relaid
from usp_prof.whatif.recorded import unedited
from usp_prof.whatif.schedule import Rescheduled, reschedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.edited import Edited
    from usp_prof.whatif.layout import Layout

FLOOR_ERROR = 0.02
"""The replay of the unedited run is exact by construction (think time makes up for what is unexplained), so that its
error says nothing of an edit's: of 38 freshly made-up runs with the fault repaired, 36 gains are within this share of
the step."""
SHARED_ERROR = 0.05
"""The same on CPU traces: paced pairs, recorded on shared cores, mostly came out within this."""


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """The mean step that a replay of the edited graph has, and what it has when models are taken cautiously."""

    after_ns: float
    cautious_ns: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The mean step after edits, how it is known, and by what share of the measured step it may be wrong."""

    before_ns: float
    after_ns: float
    replay_error: float
    basis: Basis
    error_fraction: float
    layout: Layout
    rescheduled: Rescheduled | None = None

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return 1 - self.after_ns / self.before_ns if self.before_ns > 0 else 0.0


def outcome(tables: TableSet, made: Edited, replayed: Replayed, moved: Callable[[], TableSet]) -> Outcome:
    """Put the replay and the pipeline's order together; `moved` gives the tables as the replay moves them."""
    before = unedited(tables)
    whole = before.mean_measured_ns
    error, basis = 0.0, Basis.REPLAYED
    if replayed.cautious_ns is not None:
        basis = Basis.MODELLED
        error = abs(replayed.cautious_ns - replayed.after_ns) / whole
    after_ns, now, other = replayed.after_ns, made.layout, None
    there = moved() if made.is_moved else tables
    for edit in made.reordered:
        other = reschedule(there, edit, now)
        after_ns -= other.saved_ns
        now = relaid(now, edit)
        basis, error = Basis.MODELLED, error + other.error_ns / whole
    replay_error = float(before.error.max(initial=0.0))
    if basis is Basis.MODELLED:
        error = max(error, made.doubt * abs(1 - after_ns / whole))
    return Outcome(whole, after_ns, replay_error, basis, max(_floor(tables), replay_error, error), now, other)


def _floor(tables: TableSet) -> float:
    """Say how well gains are known at best: worse where ranks without devices share the cores of one machine."""
    on_device = any(len(tables.columns("kernels", rank)) for rank in tables.ranks)
    return FLOOR_ERROR if on_device else SHARED_ERROR
