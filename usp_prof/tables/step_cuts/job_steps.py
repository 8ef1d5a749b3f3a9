"""Steps of the job: cut once for all ranks if some rank's device work has no step marks.

In production often only device activity is recorded, without step marks. Guessing steps for each rank separately would
give windows of different lengths, and stragglers that do not exist. So steps are cut for the whole run:
  1. One rank is the reference: a rank with marks, else the complete periods of one rank's device work.
  2. The reference assigns its calls to steps. The same calls on other members of the group are in the same step, so a
     boundary on another rank is between its last call of one step and its first call of the next.
  3. Within that interval, the other rank is cut where its work matches the reference's boundaries (the same kernels
     before and after), else after the parameter update, else at the first call of the next step.
  4. Steps that are complete on all ranks remain. A rank that shares no calls, or cannot be cut this way, has no steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.table import Columns
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import first_few
from usp_prof.model.topology import ranks_in_key
from usp_prof.tables.matching.shared_calls import shared_calls
from usp_prof.tables.step_cuts.boundaries import CALLS, Cut, cut_like, recut, some_of, with_host
from usp_prof.tables.step_cuts.device_work import Alphabet, DeviceWork, device_work, whole_periods
from usp_prof.tables.table_set import Source

PATTERN, WINDOW = "pattern", "window"
_GUESSED = (PATTERN, WINDOW)
_REPLACED = ("no_steps", "steps_inferred", "work_outside_steps")
"""Health codes of a rank's own guess, replaced by those of the job's cut."""
RECORD_MARKS = "record with CPU activities and call profiler.step() once a step, or mark steps with record_function"
_TRIED = 4
"""Maximum number of ranks whose device work is searched for periods."""


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """A run's tables and health with the job's steps applied."""

    sources: Mapping[int, Source]
    health: list[HealthRow]
    incomparable: str = ""
    """Why steps of different ranks cannot be compared; empty if they can."""


def cut(sources: Mapping[int, Source], health: Iterable[HealthRow]) -> Stepped:
    """Cut the run's steps once for all ranks, if some rank has no marks on its device work."""
    rows = list(health)
    own = {rank: Columns(source.view("steps")) for rank, source in sources.items()}
    guessed = [
        rank
        for rank, source in sources.items()
        if own[rank].matches("source", *_GUESSED).any() and source.view("kernels").num_rows > 0
    ]
    if not guessed:
        return Stepped(sources, rows)
    cuts = _Job(sources, own, guessed).cuts()
    # Steps that are complete on every rank that could be cut.
    common = sorted(set.intersection(*(set(of_rank.number.tolist()) for of_rank in cuts.values()))) if cuts else []
    if not common:
        return _uncut(sources, own, guessed, rows)
    wrapped = dict(sources)
    for rank, of_rank in cuts.items():
        is_common = np.isin(of_rank.number, common)
        if rank in guessed:
            start, end = of_rank.at_ns[:-1][is_common], of_rank.at_ns[1:][is_common]
            steps = with_host(sources[rank], of_rank.number[is_common], start, end, of_rank.source)
            wrapped[rank] = recut(sources[rank], rank, steps)
        elif not is_common.all():
            steps = some_of(own[rank], np.isin(own[rank]["step"], common))
            wrapped[rank] = recut(sources[rank], rank, steps)
    lost = sorted(set(guessed) - set(cuts))
    nothing = np.zeros(0, np.int64)
    for rank in lost:
        wrapped[rank] = recut(sources[rank], rank, with_host(sources[rank], nothing, nothing, nothing, CALLS))
    is_recut = {*cuts, *lost}
    rows = [row for row in rows if row.rank not in is_recut or row.code not in _REPLACED]
    return Stepped(wrapped, rows + _health(cuts, guessed, lost, len(common)))


