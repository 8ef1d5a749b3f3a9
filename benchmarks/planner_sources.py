"""Accuracy of the shipped planner per published source, through `usp-prof plan --table`.

    python benchmarks/planner_sources.py [REFERENCE]     REFERENCE: folder of tables, default ../shared/reference

Every source is split into two halves by a hash of the row's configuration. Constants are chosen on the first half only;
both halves are printed. Per source: rows, median and 90th percentile of the error of the step time, share of steps
inside their 80% interval, layouts that ran but were refused (`fits` = 0), the same for memory, and failed layouts that
were accepted.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pandas as pd
from planner_rows import Measured, long_context, megatron_memory, playbook, published, published_2026, vtrain

from usp_prof.extras.planner.predict import records
from usp_prof.extras.planner.table import stacked_cases

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.extras.planner.table import Case

    Mask = NDArray[np.bool_]

OF_PUBLISHED = (
    "dgxc.csv", "megatron_bridge.csv", "nemo_history.csv", "llm_foundry.csv", "torchtitan.csv", "nemo_automodel.csv",
)  # fmt: skip
HEAD = "| source | half | rows | median | p90 | in 80% interval | refused | memory rows | memory median | memory p90 |"


def main() -> int:
    """Print the table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/reference")
    if not (folder / "published_2026.csv").exists():
        sys.stdout.write(f"skipped: {folder} has no reference tables\n")
        return 0
    sys.stdout.write(f"{HEAD}\n{'|---' * (HEAD.count('|') - 1)}|\n")
    judged: list[pd.DataFrame] = []
    for source, rows in sources(folder):
        table = judge(source, rows)
        judged.append(table)
        for half in (0, 1):
            sys.stdout.write(line(source, str(half + 1), table[table.half == half]))
    table = pd.concat(judged)
    new = table[table.is_new]
    for name, rows_of in (("all", table), ("all of 2026", new)):
        sys.stdout.write(line(name, "both", rows_of))
    failed = table[table.failed]
    sys.stdout.write(f"failed layouts accepted: {failed.fits.sum()} of {len(failed)} ({failed.fits.mean():.1%})\n")
    return 0


def sources(folder: Path) -> list[tuple[str, Measured]]:
    """Return all sources, the newest first."""
    new = published_2026(folder)
    by_group = [(str(group), new.where((new.rows.group == group).to_numpy())) for group in new.rows.group.unique()]
    sweep = playbook(folder)
    by_model = [
        (f"playbook {model}", sweep.where((sweep.rows.model == model).to_numpy()))
        for model in sweep.rows.model.unique()
    ]
    old = [(file.removesuffix(".csv"), published(folder, file)) for file in OF_PUBLISHED]
    old.append(("nemo_longseq_cp", long_context(folder)))
    return [*by_group, *by_model, *old, ("vTrain", vtrain(folder)), ("Megatron memory", megatron_memory(folder))]


def judge(source: str, rows: Measured) -> pd.DataFrame:
    """Predict every row and compare it with its measurement."""
    cases = rows.cases
    configurations, models = [case.configuration for case in cases], [case.model for case in cases]
    predictions = records(stacked_cases(cases), configurations, models, "palm")
    seconds = np.array([prediction.step_ns for prediction in predictions]) / 1e9
    low, high = (
        np.array([getattr(prediction, name) for prediction in predictions]) / 1e9
        for name in ("step_low_ns", "step_high_ns")
    )
    # Peaks that a framework reports are those of its first rank; the planner's are those of the fullest.
    peaks = np.array([prediction.footprint.total_bytes for prediction in predictions])
    measured = np.isfinite(rows.seconds) | np.isfinite(rows.memory_bytes)
    return pd.DataFrame(
        {
            "source": source,
            "half": [half_of(case) for case in cases],
            "ratio": seconds / rows.seconds,
            "inside": np.where(np.isfinite(rows.seconds), (low <= rows.seconds) & (rows.seconds <= high), np.nan),
            "memory_ratio": peaks / rows.memory_bytes,
            "fits": np.array([prediction.fits for prediction in predictions]),
            "failed": ~measured,
            "is_new": "truth_s" in rows.rows,
        }
    )


def half_of(case: Case) -> int:
    """Return the half of a row: 0 or 1, by a hash of its model, device and configuration."""
    model = replace(case.model, name="", flop_per_token={}, layer_kinds=(), layer_order=())
    return crc32(f"{model}{case.cluster.device}{case.configuration}".encode()) % 2


def line(source: str, half: str, table: pd.DataFrame) -> str:
    """Format one line of the table."""
    ran = table[~table.failed]
    error, memory = (ran.ratio.dropna() - 1).abs(), (ran.memory_ratio.dropna() - 1).abs()
    if not len(ran):
        return ""
    cells = [
        source, half, len(error), _percent(error.median()), _percent(error.quantile(0.9)), _percent(ran.inside.mean()),
        f"{(~ran.fits).sum()} of {len(ran)}", len(memory), _percent(memory.median()), _percent(memory.quantile(0.9)),
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |\n"


def _percent(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else ""


if __name__ == "__main__":
    sys.exit(main())
