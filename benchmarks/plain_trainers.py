"""Predictions from recordings of a trainer in plain PyTorch, compared with recordings without the fault.

    python benchmarks/plain_trainers.py record FOLDER [LAYOUT ...]    # ten seconds per run, on an idle machine
    python benchmarks/plain_trainers.py compare FOLDER [LAYOUT ...] [--page docs/reference/accuracy.md]

The traces have no recorder's description, names or marks (`plain_trainer.py`). `compare` fails if a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from harness import ROOT, Prediction, accuracy, gain_of, in_cells, status, write_table

from usp_prof.findings import find
from usp_prof.model.edit import parse_edit
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

LAYOUTS = {
    "replicas": "DDP",
    "accumulation": "DDP with accumulation",
    "loop": "a loop of all-reduces",
    "sharded": "FSDP2",
    "hybrid": "hybrid FSDP2",
    "sharded-tensors": "FSDP2 and tensor parallelism",
    "experts": "all-to-alls of experts",
    "pipeline": "1F1B pipeline with FSDP2",
}
REPAIRS = {"slow-rank": "rank_as_peers=1", "host-pause": "no_pauses", "late-input": "no_input_wait"}
"""The change that repairs each fault of rank 1."""
CLEAN = "none"
BEGIN, END = "<!-- plain trainers: written by benchmarks/plain_trainers.py -->", "<!-- end of plain trainers -->"


def record(folder: Path, layout: str, fault: str) -> None:
    """Record a run, unless it exists."""
    target = folder / layout / fault
    if target.exists():
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command += ["benchmarks/plain_trainer.py", layout, fault, str(target)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, check=True, env=environment, timeout=300, capture_output=True)
    print(f"recorded {layout} {fault}", flush=True)


def compare(folder: Path, layout: str, fault: str) -> tuple[Prediction, bool]:
    """Predict the repair of a fault; also return whether the first finding names it on rank 1.

    What the run without the fault has as well, such as gradients that are reduced late, does not count.
    """
    cache = folder / "cache"
    faulty, clean = (open_run(folder / layout / half, cache_dir=cache) for half in (fault, CLEAN))
    gain = gain_of(predict(faulty.tables, [parse_edit(REPAIRS[fault])]), faulty, clean)
    usual = {finding.code for finding in find(clean.tables)}
    findings = [finding for finding in find(faulty.tables) if finding.code not in usual - {fault}]
    is_first = bool(findings) and (findings[0].code, findings[0].where.get("rank")) == (fault, 1)
    first = "" if is_first else f"  first: {findings[0].code if findings else 'none'}"
    print(f"{layout:16} {fault:11} measured {gain.truth:6.1%} predicted {gain.predicted:6.1%} ±{gain.error:.1%}{first}")
    return gain, is_first


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", default=list(LAYOUTS))
    parser.add_argument("--page", type=Path, help="write the table between its marks in this page")
    args = parser.parse_args()
    folder = args.folder.resolve()
    if args.what == "record":
        for layout in args.layouts:
            for fault in (CLEAN, *REPAIRS):
                record(folder, layout, fault)
        return 0
    lines = [
        "| plain PyTorch trainer | faults | saved | median error | worst | within the error | first finding |",
        "|---|---|---|---|---|---|---|",
    ]
    everything: list[tuple[Prediction, bool]] = []
    for layout in args.layouts:
        compared = [compare(folder, layout, fault) for fault in REPAIRS]
        everything += compared
        lines.append(_row(LAYOUTS[layout], compared))
    lines.append(_row("all", everything))
    write_table(lines, args.page, BEGIN, END)
    share = sum(is_first for _, is_first in everything) / len(everything)
    return status(accuracy([gain for gain, _ in everything], share))


def _row(label: str, compared: list[tuple[Prediction, bool]]) -> str:
    cells = in_cells([gain for gain, _ in compared])
    return f"| {label} | {cells} | {sum(is_first for _, is_first in compared)} of {len(compared)} |"


if __name__ == "__main__":
    sys.exit(main())
