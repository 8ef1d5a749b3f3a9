"""Accuracy of the shipped planner per published source, through `usp-prof plan --table`.

    python benchmarks/planner_sources.py [REFERENCE [PAGE]]
    python benchmarks/planner_sources.py ../shared/reference docs/reference/accuracy.md

REFERENCE is the folder of tables, by default ../shared/reference. Every source is split into two halves by a hash of
the row's configuration; cells show both. Per source: rows, median and 90th percentile of the error of the step time,
share of steps inside their 80% interval, layouts that ran but were refused (`fits` = 0), and the error of memory.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pandas as pd
from harness import write_table
from planner_memory import failed_with_enough_memory
from planner_rows import Measured, long_context, megatron_memory, playbook, published, published_2026, vtrain

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.predict import records
from usp_prof.extras.planner.table import stacked_cases
from usp_prof.model.configuration import Recompute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.extras.planner.table import Case

    Mask = NDArray[np.bool_]

TITLES = {
    "MLPerf v4.1 gpt3": "MLPerf v4.1, GPT-3 175B (fp8)",
    "MLPerf v5.0 llama31_405b": "MLPerf v5.0, Llama 405B (fp8)",
    "mlperf_8b": "MLPerf v5.1, Llama 8B (fp8, fp4)",
    "simumax_dense": "SimuMax, dense, B200 (bf16)",
    "megatron_moe": "Megatron-LM, mixtures of experts",
    "dgxc.csv": "DGX Cloud",
    "megatron_bridge.csv": "Megatron-Bridge",
    "nemo_history.csv": "NeMo, older releases",
    "llm_foundry.csv": "llm-foundry",
    "torchtitan.csv": "torchtitan",
    "nemo_automodel.csv": "NeMo AutoModel",
}
"""Names of groups of rows, and of files."""
HEAD = (
    "| Source | Rows (half 1, half 2) | Median error | 90th percentile | In 80% interval | Refused although it ran "
    "| Median error of memory |"
)
BEGIN, END = "<!-- sources: from benchmarks/planner_sources.py -->", "<!-- end of sources -->"


def main() -> int:
    """Write the table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/reference")
    if not (folder / "published_2026.csv").exists():
        sys.stdout.write(f"skipped: {folder} has no reference tables\n")
        return 0
    judged = {source: judge(rows) for source, rows in sources(folder)}
    lines = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    for source, table in judged.items():
        lines.append(line(source, [table[table.half == half] for half in (0, 1)]))
    table = pd.concat(judged.values())
    lines.append(line("all", [table]))
    lines.append(line("the first eight sources", [table[table.is_new]]))
    write_table(lines, Path(sys.argv[2]) if len(sys.argv) > 2 else None, BEGIN, END)
    sweep = playbook(folder)
    failed, by_rule = ~np.isfinite(sweep.memory_bytes), sweep.refused_failures
    accepted = judge(sweep).fits.to_numpy() & failed
    has_enough = failed_with_enough_memory(sweep)
    for title, layouts in (
        ("failed layouts accepted", failed),
        ("without those that failed although a layout that needs no less memory ran", failed & ~has_enough),
    ):
        count, wrong = int(layouts.sum()) + by_rule, int((layouts & accepted).sum())
        sys.stdout.write(f"{title}: {wrong} of {count} ({wrong / count:.1%})\n")
    sys.stdout.write(f"failed layouts that a rule of nanotron refuses: {by_rule}\n")
    return 0


def sources(folder: Path) -> list[tuple[str, Measured]]:
    """Return all sources, the newest first."""
    new = published_2026(folder)
    groups = new.rows.group.unique()
    by_group = [(TITLES.get(group, group), new.where((new.rows.group == group).to_numpy())) for group in groups]
    sweep = playbook(folder)
    by_model = [
        (f"Ultra-Scale Playbook {model}", sweep.where((sweep.rows.model == model).to_numpy()))
        for model in sweep.rows.model.unique()
    ]
    old = [(title, published(folder, file)) for file, title in TITLES.items() if file.endswith(".csv")]
    old.append(("NeMo, 4,096 to 1,048,576 tokens", long_context(folder)))
    tests = ("Megatron-LM tests, memory", megatron_memory(folder))
    return [*by_group, *old, ("vTrain, A100 node", vtrain(folder)), *by_model, tests]


def judge(rows: Measured) -> pd.DataFrame:
    """Predict every row and compare it with its measurement."""
    cases = rows.cases
    configurations, models = [case.configuration for case in cases], [case.model for case in cases]
    columns = stacked_cases(cases)
    predictions = records(columns, configurations, models, "palm")
    seconds = np.array([prediction.step_ns for prediction in predictions]) / 1e9
    low, high = (
        np.array([getattr(prediction, name) for prediction in predictions]) / 1e9
        for name in ("step_low_ns", "step_high_ns")
    )
    peaks = rows.peaks(memory.stage_parts(columns))
    measured = np.isfinite(rows.seconds) | np.isfinite(rows.memory_bytes)
    return pd.DataFrame(
        {
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
    layout = case.configuration
    if layout.recompute_modules or layout.offload_layers:  # from a recipe, so the published row has no recomputation
        layout = replace(layout, recompute=Recompute.NONE, recompute_modules=(), offload_layers=0)
    return crc32(f"{model}{case.cluster.device}{layout}".encode()) % 2


def line(source: str, halves: Sequence[pd.DataFrame]) -> str:
    """Format one line of the table; each cell has the figures of both halves, without halves that have no rows."""
    ran = [rows for half in halves if len(rows := half[~half.failed])]
    errors = [(rows.ratio.dropna() - 1).abs() for rows in ran]
    memories = [(rows.memory_ratio.dropna() - 1).abs() for rows in ran]
    columns = (
        [str(len(rows)) for rows in ran],
        [_percent(error.median()) for error in errors],
        [_percent(error.quantile(0.9)) for error in errors],
        [_percent(rows.inside.mean()) for rows in ran],
        [f"{(~rows.fits).sum()} of {len(rows)}" for rows in ran],
        [_percent(error.median()) for error in memories],
    )
    cells = [", ".join(filter(None, column)) or "-" for column in columns]
    return f"| {' | '.join([source, *cells])} |"


def _percent(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else ""


if __name__ == "__main__":
    sys.exit(main())