class _Job:
    """Step cut of a run in progress."""

    def __init__(self, sources: Mapping[int, Source], own: Mapping[int, Columns], guessed: list[int]) -> None:
        self._sources, self._own, self._guessed = sources, own, guessed
        self._alphabet = Alphabet()
        self._work: dict[int, DeviceWork] = {}
        self._parts = {rank: Columns(source.view("collectives")) for rank, source in sources.items()}

    def cuts(self) -> dict[int, Cut]:
        """Cut as many ranks as possible; none if no rank shows where a step starts and no periods repeat."""
        cuts = self._marked() or self._first()
        # Each round cuts the ranks that share calls with one already cut.
        while True:
            left = [rank for rank in self._guessed if rank not in cuts]
            tried = {rank: self._alike(rank, cuts) for rank in left}
            reached = {rank: cut for rank, cut in tried.items() if cut is not None}
            if not reached:
                return dict(sorted(cuts.items()))
            cuts |= reached

    def _marked(self) -> dict[int, Cut]:
        """Return the cuts of ranks whose steps are marked, with marks linked to device work."""
        return {
            rank: self._own_cut(rank)
            for rank in self._sources
            if rank not in self._guessed
            and len(self._own[rank])
            and (Columns(self._sources[rank].view("kernels"))["launch_event"] >= 0).any()
        }

    def _own_cut(self, rank: int) -> Cut:
        steps = self._own[rank]
        return Cut(steps["step"], np.r_[steps["start_ns"], steps["end_ns"][-1:]], str(steps["source"][0]))

    def _first(self) -> dict[int, Cut]:
        """Return the first cut: by host patterns on the rank with most device work, else by repeated device work."""
        ranks = sorted(self._guessed, key=lambda rank: (-self._sources[rank].view("activities").num_rows, rank))
        for rank in ranks:
            if self._has_host(rank) and self._own[rank].matches("source", PATTERN).all():
                return {rank: self._own_cut(rank)}
        # Ranks with a host recording that shows no repetition are not searched again.
        tried = {rank: self._periods(rank) for rank in ranks[:_TRIED] if not self._has_host(rank)}
        cuts = {rank: cut for rank, cut in tried.items() if cut is not None}
        most = max(cuts, key=lambda rank: len(cuts[rank].at_ns), default=None)
        return {} if most is None else {most: cuts[most]}

    def _has_host(self, rank: int) -> bool:
        return self._sources[rank].view("ops").num_rows > 0

    def _periods(self, rank: int) -> Cut | None:
        """Cut a rank at the complete periods of its device work; return None if nothing repeats."""
        work = self.work(rank)
        periods = whole_periods(work)
        if periods is None:
            return None
        # Boundaries are places in the sequence of work: the start of the work there, for the last the end of all work.
        place = np.r_[periods.start, periods.end[-1:]]
        at = np.where(place == 0, work.first_ns, np.append(work.start_ns, work.last_ns)[place])
        return Cut(np.arange(len(periods)), at, PATTERN if len(self._sources) == 1 else CALLS)

    def work(self, rank: int) -> DeviceWork:
        """Return the memoized device work of a rank."""
        if rank not in self._work:
            self._work[rank] = device_work(self._sources[rank], self._alphabet)
        return self._work[rank]

    def _alike(self, rank: int, cuts: Mapping[int, Cut]) -> Cut | None:
        """Cut a rank like the cut rank with which it shares the most calls."""
        # The rank with the most shared calls so far, and the rows of the shared calls on it and on this rank.
        nearest, their_rows, own_rows = -1, np.zeros(0, np.int64), np.zeros(0, np.int64)
        for other, cut in cuts.items():
            period = int(np.median(np.diff(cut.at_ns)))
            rows_of_other, rows = shared_calls(self._parts[other], other, self._parts[rank], rank, period)
            if len(rows) > len(own_rows):
                nearest, their_rows, own_rows = other, rows_of_other, rows
            if len(own_rows) and len(own_rows) == len(self._parts[rank]):
                break
        if nearest < 0 or not len(self.work(rank)):
            return None
        their_start, start = self._parts[nearest]["start_ns"][their_rows], self._parts[rank]["start_ns"][own_rows]
        return cut_like(cuts[nearest], self.work(nearest), their_start, self.work(rank), start)


def _uncut(
    sources: Mapping[int, Source], own: Mapping[int, Columns], guessed: list[int], rows: list[HealthRow]
) -> Stepped:
    """Assign one window to each guessed rank; ranks whose windows have different calls are not comparable."""
    wrapped = dict(sources)
    for rank in guessed:
        work = Columns(sources[rank].view("activities"))
        if own[rank].matches("source", WINDOW).all() or (sources[rank].view("ops").num_rows and len(sources) == 1):
            continue
        begin = work["start_ns"]
        start, end = np.array([begin.min()], np.int64), np.array([(begin + work["dur_ns"]).max()], np.int64)
        wrapped[rank] = recut(sources[rank], rank, with_host(sources[rank], np.zeros(1, np.int64), start, end, WINDOW))
    if len(sources) == 1 or _hold_the_same(sources, own, guessed):
        return Stepped(wrapped, rows)
    doubt = (
        f"steps are unknown on {len(guessed)} of {len(sources)} ranks, and their recordings do not contain the same "
        f"calls; {RECORD_MARKS}"
    )
    rows = [*rows, HealthRow("steps_not_comparable", Severity.ERROR, count=len(guessed), detail=doubt)]
    return Stepped(wrapped, rows, doubt)


def _hold_the_same(sources: Mapping[int, Source], own: Mapping[int, Columns], guessed: list[int]) -> bool:
    """Return whether all ranks have one window each, with equally many calls on all members of every group."""
    if len(guessed) < len(sources) or any(len(own[rank]) > 1 for rank in guessed):
        return False
    calls = {rank: _calls_by_group(source) for rank, source in sources.items()}
    for group in sorted(set().union(*calls.values())):
        members = [rank for rank in ranks_in_key(group) or sources if rank in sources]
        if len({calls[rank].get(group, 0) for rank in members}) > 1:
            return False
    return True


def _calls_by_group(source: Source) -> dict[str, int]:
    """Count a rank's calls in each group, by the group's key (name@ranks)."""
    codes, groups = Columns(source.view("collectives")).codes("group")
    return {
        group: count
        for group, count in zip(groups, np.bincount(codes, minlength=len(groups)).tolist(), strict=False)
        if count
    }


def _health(cuts: Mapping[int, Cut], guessed: list[int], lost: list[int], steps: int) -> list[HealthRow]:
    """Return health rows: how steps were cut, and on which ranks this failed."""
    cut_ranks = [rank for rank in guessed if rank in cuts]
    rows = []
    if any(cuts[rank].source == CALLS for rank in cut_ranks):
        detail = (
            f"there are no step marks, so steps are the {steps} complete periods of the calls that all ranks share; "
            f"the start of a step within the period is unknown; {RECORD_MARKS}"
        )
        rows.append(HealthRow("steps_by_calls", Severity.INFO, count=len(cut_ranks), detail=detail))
    elif cut_ranks:
        detail = (
            f"there are no step marks, so steps are the {steps} complete periods of the device's work; the start of a "
            f"step within the period is unknown; {RECORD_MARKS}"
        )
        rows.append(HealthRow("steps_inferred", Severity.INFO, count=steps, detail=detail))
    if lost:
        detail = (
            f"ranks {first_few(lost, 8, ', ...')} share no calls with the others, so their steps are unknown and no "
            f"figure per step includes them; {RECORD_MARKS}"
        )
        rows.append(HealthRow("steps_unknown", Severity.ERROR, count=len(lost), detail=detail))
    return rows
