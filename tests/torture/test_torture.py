"""Short part of the torture suite: every case that ever failed, and some seeds of each trial.

`scripts/torture --minutes N` continues with new seeds; failures are added to kept.txt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest
from torture.faults import clean_values, outputs, under_limit
from torture.fuzz_reader import read_bytes
from torture.mutations import hostile, sample
from torture.reports import report_of, values_of
from torture.trials import TRIALS

KEPT = [line.split(" ", 2) for line in Path(__file__).with_name("kept.txt").read_text().splitlines()]
SHORT = {"mutation": 20, "metamorphic": 4, "command-line": 25, "damaged-cache": 4, "description": 20}
TIMES = int(os.environ.get("USP_PROF_TORTURE", "1"))
SEEDS = [(name, seed) for name, many in SHORT.items() for seed in range(many * TIMES)]


@pytest.mark.parametrize(("name", "seed"), [(name, int(seed)) for name, seed, _ in KEPT])
def test_earlier_failures_pass_now(tmp_path: Path, name: str, seed: int) -> None:
    TRIALS[name].run(seed, tmp_path)


def test_a_seed_does_not_depend_on_earlier_trials() -> None:
    """A mutation may modify the value of another one, which must not change for later mutations."""
    for seed in range(100):
        value = hostile(Random(seed))  # noqa: S311 - a seed to repeat, no secret
        if isinstance(value, list):
            value.append(value)
    again = [hostile(Random(seed)) for seed in range(100)]  # noqa: S311
    assert json.dumps(again)


@pytest.mark.parametrize("entry", sorted(Path(__file__).with_name("corpus").iterdir()), ids=lambda path: path.name)
def test_the_fuzzing_corpus_is_read(entry: Path) -> None:
    read_bytes(entry.read_bytes())


@pytest.mark.full
def test_eight_processes_can_read_one_uncached_run(tmp_path: Path) -> None:
    TRIALS["crowd"].run(0, tmp_path)


@pytest.mark.parametrize(("kind", "number"), [("RLIMIT_FSIZE", 20_000), ("RLIMIT_NOFILE", 12)])
def test_a_fault_leaves_no_incomplete_file_and_the_next_run_is_correct(tmp_path: Path, kind: str, number: int) -> None:
    """Faults that always occur at the same place; `scripts/torture` draws the others, with signals at any time."""
    run = sample(0).write(tmp_path / "run")
    words, written = outputs(run, tmp_path)[0]
    under_limit(kind, number, words, written, tmp_path)
    assert values_of(report_of(run, tmp_path / "cache")) == clean_values()


@pytest.mark.parametrize(("name", "seed"), SEEDS)
def test_each_trial_passes(tmp_path: Path, name: str, seed: int) -> None:
    TRIALS[name].run(seed, tmp_path)
