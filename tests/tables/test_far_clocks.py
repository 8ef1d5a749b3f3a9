"""Ranks with unconnected clocks that are centuries apart: every report and prediction still ends."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from usp_prof import limits
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.inputs.discovery import discover
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import GAIN
from usp_prof.run import Run, open_run
from usp_prof.tables import clock

if TYPE_CHECKING:
    from pathlib import Path

APART_NS = 5 * 10**18
COMMUNICATION = ("nccl", "c10d", "gloo", "record_param")


def opened(folder: Path, style: str) -> Run:
    declared = {"style": style, "mesh": {"pp": 2, "dp": 2}, "work": {"steps": 2}, "seed": 3}
    write(Declaration.from_dict(declared), folder / "run")
    for file in discover(folder / "run").runs[0].files:
        trace = json.loads(gzip.decompress(file.path.read_bytes()))
        del trace["baseTimeNanoseconds"]
        shift = APART_NS / 2 / 1000 * (1 if file.rank % 2 else -1)
        for event in trace["traceEvents"]:
            if "ts" in event:
                event["ts"] += shift
        if file.rank % 2:
            events = trace["traceEvents"]
            trace["traceEvents"] = [item for item in events if not any(word in item["name"] for word in COMMUNICATION)]
        file.path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return open_run(folder / "run", cache_dir=folder / "cache")


@pytest.mark.parametrize("style", ["gloo", "nccl"])
def test_untied_ranks_far_apart_are_reported_and_predicted(tmp_path: Path, style: str) -> None:
    run = opened(tmp_path, style)
    document = json.loads(run.report().text("json"))
    assert any(row["code"] == "clocks_untied" for row in document["health"])
    assert all(GAIN.holds(finding["gain_fraction"]) for finding in document["findings"])
    for edit in ("ideal", "rank_as_peers=1", "schedule=gpipe"):
        try:
            assert GAIN.holds(run.whatif(edit).gain_fraction)
        except UspProfError as error:
            assert error.hint  # noqa: PT017 - either answer is right


def test_untied_ranks_begin_together(tmp_path: Path) -> None:
    tables = opened(tmp_path, "gloo").tables
    clocks = clock.fit_clocks(tables)
    starts = [int(clocks.align(rank, tables.columns("ranks", rank)["first_ns"])[0]) for rank in tables.ranks]
    assert clocks.components > 1
    assert np.ptp(starts) < limits.MAX_WINDOW_NS
