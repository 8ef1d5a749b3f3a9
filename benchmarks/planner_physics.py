"""Physics of the planner: random pairs of table rows that differ in one input, such as twice the bandwidth.

    python benchmarks/planner_physics.py [--checks 6000] [--seed 1]

Each law compares the two predictions of a pair, through the code of `usp-prof plan --table`. Tolerances, and pairs that
break a law, are explained in `docs/reference/accuracy.md`. Pairs with nanotron's measured stalls are excluded. Exits
with 1 if more than 1 in 1,000 checks is broken.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from usp_prof.extras.planner.profiles import PROFILES
from usp_prof.extras.planner.table import predict_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.extras.planner.predict import Prediction

Row = dict[str, Any]

DENSE = ("Llama-3.2-1B", "Llama-3-8B", "Nemotron-4-15B", "Qwen2.5-72B", "GPT-3-175B", "Llama-3-405B")
MIXTURES = ("Qwen3-30B-A3B", "Mixtral-8x7B", "GPT-OSS-120B", "Llama-4-Maverick", "DeepSeek-V3", "Kimi-K2")
DEVICES = ("A100", "H100", "H800", "H200", "B200", "B300", "GB200", "GB300", "MI300X", "MI355X")
SPLIT_BACKWARD = ("zb-h1", "zbv", "dualpipev")
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Law:
    """A change of one input, and what may not happen; `tolerance` is a fraction of the first prediction."""

    name: str
    column: str
    before: Any
    after: Any
    breaks: Callable[[Prediction, Prediction, float], bool]
    tolerance: float = ROUNDING


def slower(first: Prediction, second: Prediction, tolerance: float) -> bool:
    """Return whether the second prediction is slower."""
    return second.step_ns > first.step_ns * (1 + tolerance)


def faster(first: Prediction, second: Prediction, tolerance: float) -> bool:
    """Return whether the second prediction is faster."""
    return second.step_ns < first.step_ns * (1 - tolerance)


def larger(first: Prediction, second: Prediction, tolerance: float) -> bool:
    """Return whether the second prediction needs more memory."""
    return second.footprint.total_bytes > first.footprint.total_bytes * (1 + tolerance)


def smaller(first: Prediction, second: Prediction, tolerance: float) -> bool:
    """Return whether the second prediction needs less memory."""
    return second.footprint.total_bytes < first.footprint.total_bytes * (1 - tolerance)


def less_likely(first: Prediction, second: Prediction, tolerance: float) -> bool:
    """Return whether the second prediction fits with a lower probability."""
    return second.fit_probability < first.fit_probability - tolerance


DOUBLED = "doubled"
MOST_BROKEN = 0.001
HIDES = 0.003
"""Longer compute or messages hide more of other messages."""
LAWS = (
    Law("twice the network is not slower", "network", 25, 50, slower),
    Law("larger nodes are not slower", "node", 4, 8, slower, 0.02),
    Law("more efficient products are not slower", "efficiency", 0.4, 0.7, slower, HIDES),
    Law("more usable memory fits more likely", "memory_share", 0.8, 0.95, less_likely),
    Law("twice the micro-batches are not faster", "micro_batches", DOUBLED, DOUBLED, faster),
    Law("twice the micro-batches do not need less memory", "micro_batches", DOUBLED, DOUBLED, smaller),
    Law("larger micro-batches are not faster", "micro_batch", DOUBLED, DOUBLED, faster, HIDES),
    Law("larger micro-batches do not need less memory", "micro_batch", DOUBLED, DOUBLED, smaller),
    Law("longer sequences are not faster", "sequence", DOUBLED, DOUBLED, faster, HIDES),
    Law("longer sequences do not need less memory", "sequence", DOUBLED, DOUBLED, smaller),
    Law("more shards do not need more memory", "dp", DOUBLED, DOUBLED, larger),
    Law("ZeRO-1 does not need more memory than ZeRO-0", "zero", 0, 1, larger),
    Law("ZeRO-2 does not need more memory than ZeRO-1", "zero", 1, 2, larger),
    Law("full recomputation is not faster", "recompute", "none", "full", faster, HIDES),
    Law("full recomputation does not need more memory", "recompute", "none", "full", larger, 0.02),
    Law("selective recomputation is not faster", "recompute", "none", "selective", faster, HIDES),
    Law("selective recomputation does not need more memory", "recompute", "none", "selective", larger, 0.02),
    Law("unfused attention is not faster", "fused_attention", 1, 0, faster, HIDES),
    Law("unfused attention does not need less memory", "fused_attention", 1, 0, smaller),
    Law("8-bit products are not slower", "dtype", "bf16", "fp8", slower, 0.06),
    Law("8-bit products do not need more memory", "dtype", "bf16", "fp8", larger),
    Law("4-bit products are not slower than 8-bit ones", "dtype", "fp8", "fp4", slower, HIDES),
    Law("16-bit training is not slower than 32-bit training", "dtype", "fp32", "bf16", slower),
    Law("an H100 is not slower than an A100", "device", "A100", "H100", slower, HIDES),
    Law("an H100 is not slower than an H800", "device", "H800", "H100", slower, HIDES),
    Law("an H200 is not slower than an H100", "device", "H100", "H200", slower, HIDES),
    Law("an H200 fits more than an H100", "device", "H100", "H200", less_likely),
    Law("a B200 is not slower than an H100", "device", "H100", "B200", slower, HIDES),
    Law("a B300 is not slower than a B200", "device", "B200", "B300", slower, 0.025),
    Law("a GB300 is not slower than a GB200", "device", "GB200", "GB300", slower, HIDES),
    Law("an MI355X is not slower than an MI300X", "device", "MI300X", "MI355X", slower, HIDES),
    Law("an MI355X is not slower than an MI350X", "device", "MI350X", "MI355X", slower, HIDES),
    Law("an MI300X is not slower than an MI300A", "device", "MI300A", "MI300X", slower, HIDES),
    Law("an offloaded optimizer does not need more memory", "offload", "none", "optimizer", larger),
    Law("sequence parallelism does not need more memory", "sequence_parallel", 0, 1, larger),
    Law("an overlapped expert exchange is not slower", "expert_overlap", 0, 1, slower, HIDES),
)


def main() -> int:
    """Draw pairs until enough checks were made; print the laws that were broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checks", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)  # noqa: S311 - no secret
    checks, broken = 0, Counter[str]()
    while checks < options.checks:
        laws = [draw.choice(LAWS) for _ in range(options.checks)]
        pairs = [changed(law, row(draw)) for law in laws]
        cells = [{name: str(value) for name, value in given.items()} for pair in pairs for given in pair]
        predictions = predict_table(cells)
        for law, first, second in zip(laws, predictions[::2], predictions[1::2], strict=True):
            if isinstance(first, str) or isinstance(second, str) or first.stall_ns or second.stall_ns:
                continue
            checks += 1
            if law.breaks(first, second, law.tolerance):
                broken[law.name] += 1
                sys.stdout.write(f"{law.name}: {first.configuration}, {second.step_ns / first.step_ns:.3f}x the step\n")
    sys.stdout.write(f"{checks} checks, {broken.total()} broken\n")
    return 1 if broken.total() > MOST_BROKEN * checks else 0


