"""The outcome of edits: the replayed step, and the error of what they save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import GAIN, Basis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph
from usp_prof.replay.step_times import share_saved, step_times, timeline_of, unedited
from usp_prof.replay.unexplained import (
    as_little_as_peers,
    unexplained_shares,
    unmatched_waits,
    without_unexplained,
    without_unmatched_waits,
)
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edited import Edited
from usp_prof.whatif.edits.pipeline import relaid
from usp_prof.whatif.layout import Layout
from usp_prof.whatif.lead import gain_after_first_step, gain_without_lead, without_waits_in_queue
from usp_prof.whatif.recording_cost import RecordingCost, recording_cost, unrecorded_ns, without_host
from usp_prof.whatif.replayed_ranks import ranks_made_like_peers, ranks_of_edits
from usp_prof.whatif.rescheduled import Rescheduled, reschedule

FLOOR_ERROR = 0.02
"""Minimum error of a gain. The replay of the unedited run is exact by construction (unexplained time becomes think
time), so its error is not informative. In 38 synthetic runs with the fault repaired, 36 gains were within this share of
the step."""
SHARED_ERROR = 0.05
"""The same for CPU traces: most paced pairs, recorded on shared cores, were within this share."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The mean step after edits, with its basis and error."""

    made: Edited
    recorded_ns: float
    """The step before the edits, as it was recorded."""
    replayed_ns: float
    """The replayed step after the edits of the graph, before the action order changes."""
    edited_ns: float
    """The step after all edits."""
    replay_error: float
    floor_error: float
    """Minimum error of any gain."""
    layout: Layout
    rescheduled: Rescheduled | None
    recording: RecordingCost
    device_ns: Callable[[], float]
    """Returns the step after the edits if the device never waited for the host, from a separate, memoized replay."""
    unrecorded_ns: Callable[[], tuple[float, float]]
    """Returns the step before and after the edits if recording costs as much as it may at most, from two replays."""
    unexplained_error: Callable[[], float]
    """Returns the error of the gain from times that the graph cannot explain, from separate replays."""

    @property
    def is_free_of_recording(self) -> bool:
        """Whether the recording cost is known and subtracted from both steps and the gain."""
        return self.recording.is_known and self.recording.matters(self.recorded_ns)

    @property
    def before_ns(self) -> float:
        """The step before the edits, without the recording cost if it is known."""
        return self.recorded_ns - self.recording.ns if self.is_free_of_recording else self.recorded_ns

    @property
    def after_ns(self) -> float:
        """The step after the edits, without the recording cost if it is known."""
        return self._unrecorded_after_ns() if self.is_free_of_recording else self.edited_ns

    @property
    def gain_fraction(self) -> float:
        """The share of the step that the edits save."""
        return share_saved(self.before_ns, self.after_ns)

    @property
    def basis(self) -> Basis:
        """Basis of the gain: replayed or modeled."""
        return Basis.MODELLED if self.made.cautious is not None or self.rescheduled is not None else Basis.REPLAYED

    @property
    def least_error(self) -> float:
        """The error of any gain in this run."""
        return max(self.floor_error, self.replay_error)

    def error_fraction(self, cautious_ns: float | None) -> float:
        """Return the error as a share of the measured step; `cautious_ns` is the step with cautious models, if any."""
        if self.recorded_ns <= 0:  # no relative error for a step of zero length
            return self.least_error
        error = 0.0 if cautious_ns is None else abs(cautious_ns - self.replayed_ns) / self.recorded_ns
        if self.rescheduled is not None:
            error += self.rescheduled.error_ns / self.recorded_ns
        if self.basis is Basis.MODELLED:
            error = max(error, self.made.doubt * abs(1 - self.edited_ns / self.recorded_ns))
        return max(self.least_error, error, self._recording_error(), self.unexplained_error())

    def _unrecorded_after_ns(self) -> float:
        return self.recording.taken_from(self.edited_ns, self.device_ns())

    def _recording_error(self) -> float:
        """Return the error of the gain from recording cost that is unknown or hidden in the recorded step."""
        of_ops = 0.0 if self.recording.is_known else self._error_of_ops()
        if not self.recording.host_ns:
            return of_ops
        hidden = self.recording.hidden_ns(self.edited_ns, self.device_ns()) / self.recorded_ns
        if self.recording.is_known or not self.recording.matters(self.recorded_ns):
            return max(of_ops, hidden)
        at_most = share_saved(self.recorded_ns - self.recording.ns, self._unrecorded_after_ns())
        return max(of_ops, hidden, abs(self.gain_fraction - at_most))

    def _error_of_ops(self) -> float:
        """Return the error of the gain if recording costs up to `OP_NS` per op.

        The edits may then save less of the step, or more time. The same time is a larger share of a shorter step, which
        is no error.
        """
        before_ns, after_ns = self.unrecorded_ns()
        less, more = share_saved(before_ns, after_ns), (before_ns - after_ns) / self.recorded_ns
        return max(0.0, self.gain_fraction - less, more - self.gain_fraction)


