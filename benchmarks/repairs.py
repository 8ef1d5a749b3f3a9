"""Is the gain that a finding predicts the gain that the repair brings? Made-up pairs: with a fault, and without it.

    python benchmarks/repairs.py [--cases 24] [--seed 1]

Meshes, places and sizes are drawn; a pair is alike in everything but the fault. Prints predicted against true gain, how
often the fault is the first finding, and findings raised on the clean runs (schedules that could be chosen otherwise do
not count). Recorded pairs: `--recorded FAULTY REPAIRED`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from usp_prof.findings import find
from usp_prof.model.finding import Level
from usp_prof.run import Run, open_run
from usp_prof.synth.declaration import Declaration
from usp_prof.synth.write import write
from usp_prof.whatif.predict import unedited

CODES = {
    "slow_rank": "slow-rank",
    "slow_link": "slow-link",
    "late_input": "late-input",
    "gc_pause": "host-pause",
}
MESHES = ({"dp": 4}, {"dp": 2, "pp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2, "tp": 2}, {"dp": 8}, {"dp": 2, "pp": 4})
LEAST_GAIN = 0.03
"""A fault that costs less than this is none: kernels repeat within two or three per cent."""


@dataclass(frozen=True, slots=True)
class Case:
    """One pair: what was drawn, the true gain, and what was found."""

    fault: str
    mesh: str
    true_gain: float
    first: str
    predicted_gain: float
    raised_on_clean: int

    @property
    def hit(self) -> bool:
        """The fault is the first finding."""
        return self.first == CODES[self.fault]


def draw(rng: np.random.Generator, number: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Draw a fault and the declaration it goes into."""
    fault = list(CODES)[number % len(CODES)]
    meshes = [each for each in MESHES if fault != "slow_link" or len(each) > 1]  # a link is slow against its peers
    mesh = meshes[int(rng.integers(len(meshes)))]
    world = int(np.prod(list(mesh.values())))
    declared = {
        "mesh": mesh,
        "seed": int(rng.integers(1 << 20)),
        "work": {"steps": 5, "micro_batches": int(rng.choice([4, 8])) if mesh.get("pp", 1) > 1 else 2},
    }
    how: dict[str, Any] = {"kind": fault, "rank": int(rng.integers(world))}
    if fault in ("slow_rank", "slow_link"):
        how["factor"] = float(rng.uniform(1.15, 2.0) if fault == "slow_rank" else rng.uniform(6, 20))
    else:
        how["delay_ns"] = int(rng.uniform(2e6, 1e7))
    if fault == "slow_link":
        how |= {"axis": "dp", "rank": 0}
    return fault, declared, how


def made(declared: dict[str, Any], folder: Path) -> Run:
    """Write a declared run and open it."""
    write(Declaration.from_dict(declared), folder)
    return open_run(folder, cache_dir=folder / "cache")


def case(number: int, rng: np.random.Generator) -> Case:
    """Make a pair and ask for its findings."""
    fault, declared, how = draw(rng, number)
    with TemporaryDirectory() as folder:
        clean = made(declared, Path(folder) / "clean")
        faulty = made(declared | {"faults": [how]}, Path(folder) / "faulty")
        steps = [unedited(run.tables).mean_measured_ns for run in (faulty, clean)]
        found = find(faulty.tables)
        mine = next((each for each in found if each.code == CODES[fault]), None)
        raised = sum(each.level is not Level.NOTE for each in find(clean.tables))
    mesh = ",".join(f"{axis}={size}" for axis, size in declared["mesh"].items())
    gain = mine.gain_fraction if mine else 0.0
    return Case(fault, mesh, 1 - steps[1] / steps[0], found[0].code if found else "none", gain, raised)


def recorded(faulty: str, repaired: str) -> None:
    """Print what is predicted of a recorded run against its recorded repair."""
    before, after = (open_run(path) for path in (faulty, repaired))
    steps = [unedited(run.tables).mean_measured_ns for run in (before, after)]
    print(f"measured {steps[0] / 1e6:.1f} -> {steps[1] / 1e6:.1f} ms, gain {1 - steps[1] / steps[0]:.2%}")
    for each in find(before.tables):
        print(f"  {each.code:22} predicted {each.gain_fraction:7.2%} +- {each.error_fraction:.2%} {each.title}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recorded", nargs=2, metavar=("FAULTY", "REPAIRED"))
    args = parser.parse_args()
    if args.recorded:
        recorded(*args.recorded)
        return 0
    rng = np.random.default_rng(args.seed)
    cases = [case(number, rng) for number in range(args.cases)]
    for each in cases:
        off = (each.predicted_gain - each.true_gain) * 100
        mark = "" if each.hit or each.true_gain < LEAST_GAIN else f"  first: {each.first}"
        both = f"true {each.true_gain:7.2%} predicted {each.predicted_gain:7.2%} {off:+6.2f}"
        print(f"{each.fault:11} {each.mesh:16} {both}{mark}")
    counted = [each for each in cases if each.true_gain >= LEAST_GAIN]
    errors = [abs(each.predicted_gain - each.true_gain) * 100 for each in counted]
    hits = sum(each.hit for each in counted) / max(len(counted), 1)
    print(f"gain error: median {np.median(errors):.2f} points (bar 3), worst {max(errors):.2f} (bar 6)")
    print(f"fault is the first finding in {hits:.1%} of {len(counted)} (bar 95 %)")
    print(f"findings on {len(cases)} clean runs: {sum(each.raised_on_clean for each in cases)} (bar 1 per 50)")
    return 0 if hits >= 0.95 and np.median(errors) <= 3 and max(errors) <= 6 else 1


if __name__ == "__main__":
    sys.exit(main())