def row(draw: random.Random) -> Row:
    """Draw a row of a table; it may be illegal."""
    is_mixture = draw.random() < 0.5
    pp = draw.choice((1, 1, 2, 4, 8, 16))
    cells: Row = {
        "model": draw.choice(MIXTURES if is_mixture else DENSE), "sequence": draw.choice((2048, 4096, 8192, 32768)),
        "device": draw.choice(DEVICES), "trainer": draw.choice(sorted(PROFILES)),
        "dp": draw.choice((1, 2, 4, 8, 16, 64, 128)), "tp": draw.choice((1, 1, 2, 4, 8)),
        "cp": draw.choice((1, 1, 1, 2, 4)), "pp": pp, "zero": draw.choice((0, 1, 1, 2, 3)),
        "micro_batch": draw.choice((1, 1, 2, 4)), "micro_batches": max(draw.choice((1, 4, 8, 16, 32)), 2 * pp),
        "recompute": draw.choice(("none", "none", "selective", "full")), "dtype": draw.choice(("bf16", "bf16", "fp8")),
        "sequence_parallel": draw.choice((1, 1, 0)), "ep": draw.choice((1, 2, 4, 8, 16, 64)) if is_mixture else 1,
    }  # fmt: skip
    if pp > 1:
        schedules = ("1f1b", "interleaved", "gpipe", *(SPLIT_BACKWARD if cells["zero"] < 3 else ()))
        cells["schedule"] = draw.choice(schedules)
        cells["chunks"] = draw.choice((2, 4)) if cells["schedule"] == "interleaved" else 1
    return cells


def changed(law: Law, cells: Row) -> tuple[Row, Row]:
    """Return a row before and after a law's change."""
    if law.before == DOUBLED:
        return cells, cells | {law.column: 2 * cells[law.column]}
    return cells | {law.column: law.before}, cells | {law.column: law.after}


if __name__ == "__main__":
    sys.exit(main())
