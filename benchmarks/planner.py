"""Accuracy of the planner on runs that it was not fitted to: one table with each bar, and whether it is met.

    python benchmarks/planner.py [REFERENCE]      REFERENCE: the folder of tables, ../shared/reference by default

Splits are fixed here, before any fit: five folds by row number, each model left out, up to 8 nodes to predict 16, each
published source left out. Constants are fitted again inside each split (see `planner_fit.py`), so that no row is used
both to fit and to evaluate. Baselines fitted to the same rows are shown for comparison (`planner_baselines.py`): a
plain roofline, a rule of thumb, a textbook formula. The first choice is evaluated in every split. Exits with 1 if a bar
is missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import planner_memory
import planner_published
import planner_sweep
from planner_bars import HEAD
from planner_fit import read_sources
from planner_rows import megatron_memory, playbook


def main() -> int:
    """Print the table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/reference")
    if not (folder / "playbook.csv.gz").exists():
        sys.stdout.write(f"skipped: {folder} has no reference tables\n")
        return 0
    rows = playbook(folder)
    lines = planner_sweep.judge(rows.where(np.isfinite(rows.seconds)))
    lines += planner_memory.sweep(rows)
    lines += planner_published.judge(read_sources(folder))
    lines.append(planner_memory.megatron(megatron_memory(folder)))
    sys.stdout.write(HEAD + "\n".join(map(str, lines)) + "\n")
    return 0 if all(line.is_met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