def outcome(tables: TableSet, made: Edited, replayed_ns: float, moved: Callable[[], TableSet]) -> Outcome:
    """Return the outcome of graph and pipeline edits; `moved` returns the tables as moved by the replay."""
    before = unedited(tables)
    if not len(before.step):
        raise UspProfError(
            "there is no step with device work to replay", hint="record steps: usp-prof info shows which there are"
        )
    saved_ns, now, other = 0.0, made.layout, None
    if made.reordered:
        other = reschedule(moved() if made.is_moved else tables, made.reordered, made.layout)
        saved_ns = other.saved_ns
    for edit in made.reordered:
        now = relaid(now, edit)
    if not GAIN.holds(1 - (replayed_ns - saved_ns) / max(before.mean_measured_ns, 1.0)):
        raise UspProfError(
            "the edits would save more than the whole step",
            hint="check the clocks: usp-prof analyze RUN --section clock --section health",
        )
    error = float(before.error.max(initial=0.0))
    return Outcome(
        made,
        before.mean_measured_ns,
        replayed_ns,
        replayed_ns - saved_ns,
        error,
        _floor(tables),
        now,
        other,
        recording_cost(tables),
        cache(lambda: without_host(tables, made.graph, made.layout) - saved_ns),
        lambda: (unrecorded_ns(tables, graph_of(tables)), unrecorded_ns(tables, made.graph) - saved_ns),
        cache(lambda: _unexplained_error(tables, made, replayed_ns)),
    )


def _unexplained_error(tables: TableSet, made: Edited, replayed_ns: float) -> float:
    """Return how much the gain of the graph's edits changes if unexplained times were not there.

    The gain is compared with that of other cases: all unexplained idle time is gone before and after the edits; ranks
    that become like their peers also lose what they have more of it; the edited ranks make all waits disappear whose
    other side is unknown; or the first step, which got longer because its start moved, does not count.
    """
    if made.is_plain:
        return 0.0

    def step_ns(graph: Graph) -> float:
        return step_times(tables, graph, timeline_of(tables, graph)).mean_replayed_ns

    recorded_ns = unedited(tables).mean_measured_ns
    gain = share_saved(recorded_ns, replayed_ns)
    like_peers = ranks_made_like_peers(made.edits, tables.ranks)
    gains = [gain]
    if unexplained_shares(tables):
        explained_ns = tables.memo(
            "step without unexplained time", lambda: step_ns(without_unexplained(graph_of(tables), tables))
        )
        gains.append(share_saved(explained_ns, step_ns(without_unexplained(made.graph, tables))))
        if like_peers:
            gains.append(share_saved(recorded_ns, step_ns(as_little_as_peers(made.graph, tables, like_peers))))
    ranks = ranks_of_edits(made.edits, tables.ranks)
    if (at_once := without_waits_in_queue(made.graph, tables, ranks, recorded_ns)) is not None:
        gains.append(share_saved(recorded_ns, step_ns(at_once)))
    if like_peers and unmatched_waits(tables).any():
        gains.append(share_saved(recorded_ns, step_ns(without_unmatched_waits(made.graph, tables))))
    gains += [gain_after_first_step(made.graph, tables, gain), gain_without_lead(made.graph, tables, replayed_ns)]
    return max(abs(other - gain) for other in gains)


def _floor(tables: TableSet) -> float:
    """Return the minimum error of a gain, which is larger if ranks without devices share cores."""
    return FLOOR_ERROR if any(map(tables.ran_on_gpu, tables.ranks)) else SHARED_ERROR
