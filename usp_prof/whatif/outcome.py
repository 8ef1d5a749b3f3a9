"""Outcome of edits: the replayed step, less what another order of actions saves, and its error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import Basis
from usp_prof.replay.replays import unedited
from usp_prof.whatif.edits.pipeline import relaid
from usp_prof.whatif.reordering.schedule import Rescheduled, reschedule

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
class Outcome:
    """The mean step after edits, and how it is known."""

    made: Edited
    before_ns: float
    replayed_ns: float
    """As the replay has it, before another order of actions."""
    after_ns: float
    replay_error: float
    floor_error: float
    """How well gains are known at best."""
    layout: Layout
    rescheduled: tuple[Rescheduled, ...]

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return 1 - self.after_ns / self.before_ns if self.before_ns > 0 else 0.0

    @property
    def basis(self) -> Basis:
        """How it is known."""
        return Basis.MODELLED if self.made.cautious is not None or self.rescheduled else Basis.REPLAYED

    def error_fraction(self, cautious_ns: float | None) -> float:
        """Say by what share of the measured step it may be wrong, by the replay with cautious models where one is."""
        if self.before_ns <= 0:  # a step of no time has no share to be wrong by
            return max(self.floor_error, self.replay_error)
        error = 0.0 if cautious_ns is None else abs(cautious_ns - self.replayed_ns) / self.before_ns
        for other in self.rescheduled:
            error += other.error_ns / self.before_ns
        if self.basis is Basis.MODELLED:
            error = max(error, self.made.doubt * abs(1 - self.after_ns / self.before_ns))
        return max(self.floor_error, self.replay_error, error)


def outcome(tables: TableSet, made: Edited, replayed_ns: float, moved: Callable[[], TableSet]) -> Outcome:
    """Put the replay and the pipeline's order together; `moved` gives the tables as the replay moves them."""
    before = unedited(tables)
    if not len(before.step):
        raise UspProfError("there is no step with device work to replay", hint="record steps: usp-prof info tells")
    after_ns, now, others = replayed_ns, made.layout, []
    there = moved() if made.is_moved else tables
    for edit in made.reordered:
        others.append(reschedule(there, edit, now))
        after_ns -= others[-1].saved_ns
        now = relaid(now, edit)
    error = float(before.error.max(initial=0.0))
    return Outcome(made, before.mean_measured_ns, replayed_ns, after_ns, error, _floor(tables), now, tuple(others))


def _floor(tables: TableSet) -> float:
    """Say how well gains are known at best: worse where ranks without devices share the cores of one machine."""
    on_device = any(len(tables.columns("kernels", rank)) for rank in tables.ranks)
    return FLOOR_ERROR if on_device else SHARED_ERROR
