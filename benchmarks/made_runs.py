"""Made runs: how well repairs of known delays are predicted in layouts of which no GPU recording is at hand.

    python benchmarks/made_runs.py [--cases 20] [--seed 1] [--named-waits] [--page docs/reference/accuracy.md]

The jobs come from the simulator of `tests/support/made_training.py`, which shares no code with the replay: replicas,
sharded weights, tensor parallelism, both of these together, experts, a ring of context parallelism, and pipelines of
two and of four stages with two replicas. Most sends and receives are in batches, whose kernels name neither group nor
peer. Layers, lengths, syncs, recorded data and the delayed rank are drawn. In three of ten cases, only one step has the
delay. One run in seven names no groups at all. Repairing the rank must give the job without the delay. Bars as in
`injected.py`. Cases whose delay costs less than 2% are omitted. Findings of kinds that the job has without the delay,
such as late input on all ranks, do not count as first. With `--named-waits`, the traces name what streams and hosts
wait for, as with PyTorch's `enable_cuda_sync_events`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from harness import TEST_SUPPORT, Prediction, at_least, at_most, in_cells, status, write_table

sys.path.append(str(TEST_SUPPORT))

from injection import true_gain
from made_training import DELAYS, LAYOUTS, STEPS, Delay, Job

from usp_prof.findings.search import search
from usp_prof.model.edit import Edit
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

LEAST_COST = 0.02
BEGIN, END = "<!-- made runs: written by benchmarks/made_runs.py -->", "<!-- end of made runs -->"


@dataclass(frozen=True, slots=True)
class Case:
    """One delay in one job: the saving of its repair, and whether the first finding names the rank."""

    layout: str
    saving: Prediction
    is_first: bool


def main() -> int:
    """Run all cases and print or write the table; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="cases per layout")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--named-waits", action="store_true", help="traces name what streams and hosts wait for")
    parser.add_argument("--page", type=Path, help="write the table between its marks in this page")
    options = parser.parse_args()
    drawn = np.random.default_rng(options.seed)
    made = [
        (layout, case_of(layout, drawn, names_waits=options.named_waits))
        for layout in LAYOUTS
        for _ in range(options.cases)
    ]
    cases = [case for _, case in made if case is not None]
    if not cases:
        print("no delay costs 2% of the step: more --cases, or another --seed")
        return 1
    write_table(table(cases), options.page, BEGIN, END)
    off = [100 * case.saving.off for case in cases]
    return status(
        [
            at_most("gain error, median", float(np.median(off)), 3, " points"),
            at_most("gain error, worst", max(off), 8, " points"),
            at_least("share within the stated error", float(np.mean([c.saving.holds for c in cases])), 0.9),
            at_least("share whose rank is named first", float(np.mean([c.is_first for c in cases])), 0.95),
        ]
    )


def case_of(layout: str, drawn: np.random.Generator, *, names_waits: bool) -> Case | None:
    """Return one case, or `None` if its delay costs too little."""
    job, varied = Job(layout, int(drawn.integers(10**6))), int(drawn.integers(10**6))
    job.names_waits = names_waits
    kind, rank = str(drawn.choice(DELAYS)), int(drawn.integers(job.world))
    share, place, factor = drawn.uniform(0.05, 0.4), drawn.random(), drawn.uniform(1.2, 2.5)
    only_in = int(drawn.integers(1, STEPS)) if drawn.random() < 0.3 else None
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        job.simulate(None, varied)
        job.write(folder / "usual")
        usual_tables = open_run(folder / "usual", cache_dir=folder / "cache").tables
        usual = unedited(usual_tables)
        size = factor if kind.startswith("slow") else share / (1 - share) * usual.mean_measured_ns / 1e3
        size *= 2 if only_in is not None and not kind.startswith("slow") else 1
        job.simulate(Delay(kind, rank, size, place, only_in), varied)
        job.write(folder / "delayed")
        tables = open_run(folder / "delayed", cache_dir=folder / "cache").tables
        truth = true_gain(usual, unedited(tables))
        if truth < LEAST_COST:
            return None
        repaired = predict(tables, [Edit("rank_as_peers", str(rank))])
        found_before = {f.code for f in search(usual_tables).findings if f.certain_gain_fraction >= LEAST_COST}
        blamed = [
            finding.where["rank"]
            for finding in search(tables).findings
            if finding.code not in found_before and "rank" in finding.where
        ]
    return Case(layout, Prediction(repaired.gain_fraction, repaired.error_fraction, truth), blamed[:1] == [rank])


def table(cases: list[Case]) -> list[str]:
    """Return the table in Markdown: one row per layout, misses included."""
    lines = [
        "| layout | cases | truth | median error | worst | stated error holds | slow rank named first |",
        "|---|---|---|---|---|---|---|",
    ]
    layouts = [layout for layout in LAYOUTS if any(case.layout == layout for case in cases)]
    for layout in (*layouts, "all"):
        own = [case for case in cases if layout in (case.layout, "all")]
        cells, first = in_cells([case.saving for case in own]), sum(case.is_first for case in own)
        lines.append(f"| {layout} | {cells} | {first} of {len(own)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
