"""Order of events in a file: reversing it gives the same measurements and predictions."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from corpus_sets import TRACES

from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.inputs.discovery import discover
from usp_prof.run import open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DECLARED = {"mesh": {"dp": 4}, "shape": {"layers": 2}, "work": {"steps": 3}, "seed": 5}


def rewritten(source: Path, folder: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Path:
    folder.mkdir()
    for file in discover(source).runs[0].files:
        text = file.path.read_bytes()
        trace = json.loads(gzip.decompress(text) if file.path.suffix == ".gz" else text)
        trace["traceEvents"] = change(trace["traceEvents"])
        (folder / file.path.name.removesuffix(".gz")).write_text(json.dumps(trace))
    return folder


def coarse_times(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    times = [{key: 10 * round(event[key] / 10) for key in ("ts", "dur") if key in event} for event in events]
    return [event | of_event for event, of_event in zip(events, times, strict=True)]


def reverse(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return events[::-1]


def figures(path: Path, cache: Path) -> Any:
    return json.loads(open_run(path, cache_dir=cache).report().text("json"))["metrics"]


def test_reversed_events_in_coarse_times_give_the_same_figures(tmp_path: Path) -> None:
    write(Declaration.from_dict(DECLARED), tmp_path / "made")
    forward = rewritten(tmp_path / "made", tmp_path / "forward", coarse_times)
    backward = rewritten(forward, tmp_path / "backward", reverse)
    assert figures(forward, tmp_path / "cache") == figures(backward, tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")
@pytest.mark.parametrize("name", ["torchrec-4r-v100", "torchrec-4r-sleeping-rank", "param-dlrm-8r"])
def test_reversed_events_of_real_traces_give_the_same_figures(tmp_path: Path, name: str) -> None:
    backward = rewritten(TRACES / name, tmp_path / "backward", reverse)
    assert figures(TRACES / name, tmp_path / "cache") == figures(backward, tmp_path / "cache")
