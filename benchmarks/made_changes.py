"""Made changes: how well the gain of a change on all ranks is predicted in made jobs.

    python benchmarks/made_changes.py [--jobs 5] [--seed 1] [--page docs/reference/accuracy.md]

Jobs are drawn as in `made_runs.py`, and name their groups. Each is simulated as it is and with each change: no input
wait, no blocking calls, faster or no communication, faster compute. The bars are those of `injected.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from harness import TEST_SUPPORT, Prediction, at_least, at_most, in_cells, status, write_table

sys.path.append(str(TEST_SUPPORT))

from changed_training import CHANGES, ChangedJob
from injection import true_gain
from made_training import LAYOUTS

from usp_prof.model.edit import parse_edit
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

BEGIN, END = "<!-- made changes: written by benchmarks/made_changes.py -->", "<!-- end of made changes -->"


def main() -> int:
    """Predict all changes and print or write the table; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5, help="jobs per layout")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the table between its marks in this page")
    options = parser.parse_args()
    drawn = np.random.default_rng(options.seed)
    cases: dict[str, list[Prediction]] = {change: [] for change in CHANGES}
    for layout in LAYOUTS:
        for _ in range(options.jobs):
            job, varied = ChangedJob(layout, int(drawn.integers(10**6))), int(drawn.integers(10**6))
            for change, prediction in predictions(job, varied).items():
                cases[change].append(prediction)
    every = [prediction for of_change in cases.values() for prediction in of_change]
    write_table(table(cases | {"all": every}), options.page, BEGIN, END)
    off = [100 * prediction.off for prediction in every]
    return status(
        [
            at_most("gain error, median", float(np.median(off)), 3, " points"),
            at_most("gain error, worst", max(off), 8, " points"),
            at_least("share within the stated error", float(np.mean([case.holds for case in every])), 0.9),
        ]
    )


def predictions(job: ChangedJob, varied: int) -> dict[str, Prediction]:
    """Return the predicted and the true gain of each change of a job."""
    with TemporaryDirectory() as temporary:
        folder, steps = Path(temporary), {}
        for number, change in enumerate(("", *CHANGES)):
            job.change = change
            job.simulate(None, varied)
            job.write(folder / f"run{number}")
            tables = open_run(folder / f"run{number}", cache_dir=folder / "cache").tables
            steps[change] = unedited(tables)
            if not change:
                predicted = {edit: predict(tables, [parse_edit(edit)]) for edit in CHANGES}
        return {
            change: Prediction(prediction.gain_fraction, prediction.error_fraction, true_gain(steps[change], steps[""]))
            for change, prediction in predicted.items()
        }


def table(cases: dict[str, list[Prediction]]) -> list[str]:
    """Return the table in Markdown: one row per change, misses included."""
    lines = ["| change | cases | truth | median error | worst | stated error holds |", "|---|---|---|---|---|---|"]
    for change, own in cases.items():
        name = change if change == "all" else f"`{change.partition(':')[0]}`"
        lines.append(f"| {name} | {in_cells(own)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
