"""Completeness: every damaged run has a health row that names the damage; undamaged runs have none."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import damaged
import pytest
from corpus_sets import TRACES, sets
from damaged import DAMAGES, Traces, can_have
from made_gpu import write_plain

import usp_prof
from usp_prof.analyses import breakdown, clock, mfu, overlap
from usp_prof.inputs.discovery import discover
from usp_prof.model.health import HealthRow, Severity

OWN = Path(__file__).parents[2] / "traces"
CODES = {
    "lost_device_work", "device_ends_early", "unlinked_kernels", "ops_incomplete", "sequence_gaps", "calls_missing",
    "identical_ranks", "steps_missing", "clock_jump", "hosts_contradicted",
}  # fmt: skip
EXPECTED = {
    "first 15% of linked kernels": {"lost_device_work"},
    "every 10th kernel": {"lost_device_work"},
    "half of communication": {"lost_device_work"},
    "one stream": {"lost_device_work", "device_ends_early"},
    "device cut at 70%": {"device_ends_early"},
    "all copies": {"lost_device_work"},
    "every 10th launch": {"unlinked_kernels"},
    "ops of the middle": {"ops_incomplete"},
    "clock jump of 50 ms": {"clock_jump"},
    "copied rank": {"identical_ranks"},
    "mark of a step": {"steps_missing"},
    "last step of one rank": {"steps_missing"},
    "every 5th collective of one rank": {"calls_missing", "sequence_gaps"},
}
"""For each damage the codes that name it."""
RECORDED = ("gpu-nccl-zero3", "gpu-late-input")
SHARED = ("megatron-tp8-a100", "torchrec-4r-sleeping-rank", "single/mi300-resnet")
UNKNOWN_GROUPS = ("torchrec-4r-sleeping-rank",)
"""Runs whose collectives name no group: which members a call has is not known."""


def rows_of(folder: Path, store: Path, run: str | None = None) -> list[HealthRow]:
    """Open a run and list what the completeness checks say."""
    opened = usp_prof.open_run(folder, run=run, cache_dir=store)
    return [row for row in (*opened.health, *clock.compute(opened.tables).notes) if row.code in CODES]


@cache
def traces_of(name: str, folder: Path) -> Traces:
    if name == "replicas":
        return damaged.read(write_plain(name, folder / name))
    return damaged.read(OWN / name if (OWN / name).is_dir() else TRACES / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", ["replicas", *RECORDED, *(pytest.param(name, marks=pytest.mark.real) for name in SHARED)]
)
def test_each_kind_of_damage_has_a_row_with_its_size(name: str, damage: str, folder: Path, tmp_path: Path) -> None:
    if name in SHARED and not TRACES.is_dir():
        pytest.skip("the corpus of real traces is not available next to the project")
    traces = traces_of(name, folder)
    if not can_have(damage, traces) or (damage.startswith("every 5th") and name in UNKNOWN_GROUPS):
        pytest.skip(f"{name} has nothing that this damage takes away")
    rows = rows_of(damaged.write(DAMAGES[damage](traces), tmp_path / "run"), tmp_path / "store")
    errors = {row.code: row.count for row in rows if row.severity is Severity.ERROR}
    assert EXPECTED[damage] & errors.keys()
    assert all(count > 0 for count in errors.values())


@pytest.mark.parametrize("name", ["replicas"])
def test_an_unchanged_copy_has_no_row(name: str, folder: Path, tmp_path: Path) -> None:
    assert rows_of(damaged.write(traces_of(name, folder), tmp_path / "run"), tmp_path / "store") == []


UNDAMAGED = [
    (str(path), run.name)
    for path in sorted(OWN.iterdir())
    if path.name.startswith(("gpu-", "recorded-"))  # the trainer names its runs after their time
    for run in discover(path).runs
]
UNDAMAGED += [pytest.param(str(TRACES / path), run, marks=pytest.mark.real) for path, run in sets()]
DEVICES_WITHOUT_LINKS = ("mtia_inference_trace",)
"""A quarter of this device's work carries no correlation id, and none is an error."""


@pytest.mark.slow
@pytest.mark.parametrize(("path", "run"), UNDAMAGED)
def test_undamaged_runs_have_no_rows(path: str, run: str, tmp_path: Path) -> None:
    rows = [row for row in rows_of(Path(path), tmp_path, run) if Path(path).name not in DEVICES_WITHOUT_LINKS]
    assert rows == []


@pytest.mark.parametrize("damage", ["first 15% of linked kernels", "every 10th kernel", "device cut at 70%"])
def test_figures_affected_by_lost_work_are_bounded_or_withheld(damage: str, tmp_path: Path) -> None:
    complete, cut = tmp_path / "whole", tmp_path / "cut"
    traces = damaged.read(OWN / "gpu-late-input")
    for folder, change in ((complete, dict), (cut, DAMAGES[damage])):
        damaged.write(change(traces), folder)
        shutil.copy(OWN / "gpu-late-input" / "run.json", folder)
    own, lossy = (usp_prof.open_run(folder, cache_dir=tmp_path / "store") for folder in (complete, cut))
    assert {value.metric.id for value in mfu.compute(own.tables).values()} >= {"mfu", "tokens_per_second"}
    result = mfu.compute(lossy.tables)
    assert not {"mfu", "hfu"} & {value.metric.id for value in result.values()}
    assert "figures_withheld" in {row.code for row in result.notes}
    assert overlap.compute(lossy.tables).to_pandas().empty
    parts, true_parts = (breakdown.compute(run.tables).parts for run in (lossy, own))
    idle = parts.idle.sum(axis=1)
    assert (parts.compute + parts.exposed.sum(axis=1) + parts.memcpy + parts.unrecorded + idle == parts.wall).all()
    if damage == "device cut at 70%":
        # Steps cut by the end of the recording are excluded, and the others are unchanged.
        assert set(parts.step.tolist()) < set(true_parts.step.tolist())
        assert (parts.unrecorded == 0).all()
        return
    assert parts.unrecorded.sum() > 0
    true_idle = true_parts.idle.sum()
    assert idle.sum() <= true_idle * 1.02
    assert true_idle <= (idle + parts.unrecorded).sum() * 1.02
    assert re.search(r"the device idles \d.* to \d.* of the step", str(lossy.breakdown()))
