"""Predicted against true gain of a repair, on synthetic pairs of runs with and without a fault.

    python benchmarks/repairs.py [--cases 64] [--seed 1] [--kind slow_rank] [--clean 50]

Meshes, places and sizes are drawn (`repair_pairs.py`); the two runs of a pair differ only in the fault. Prints

    predicted against true gain
    how often the fault is the first finding
    findings raised on clean runs (opportunities do not count)

For recorded pairs, see `recorded.py`. Seeds from 1000 on were not used to choose thresholds.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from harness import Prediction, accuracy, at_most, gain_of, repair_of, status
from repair_pairs import KINDS, MESHES, Declared, base, speed

from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.findings import find
from usp_prof.model.finding import Level
from usp_prof.run import Run, open_run

LEAST_GAIN = 0.03
"""Minimum cost of a fault; kernels repeat only to within two or three percent."""


@dataclass(frozen=True, slots=True)
class Case:
    """One pair: its settings, the true gain, and the findings."""

    kind: str
    mesh: str
    gain: Prediction
    first: str
    hit: bool


def made(declared: Declared, folder: Path) -> Run:
    """Write a declared run and open it."""
    write(Declaration.from_dict(declared), folder)
    return open_run(folder, cache_dir=folder / "cache")


def case(name: str, rng: np.random.Generator) -> Case:
    """Draw a pair and compute its findings."""
    kind = KINDS[name]
    pair = kind.draw(rng)
    with TemporaryDirectory() as folder:
        faulty, repaired = (
            made(declaration, Path(folder) / half) for half, declaration in (("a", pair.faulty), ("b", pair.repaired))
        )
        findings, repair = repair_of(faulty, kind.code, pair.edit, kind.in_both)
        gain = gain_of(repair, faulty, repaired)
    expected = next((finding for finding in findings if finding.code == kind.code), None)
    mesh = ",".join(f"{axis}={size}" for axis, size in pair.faulty["mesh"].items())
    opportunity = expected is not None and expected.level is Level.NOTE
    ranked = [finding for finding in findings if (finding.level is Level.NOTE) == opportunity]
    nothing_wrong = not opportunity or ranked == findings
    return Case(
        name,
        mesh,
        gain,
        findings[0].code if findings else "none",
        expected is not None and ranked[0].code == kind.code and nothing_wrong,
    )


def clean(number: int, seed: int) -> list[str]:
    """Write a clean run over a random mesh, and return the codes of its findings."""
    rng = np.random.default_rng([seed, 1, number])
    meshes = (*MESHES, {"cp": 2, "dp": 2}, {"dp": 4, "ep": 2}, {"pp": 2, "tp": 2}, {"tp": 4})
    declared = base(rng, meshes[int(rng.integers(len(meshes)))])
    declared["speed"] = speed(int(rng.uniform(300_000, 700_000)))
    with TemporaryDirectory() as folder:
        findings = find(made(declared, Path(folder) / "clean").tables)
    return [finding.code for finding in findings if finding.level is not Level.NOTE]


def main() -> int:
    """Draw pairs and clean runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=list(KINDS), default=[])
    parser.add_argument("--clean", type=int, default=0, help="clean runs to look at")
    args = parser.parse_args()
    names, cases = args.kind or list(KINDS), []
    for number in range(args.cases):
        drawn = case(names[number % len(names)], np.random.default_rng([args.seed, 0, number]))
        cases.append(drawn)
        points = 100 * (drawn.gain.predicted - drawn.gain.truth)
        mark = "" if drawn.hit or drawn.gain.truth < LEAST_GAIN else f"  first: {drawn.first}"
        both = f"true {drawn.gain.truth:7.2%} predicted {drawn.gain.predicted:7.2%} {points:+6.2f}"
        print(f"{drawn.kind:18} {drawn.mesh:16} {both}{mark}", flush=True)
    bars = []
    counted = [drawn for drawn in cases if drawn.gain.truth >= LEAST_GAIN]
    print(f"{len(names)} kinds of pair; {len(counted)} of {len(cases)} cost {LEAST_GAIN:.0%} or more")
    if counted:
        bars += accuracy([drawn.gain for drawn in counted], sum(drawn.hit for drawn in counted) / len(counted))
    if args.clean:
        raised = [code for number in range(args.clean) for code in clean(number, args.seed)]
        print(f"findings on {args.clean} clean runs: {len(raised)} {sorted(set(raised))}")
        bars.append(at_most("findings per 50 clean runs", len(raised) * 50 / max(args.clean, 50), 1))
    return status(bars)


if __name__ == "__main__":
    sys.exit(main())
