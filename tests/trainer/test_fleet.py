"""Random layouts over all options train like a single process, in float64, within 1e-9.

A seed is a layout: `layout(17)` returns its processes and options. A few run by default, all sixty with the mark `full`
(`scripts/test --full`).
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from functools import cache

import pytest
from trainer_fleet import launch

from trainer.configuration.command_line import parse
from trainer.configuration.options import SCHEDULES, OptionError
from trainer.rules import resolve

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(3600)]

BOUND = 1e-9
SEEDS, SAMPLE = range(60), (3, 6, 12, 41)
MODEL = "--dtype fp64 --device cpu --steps 5"


def divisor(draw: random.Random, number: int) -> int:
    return draw.choice([part for part in range(1, number + 1) if number % part == 0])


def guess(draw: random.Random) -> tuple[int, str, str]:
    """Draw a number of processes and the options of model and layout, which may not fit together."""
    factors = draw.choice(((2,), (2,), (3,), (2, 2), (2, 2), (2, 2), (2, 3), (2, 2, 2), (2, 2, 2)))
    sizes = dict.fromkeys(("pp", "dp", "cp", "tp"), 1)
    for factor in factors:
        sizes[draw.choices(list(sizes), (5, 4, 3, 3))[0]] *= factor
    pp, dp, cp, tp = sizes.values()
    world = pp * dp * cp * tp
    experts = draw.choice((0, 0, 4, 8))
    schedule, per_rank = draw.choice(SCHEDULES), draw.choice((2, 3))
    stages = pp * {"gpipe": 1, "1f1b": 1, "zbv": 2, "dualpipev": 2}.get(schedule, per_rank)
    least = 2 if schedule == "dualpipev" else 1
    whole_rounds, any_number = draw.randint(least, 3) * pp, draw.randint(least * pp, 3 * pp)
    micro_batches = 1 if pp == 1 else whole_rounds if schedule.startswith("interleaved") else any_number
    accumulate = draw.choice((1, 1, 2, 3))
    layout = {
        **sizes,
        "dp-replicate": divisor(draw, dp),
        "zero": draw.choice((0, 1, 2, 3)),
        "recompute": draw.choice(("none", "selective", "full", "full")),
        "accumulate": accumulate,
    }
    if pp > 1:
        layout |= {"schedule": schedule, "micro-batches": micro_batches}
        if schedule.startswith("interleaved"):
            layout["stages-per-rank"] = per_rank
    if cp > 1:
        layout["cp-method"] = draw.choice(("ring", "ulysses", "allgather"))
        layout["cp-layout"] = draw.choice(("contiguous", "zigzag"))
    if layout["zero"] < 2:
        layout["bucket-mb"] = draw.choice((0.0, 0.05, 1.0))
    if experts:
        layout |= {"ep": divisor(draw, dp * cp * tp), "ep-layout": draw.choice(("outer", "inner"))}
    model = {
        "layers": stages + draw.choice((0, 1)) if pp > 1 else 2,
        "sequence": draw.choice((32, 48)),
        "batch": dp * micro_batches * accumulate * draw.choice((1, 2)),
    }
    if experts:
        model |= {"experts": experts, "top-k": draw.choice((1, 2, 3))}
    options, how = (" ".join(f"--{name} {value}" for name, value in part.items()) for part in (model, layout))
    prefetch = " --no-prefetch" if layout["zero"] >= 2 and draw.random() < 0.3 else ""
    unsharded = " --no-sequence-parallel" if tp > 1 and not experts and draw.random() < 0.4 else ""
    return world, options, how + prefetch + unsharded


def later_options(seed: int, how: str) -> str:
    """Draw newer options with a separate generator, so that the layout of a seed does not change."""
    draw = random.Random(1000 + seed)  # noqa: S311 - no secret
    drawn = " --offload optimizer" if draw.random() < 0.3 else ""
    can_overlap = "--tp 1" not in how and "--no-sequence-parallel" not in how
    return drawn + (" --tp-async" if draw.random() < 0.5 and can_overlap else "")


@cache
def layout(seed: int) -> tuple[int, str, str]:
    """Draw until a layout is legal."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    while True:
        world, model, how = guess(draw)
        how = without_idle(world, model, how)
        try:
            resolve(parse([*MODEL.split(), *model.split(), *how.split()]), world)
        except OptionError:
            continue
        return world, model, how + later_options(seed, how)


def without_idle(world: int, model: str, how: str) -> str:
    """Remove drawn sharding options that have no effect and would be refused."""
    for option in ("--dp-replicate", "--zero", "--no-prefetch"):
        try:
            resolve(parse([*MODEL.split(), *model.split(), *how.split()]), world)
        except OptionError as refusal:
            if refusal.hint == f"leave {option} out":
                how = re.sub(rf" {option}( \d)?(?= |$)", "", how)
    return how


@pytest.fixture(scope="module")
def curves(request: pytest.FixtureRequest) -> dict:
    """Train the layouts of all requested seeds: one launch per number of processes."""
    chosen = [item.callspec.params["seed"] for item in request.session.items if "curves" in item.fixturenames]
    cases: dict[int, set[str]] = defaultdict(set)
    for world, model, how in map(layout, chosen):
        cases[world].add(f"{MODEL} {model} {how}")
        cases[1].add(f"{MODEL} {model}")
    return {world: launch(world, sorted(several), 60 + 90 * len(several)) for world, several in cases.items()}


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in SAMPLE else pytest.mark.full) for seed in SEEDS]
)
def test_a_random_layout_trains_like_one_process(curves: dict, seed: int) -> None:
    world, model, how = layout(seed)
    print(f"seed {seed}: torchrun --nproc-per-node {world} trainer/run.py {MODEL} {model} {how}")  # noqa: T201
    alone, distributed = curves[1][f"{MODEL} {model}"], curves[world][f"{MODEL} {model} {how}"]
    assert "error" not in alone, alone["error"]
    assert "error" not in distributed, distributed["error"]
    assert distributed["loss"] == pytest.approx(alone["loss"], rel=0, abs=BOUND)
    assert distributed["norm"] == pytest.approx(alone["norm"], rel=0, abs=BOUND)
    assert distributed["forwards"] == [2.0 if "--recompute full" in how else 1.0]


def test_the_random_layouts_cover_all_options() -> None:
    drawn = [f"--world {world} {model} {how}" for world, model, how in map(layout, SEEDS)]
    wanted = [f"--schedule {name} " for name in SCHEDULES] + [f"--zero {stage}" for stage in range(4)]
    wanted += ["--no-sequence-parallel", "--offload optimizer", "--tp-async"]
    wanted += [f"--cp-method {name}" for name in ("ring", "ulysses", "allgather")] + ["--world 8", "--experts"]
    missing = [option for option in wanted if sum(f"{option}" in f"{case} " for case in drawn) < 2]
    assert not missing
    split = ("interleaved-zb", "zbv", "dualpipev")
    assert any("--experts" in case and "--recompute full" in case and name in case for case in drawn for name in split)
