"""Injected faults are the first finding. Faults are recorded several times as large as noise.

A small paced sample runs by default, the whole list with four ranks with the mark `full` (`scripts/test --full`). Each
case states where its finding points. Ranks that share cores delay each other, so findings about that may come first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded_faults import launch

from trainer.configuration.faults import KINDS
from usp_prof.findings import find
from usp_prof.run import open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from usp_prof.model.finding import Finding

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1800)]

DP, STAGES = "--dp 4 --layers 4", "--dp 2 --pp 2 --micro-batches 4 --layers 4"
PASSES = "--dp 4 --layers 1 --sequence 16 --accumulate 16"
PACE = "--pace 40,40,40"
LENGTHS = "--dp 4 --layers 1 --accumulate 2 --pace 5,5,5,300"

SAMPLE = {
    "slow-link:axis=dp,delay_ms=150": ("--dp 2 --layers 4 --pace 10,10,10", "slow-link", {"axis": "dp"}),
    "late-input:rank=1,ms=300": ("--dp 2 --layers 4 --pace 10,10,10", "late-input", {"rank": 1}),
    "slow-rank:rank=1,factor=6": ("--dp 2 --layers 4 --pace 10,10,10", "slow-rank", {"rank": 1}),
    "unequal-lengths:documents=3": (
        "--dp 2 --layers 1 --accumulate 2 --pace 5,5,5,150",
        "unequal-lengths",
        {"axis": "dp"},
    ),
}
"""By the fault: options of two ranks, the code of the finding, and where it is."""

PACED = {
    "slow-rank:rank=2,factor=3": (f"{DP} {PACE}", "slow-rank", {"rank": 2}),
    "slow-host:host=1,hosts=2,factor=3": (f"{DP} {PACE}", "slow-rank", {"ranks": "2-3"}),
    "slow-stage:stage=1,factor=3": (f"{STAGES} --pace 20,20,20", "stage-imbalance", {"stage": 1}),
    "late-input:rank=1,ms=400": (f"{DP} {PACE}", "late-input", {"rank": 1}),
    "pause:rank=1,ms=800": (f"{DP} {PACE}", "host-pause", {"rank": 1}),
    "slow-link:axis=dp,delay_ms=150": (f"{DP} {PACE}", "slow-link", {"axis": "dp"}),
    "slow-link:axis=dp,mbps=8": (f"{DP} {PACE}", "slow-link", {"axis": "dp"}),
    "unbucketed": ("--dp 4 --layers 8 --pace 10,10,10", "small-messages", {"axis": "dp"}),
    "blocking-sync": (f"{PASSES} --pace 2,2,2", "blocking-sync", {}),
    "unequal-lengths": (LENGTHS, "unequal-lengths", {"axis": "dp"}),
    "unequal-lengths:dp=1": (LENGTHS, "unequal-lengths", {"axis": "dp"}),
    "expert-imbalance:expert=0,bias=0.5": (
        "--dp 4 --ep 4 --experts 8 --top-k 2 --layers 4 --pace 10,10,10,0,60",
        "uneven-experts",
        {"rank": 0},
    ),
}
"""With paced compute, by the fault, on four ranks."""

UNPACED = {
    "slow-rank:rank=2,factor=6": (DP, "slow-rank", {"rank": 2}),
    "slow-host:host=1,hosts=2,factor=6": (DP, "slow-rank", {"ranks": "2-3"}),
    "slow-stage:stage=1,factor=6": (STAGES, "stage-imbalance", {"stage": 1}),
    "late-input:rank=1,ms=800": (DP, "late-input", {"rank": 1}),
    "pause:rank=1,ms=800": (DP, "host-pause", {"rank": 1}),
    "slow-link:axis=dp,delay_ms=150": (DP, "slow-link", {"axis": "dp"}),
    "slow-link:axis=dp,mbps=4": (DP, "slow-link", {"axis": "dp"}),
    "unbucketed": ("--dp 4 --layers 8", "small-messages", {"axis": "dp"}),
    "blocking-sync": (PASSES, "blocking-sync", {}),
}
"""As it is computed; documents of unequal lengths are paced alone, since they take long sequences on quiet cores."""

WITH_A_SLOW_LINK = {"unoverlapped"}
"""What costs nothing on a fast link; `test_missing_overlap_is_found_together_with_its_slow_link`."""


def record(processes: int, cases: dict[str, str], folder: Path) -> dict[str, Path]:
    """Record each fault with its options; return the folder of each run, by fault."""
    window = "--steps 5 --profile-skip 1 --profile-steps 3 --no-profile-memory"
    fault_by_run = {f"run-{place}": fault for place, fault in enumerate(cases)}
    options_by_run = {name: f"{window} {cases[fault]} --fault {fault}" for name, fault in fault_by_run.items()}
    folders = launch(processes, options_by_run, folder, 120 * len(cases))
    return {fault: folders[name] for name, fault in fault_by_run.items()}


def first_but_shared_cores(folder: Path) -> Finding:
    """Return the first finding, ignoring `shared-cores`, which is also true on two cores and may cost more."""
    findings = find(open_run(folder, cache_dir=folder / "cache").tables)
    return next(finding for finding in findings if finding.code != "shared-cores")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, dict, str], Path]:
    """Return a fault's run; the first request for a list records all of it in one launch."""
    recorded: dict[str, dict[str, Path]] = {}

    def find_folder(processes: int, cases: dict, fault: str) -> Path:
        launch_of = ", ".join(cases)
        if launch_of not in recorded:
            options = {name: how for name, (how, _, _) in cases.items()}
            recorded[launch_of] = record(processes, options, tmp_path_factory.mktemp("faults"))
        return recorded[launch_of][fault]

    return find_folder


