"""Layouts train like a single process: loss and gradient norm over five steps, in float64."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from trainer_fleet import launch

# One launch trains all cases of a size; the first test of a size waits for all of them.
pytestmark = [pytest.mark.trainer, pytest.mark.timeout(900)]

BOUND = 1e-9
SINGLE_LOSS, SINGLE_NORM = 1.5e-6, 4e-6
"""In fp32: three units in the last place of the loss, and what sums in another order make of the norm."""
GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
EXPERTS = "--experts 4"

OFFLOADED = (
    "--dp 2",
    "--dp 2 --zero 1",
    "--dp 2 --zero 3",
    f"--pp 2 --schedule dualpipev --recompute full {EXPERTS}",
)
"""Cases whose optimizer also runs in host memory, and then must not change a digit."""

TWO = (
    "--dp 2",
    "--dp 2 --accumulate 4",
    "--dp 2 --fault unbucketed --fault blocking-sync --fault slow-rank:rank=1,factor=1.5",
    "--dp 2 --zero 1",
    "--dp 2 --zero 2 --accumulate 2",
    "--dp 2 --zero 3",
    "--dp 2 --zero 3 --no-prefetch --recompute full",
    *(f"{case} --offload optimizer" for case in OFFLOADED),
    "--dp 2 --zero 1 --adamw loop",
    "--dp 2 --zero 3 --adamw foreach --offload optimizer",
    "--tp 2",
    "--tp 2 --recompute selective",
    "--tp 2 --no-sequence-parallel",
    "--tp 2 --no-sequence-parallel --recompute full",
    "--tp 2 --tp-async",
    "--tp 2 --tp-async --recompute full --accumulate 2",
    "--cp 2 --cp-layout contiguous",
    "--cp 2 --recompute full",
    "--cp 2 --cp-method allgather",
    "--cp 2 --cp-method ulysses --cp-layout contiguous",
    "--pp 2 --schedule gpipe",
    "--pp 2 --schedule 1f1b --recompute full",
    "--pp 2 --schedule interleaved --accumulate 2",
    "--pp 2 --schedule interleaved-zb",
    "--pp 2 --schedule zbv",
    "--pp 2 --schedule dualpipev",
    f"--dp 2 --ep 2 {EXPERTS}",
    f"--dp 2 --ep 2 --zero 3 {EXPERTS}",
    f"--dp 2 --zero 1 {EXPERTS}",
    f"--tp 2 --ep 2 {EXPERTS}",
    f"--tp 2 --zero 3 {EXPERTS}",  # shards the experts alone
    f"--cp 2 --ep 2 --zero 1 {EXPERTS}",
    f"--dp 2 --ep 2 --capacity 2 {EXPERTS}",  # of two choices among four experts: room for every token
    f"--pp 2 --schedule zbv {EXPERTS}",
    f"--pp 2 --schedule 1f1b --recompute full {EXPERTS}",
    f"--pp 2 --schedule interleaved-zb --recompute selective {EXPERTS}",
    f"--pp 2 --schedule interleaved-zb --recompute full {EXPERTS}",
    f"--pp 2 --schedule zbv --recompute full {EXPERTS}",
    f"--pp 2 --schedule dualpipev --recompute full {EXPERTS}",
)
FOUR = (
    "--dp 2 --tp 2 --zero 1",
    "--dp 2 --tp 2 --zero 3",
    "--dp 2 --tp 2 --zero 3 --no-sequence-parallel",
    "--pp 2 --tp 2 --schedule zbv --no-sequence-parallel",
    "--dp 2 --cp 2 --zero 2",
    "--dp 4 --dp-replicate 2 --zero 1",
    "--dp 4 --dp-replicate 2 --zero 3",
    "--dp 4 --dp-replicate 2 --zero 3 --offload optimizer",
    "--pp 2 --dp 2 --schedule zbv --zero 2",
    "--pp 2 --dp 2 --schedule 1f1b --zero 3 --accumulate 2",
    "--pp 2 --dp 2 --schedule interleaved --zero 3",
    "--pp 2 --dp 2 --schedule interleaved-zb --accumulate 2",
    "--pp 2 --dp 2 --schedule interleaved-zb --zero 3 --accumulate 2",
    f"--pp 2 --dp 2 --ep 2 --schedule zbv --zero 3 {EXPERTS}",
    "--pp 2 --dp 2 --schedule dualpipev --zero 3",
    f"--pp 2 --dp 2 --schedule zbv --zero 3 --recompute full {EXPERTS}",
    f"--pp 2 --tp 2 --schedule dualpipev --recompute full {EXPERTS}",
    "--pp 2 --tp 2",
    "--tp 4 --tp-async",
    f"--dp 2 --tp 2 --tp-async --ep 4 --zero 3 {EXPERTS}",
    "--pp 2 --tp 2 --tp-async --schedule zbv --recompute selective",
    "--pp 2 --cp 2 --schedule dualpipev",
    "--cp 2 --tp 2 --cp-method ulysses",
    "--cp 4",
    f"--dp 2 --tp 2 --ep 4 --zero 3 {EXPERTS}",
    f"--pp 2 --tp 2 --ep 2 --schedule zbv --recompute full --capacity 2 {EXPERTS}",
    f"--pp 2 --dp 2 --ep 2 --schedule interleaved {EXPERTS}",
    f"--cp 2 --dp 2 --ep 2 --ep-layout inner --zero 1 {EXPERTS}",
    f"--cp 2 --tp 2 --ep 4 {EXPERTS}",
    f"--pp 2 --tp 2 --zero 1 {EXPERTS}",
    f"--pp 2 --cp 2 --ep 2 --schedule interleaved {EXPERTS}",
)
SINGLE = (
    "--dtype fp32 --pp 2 --dp 2 --schedule zbv --zero 3",
    "--dtype fp32 --dp 2 --tp 2 --zero 1",
    "--dtype fp32 --cp 2 --tp 2",
    f"--dtype fp32 --dp 2 --tp 2 --ep 4 --zero 3 {EXPERTS}",
)
EIGHT = (
    "--pp 2 --dp 2 --tp 2",
    "--pp 2 --dp 2 --tp 2 --schedule zbv --zero 2",
    "--pp 2 --cp 2 --tp 2 --zero 1",
    "--pp 2 --dp 2 --cp 2 --schedule interleaved --cp-method allgather",
    "--pp 2 --dp 4 --dp-replicate 2 --zero 3",
    f"--dp 2 --cp 2 --tp 2 --ep 4 --zero 3 {EXPERTS}",
    f"--pp 2 --dp 2 --tp 2 --ep 2 --zero 1 {EXPERTS}",
    f"--pp 2 --dp 2 --cp 2 --ep 4 --schedule interleaved --cp-method ulysses {EXPERTS}",
)
SIXTEEN = (
    f"--pp 2 --dp 2 --cp 2 --tp 2 --ep 4 {EXPERTS}",
    f"--pp 2 --dp 2 --cp 2 --tp 2 --ep 2 --ep-layout inner --zero 2 --schedule zbv {EXPERTS}",
)


@cache
def curves(processes: int, cases: tuple[str, ...]) -> dict:
    return launch(processes, list(cases), 800)


def check(processes: int, cases: tuple[str, ...], case: str) -> None:
    curve = curves(processes, cases)[case]
    assert "error" not in curve, curve["error"]
    golden = GOLDEN["experts" if "--experts" in case else "dense"]
    assert curve["loss"] == pytest.approx(golden["loss"], rel=0, abs=BOUND)
    assert curve["norm"] == pytest.approx(golden["norm"], rel=0, abs=BOUND)
    assert curve["forwards"] == [2.0 if "--recompute full" in case else 1.0]


@pytest.mark.parametrize("case", TWO)
def test_parity_on_two_processes(case: str) -> None:
    check(2, TWO, case)


@pytest.mark.parametrize("case", OFFLOADED)
def test_an_offloaded_optimizer_gives_identical_results(case: str) -> None:
    curve_by_case = curves(2, TWO)
    assert curve_by_case[f"{case} --offload optimizer"] == curve_by_case[case]


@pytest.mark.parametrize("case", FOUR)
def test_parity_on_four_processes(case: str) -> None:
    check(4, FOUR + SINGLE, case)


@pytest.mark.parametrize("case", SINGLE)
def test_parity_in_single_precision(case: str) -> None:
    alone = ("--dtype fp32", f"--dtype fp32 {EXPERTS}")
    expected = curves(1, alone)[alone["--experts" in case]]
    curve = curves(4, FOUR + SINGLE)[case]
    assert "error" not in curve, curve["error"]
    assert curve["loss"] == pytest.approx(expected["loss"], rel=0, abs=SINGLE_LOSS)
    assert curve["norm"] == pytest.approx(expected["norm"], rel=0, abs=SINGLE_NORM)


@pytest.mark.parametrize("case", EIGHT)
def test_parity_on_eight_processes(case: str) -> None:
    check(8, EIGHT, case)


@pytest.mark.parametrize("case", SIXTEEN)
def test_parity_on_sixteen_processes(case: str) -> None:
    check(16, SIXTEEN, case)
