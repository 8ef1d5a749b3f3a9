"""Light mode: a trace of device activity with the recorder's own steps and marks, and where it is refused."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from stripped import DEVICE, device_only, lengths, sources

from usp_prof import record
from usp_prof.contract import Manifest
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.record import export, marks
from usp_prof.record.trace_text import ENCODING, base_ns, with_events
from usp_prof.run import open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAUNCHES = {"cuda_runtime", "cuda_driver"}
"""Events that Kineto records in addition to the device's own activity if CPU activity is off."""


def train(session: record.Session, steps: int) -> None:
    with session:
        for _ in range(steps):
            with session.step(), record.phase("forward"):
                torch.mm(torch.ones(8, 8), torch.ones(8, 8))


def test_without_a_device_nothing_is_recorded_and_a_hint_states_why(tmp_path: Path) -> None:
    with pytest.warns(record.RecordingWarning, match="leave `level` out") as warned:
        train(record.session(tmp_path, level="light", peak_flops=1.0, wait=0, repeat=3), steps=12)
    assert len(warned) == 1
    manifest = Manifest.from_dict(json.loads((tmp_path / "run.json").read_text()))
    assert ["computes on no GPU" in note for note in manifest.notes] == [True]
    assert manifest.options["recorded"]["level"] == "light"
    assert not list(tmp_path.glob("*.gz"))


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="level is full or light, not 'lite'"):
        record.session(tmp_path, level="lite")


def test_our_marks_use_the_clock_of_the_profiler(tmp_path: Path, read_trace: Callable[[Path], dict[str, Any]]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        notes = marks.begin_notes()
        try:
            with marks.annotation("ProfilerStep#7"), record.phase("forward"):
                time.sleep(0.005)
                torch.mm(torch.ones(8, 8), torch.ones(8, 8))
                time.sleep(0.005)
        finally:
            marks.end_notes()
        with record.phase("backward"):  # no longer ours
            pass
    export.export(profile, tmp_path / "rank0.json.gz", Manifest(), [], 0, notes=notes)
    events = {event["name"]: event for event in read_trace(tmp_path / "rank0.json.gz")["traceEvents"]}
    step, mark, product = events["ProfilerStep#7"], events["train::forward"], events["aten::mm"]
    assert step["ts"] <= mark["ts"] < product["ts"] < mark["ts"] + mark["dur"] <= step["ts"] + step["dur"] + 1
    assert 4e3 < product["ts"] - mark["ts"] < mark["dur"] - 4e3
    assert mark["tid"] == product["tid"]
    assert mark["cat"] == events["train::backward"]["cat"]


def lightly(run: Path, folder: Path, keep: set[str]) -> Path:
    """Record a synthetic run in light mode: events of some categories, with the recorder's steps and marks."""
    device_only(run, folder / "device", keep=keep)
    for path in (folder / "device").glob("rank*.json"):
        full = json.loads(gzip.decompress((run / f"{path.name}.gz").read_bytes()))
        text = path.read_text(ENCODING)
        base, notes = base_ns(text), marks.Notes()
        for event in full["traceEvents"]:
            if event.get("cat") == "user_annotation":
                begin = base + round(event["ts"] * 1000)
                notes.add(event["name"], event["tid"], begin, begin + round(event["dur"] * 1000))
        path.write_text(with_events(text, notes.events(base)), ENCODING)
    manifest = json.loads((run / "run.json").read_text())
    manifest["options"] = {"recorded": {"level": "light"}}
    (folder / "device" / "run.json").write_text(json.dumps(manifest))
    return folder / "device"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    described = {"shape": {"layers": 2}, "mesh": {"dp": 2}, "work": {"steps": 4, "micro_batches": 2}, "seed": 5}
    write(Declaration.from_dict(described), folder)
    return folder


@pytest.mark.parametrize("keep", [DEVICE | LAUNCHES, DEVICE], ids=["with launches", "device alone"])
def test_analyze_finds_the_steps_of_a_light_trace(full: Path, tmp_path: Path, keep: set[str]) -> None:
    truth = open_run(full, cache_dir=tmp_path / "full-cache")
    run = open_run(lightly(full, tmp_path, keep), cache_dir=tmp_path / "cache")
    assert sources(run) == {"profiler_step"}
    for rank, expected in lengths(truth).items():
        # Without launches, the last step ends with the host's mark, because its device work is unknown.
        comparable = len(expected) if keep & LAUNCHES else -1
        assert lengths(run)[rank][:comparable] == expected[:comparable]
    detail_by_code = {row.code: row.detail for row in run.health}
    assert "ops, shapes, FLOPs, host activity, memory and Python functions are missing" in detail_by_code["light_mode"]
    assert ("steps_by_host" in detail_by_code) == (not keep & LAUNCHES)
    assert "light_mode" not in {row.code for row in truth.health}