def cases_of(processes: int, name: str, several: dict) -> list:
    return [pytest.param(processes, several, fault, id=f"{name}-{fault}") for fault in several]


def named_first(folder: Path, where: dict[str, object]) -> tuple[str, dict[str, object]]:
    first = first_but_shared_cores(folder)
    return first.code, {key: first.where.get(key) for key in where}


@pytest.mark.parametrize("fault", SAMPLE)
def test_a_fault_is_named_first_and_where_it_is(
    folder_of: Callable[[int, dict, str], Path], tmp_path: Path, fault: str
) -> None:
    """Other programs also make ranks slow, so a fault that was missed is recorded again, at most twice."""
    options, code, where = SAMPLE[fault]
    first_findings = [named_first(folder_of(2, SAMPLE, fault), where)]
    while first_findings[-1] != (code, where) and len(first_findings) < 3:
        place = tmp_path / str(len(first_findings))
        place.mkdir()
        (folder,) = record(2, {fault: options}, place).values()
        first_findings.append(named_first(folder, where))
    assert first_findings[-1] == (code, where), first_findings


@pytest.mark.full
@pytest.mark.parametrize(
    ("processes", "several", "fault"), [*cases_of(4, "paced", PACED), *cases_of(4, "unpaced", UNPACED)]
)
def test_every_fault_is_named_first(
    folder_of: Callable[[int, dict, str], Path], processes: int, several: dict, fault: str
) -> None:
    _, code, where = several[fault]
    assert named_first(folder_of(processes, several, fault), where) == (code, where)


@pytest.mark.full
def test_missing_overlap_is_found_together_with_its_slow_link(tmp_path: Path) -> None:
    how = f"{DP} {PACE} --fault slow-link:axis=dp,mbps=40"
    (folder,) = record(4, {"unoverlapped": how}, tmp_path).values()
    codes = [finding.code for finding in find(open_run(folder, cache_dir=tmp_path / "cache").tables)[:2]]
    assert codes == ["slow-link", "exposed-gradient-sync"]


def test_no_fault_is_left_out() -> None:
    tested_kinds = {fault.partition(":")[0] for fault in (*PACED, *UNPACED)}
    assert tested_kinds | WITH_A_SLOW_LINK == set(KINDS)
