"""Minimal trainer: equal under every layout, in one readable file, with correct records."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import TYPE_CHECKING

import pytest
from trainer_fleet import ROOT, finish, forked, start

from usp_prof.contract import Manifest, parse_mark

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(300)]

FILE = "trainer/minimal.py"
MOST_LINES = 300


@cache
def losses(layout: str, *more: str) -> list[float]:
    processes = 1
    for size in layout.split()[1::2]:
        processes *= int(size)
    process = start([*forked(processes), FILE, "--dtype", "float64", "--steps", "4", *layout.split(), *more])
    out, err = finish(process, 120)
    assert process.returncode == 0, err[-3000:]
    return [float(line.split()[-1]) for line in out.splitlines() if line.startswith("step")]


def test_the_minimal_trainer_is_one_short_file() -> None:
    text = (ROOT / FILE).read_text()
    assert text.count("\n") <= MOST_LINES
    assert "from trainer" not in text


@pytest.mark.parametrize(
    "layout",
    [
        *(pytest.param(layout, marks=pytest.mark.full) for layout in ("--pp 2 --tp 2", "--dp 2 --pp 2")),
        "--dp 2 --tp 2 --pp 2",
    ],
)
def test_every_layout_trains_alike(tmp_path: Path, layout: str) -> None:
    assert losses(layout, "--record", str(tmp_path / "run")) == pytest.approx(losses("--dp 1"), rel=0, abs=1e-11)
    manifest = Manifest.from_dict(json.loads((tmp_path / "run" / "run.json").read_text()))
    assert {axis: size for axis, size in manifest.mesh.items() if size > 1} == {
        axis.removeprefix("--"): 2 for axis in layout.split()[::2]
    }
    assert manifest.notes == []
    trace = json.loads(gzip.decompress((tmp_path / "run" / "rank0.json.gz").read_bytes()))
    marks = [mark for event in trace["traceEvents"] if (mark := parse_mark(event.get("name", ""))) is not None]
    order = [f"{mark.what}{mark.values['mb']}" for mark in marks if mark.area == "pp" and mark.what in {"F", "B"}]
    assert order == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"] * 2, "1F1B on the first of two stages"
