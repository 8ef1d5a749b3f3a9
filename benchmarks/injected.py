"""Injected delays: how well repairs of known delays in real GPU runs are predicted.

    python benchmarks/injected.py FOLDER [FOLDER ...]      each folder holds one run's traces, of at least two ranks
    python benchmarks/injected.py FOLDER --page docs/reference/accuracy.md

Each run gets a host pause, a late input, late launches of all its communication, a slower host or slower kernels on one
rank, in five sizes, through the simulator of `tests/support/injection.py`, which shares no code with the replay. Every
second case is made again with launch queues that hold no more than in the recording, so that hosts wait for them.
Repairing the rank must restore the original run. Bars: the error is at most 3 points of the step in the median and 8 in
the worst case, the stated error holds in 9 of 10 cases, and the first finding that names a rank names the slow one in
95% of the cases. Cases in which another rank costs more in the run as recorded do not count for this last bar. Cases
whose delay costs less than 2% are omitted.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from harness import TEST_SUPPORT, case_options, write_table

sys.path.append(str(TEST_SUPPORT))

from injection import Delay, read_run, simulate, true_gain, write_run

from usp_prof.findings.search import search
from usp_prof.model.edit import Edit
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from injection import RankTrace

    from usp_prof.replay.step_times import StepTimes
    from usp_prof.tables.table_set import TableSet

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4)
FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0)
LEAST_COST = 0.02
BEGIN, END = "<!-- injected delays: written by benchmarks/injected.py -->", "<!-- end of injected delays -->"


@dataclass(frozen=True, slots=True)
class Case:
    """One delay in one run: the true and the predicted saving of its repair."""

    run: str
    delay: Delay
    truth: float
    gain: float
    error: float
    is_first: bool
    costs_most: bool
    """Whether no other rank costs more in the run as recorded."""

    @property
    def off(self) -> float:
        """Error of the prediction, as a share of the step."""
        return abs(self.gain - self.truth)


def main() -> int:
    """Run all cases and print or write the table; return 1 if a bar is missed."""
    options = case_options(__doc__)
    cases = [case for folder in options.folders for case in cases_of(folder)]
    write_table(table(cases), options.page, BEGIN, END)
    off = [case.off for case in cases]
    holds = np.mean([case.off <= case.error for case in cases])
    first = np.mean([case.is_first for case in cases if case.costs_most])
    return int(np.median(off) > 0.03 or max(off) > 0.08 or holds < 0.9 or first < 0.95)


def cases_of(folder: Path) -> list[Case]:
    """Return the cases of one run."""
    paths = [path for path in sorted(folder.rglob("*.json*")) if "_et_" not in path.name and path.name != "run.json"]
    ranks = read_run(paths)
    slow = ranks[(len(ranks) - 1) // 2 if len(ranks) > 2 else 1].rank
    original, usual_gain = _recorded(ranks, slow)
    timed = [
        (kind, share * original.mean_measured_ns / 1e3 / (1 - share))
        for kind in ("pause", "late_input", "late_sends")
        for share in SHARES
    ]
    factors = [(kind, factor) for kind in ("slow_host", "slow_kernels") for factor in FACTORS]
    delays = [Delay(kind, slow, size) for kind, size in (*timed, *factors)]
    delays += [Delay(delay.kind, slow, delay.size, fills_queue=True) for delay in delays[1::2]]
    cases = []
    for delay in delays:
        with TemporaryDirectory() as temporary:
            tables = _delayed(ranks, delay, Path(temporary))
            truth = true_gain(original, unedited(tables))
            if truth < LEAST_COST:
                continue
            repaired = predict(tables, [Edit("rank_as_peers", str(slow))])
            blamed_ranks = [
                rank for finding in search(tables).findings if (rank := finding.where.get("rank")) is not None
            ]
        cases.append(
            Case(
                folder.name,
                delay,
                truth,
                repaired.gain_fraction,
                repaired.error_fraction,
                is_first=blamed_ranks[:1] == [slow],
                costs_most=truth > (1 - truth) * usual_gain,
            )
        )
    return cases


def _recorded(ranks: list[RankTrace], slow: int) -> tuple[StepTimes, float]:
    """Return the steps without a delay, and the largest gain of repairing another rank than the slow one."""
    with TemporaryDirectory() as temporary:
        tables = _delayed(ranks, None, Path(temporary))
        edits = [Edit("rank_as_peers", str(rank)) for rank in tables.ranks if rank != slow]
        return unedited(tables), max(predict(tables, [edit]).gain_fraction for edit in edits)


def _delayed(ranks: list[RankTrace], delay: Delay | None, folder: Path) -> TableSet:
    simulate(ranks, delay)
    write_run(ranks, folder / "run")
    return open_run(folder / "run", cache_dir=folder / "cache").tables


def table(cases: list[Case]) -> list[str]:
    """Return the table in Markdown: one row per run and kind of delay, misses included."""
    lines = [
        "| run | delay | cases | truth | median error | worst | stated error holds | named first, if it costs most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        kind = case.delay.kind.replace("_", " ") + ("; queues fill" if case.delay.fills_queue else "")
        groups.setdefault((case.run, kind), []).append(case)
    for (run, kind), group in [*groups.items(), (("all", "all"), cases)]:
        off = [100 * case.off for case in group]
        low, high = (100 * bound([case.truth for case in group]) for bound in (min, max))
        holds, most = sum(case.off <= case.error for case in group), [case for case in group if case.costs_most]
        lines.append(
            f"| {run} | {kind} | {len(group)} | {_span(low, high)} | {np.median(off):.1f} "
            f"| {max(off):.1f} | {holds} of {len(group)} "
            f"| {sum(case.is_first for case in most)} of {len(most)} |"
        )
    return lines


def _span(low: float, high: float) -> str:
    """Format a range of percentages; equal ends are written once."""
    ends = dict.fromkeys((f"{low:.0f}", f"{high:.0f}"))
    return f"{'-'.join(ends)}%"


if __name__ == "__main__":
    sys.exit(main())
