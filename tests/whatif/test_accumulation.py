"""Accumulation: more or fewer passes per step are predicted from the passes of a recorded run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UspProfError
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

RUN = Path(__file__).parents[2] / "traces" / "recorded-slow-rank-repaired"
"""Two passes a step, both within one mark train::fwd_bwd."""

pytestmark = pytest.mark.skipif(not RUN.is_dir(), reason="the recorded run is not here")


@pytest.mark.parametrize("passes", [1, 3])
def test_a_pass_more_or_less_takes_as_long_as_the_first(passes: int, tmp_path: Path) -> None:
    tables = open_run(RUN, cache_dir=tmp_path).tables
    marks = tables.columns("annotations", 0)
    begins = marks["start_ns"][marks.matches("name", "train::forward") & (marks["step"] >= 0)]
    first = np.median(np.sort(begins).reshape(-1, 2) @ [-1, 1])
    predicted = predict(tables, [parse_edit(f"micro_batches={passes}")])
    assert predicted.after_ns - predicted.before_ns == pytest.approx((passes - 2) * first, rel=0.1)


def test_passes_that_the_trace_does_not_show_are_not_guessed(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest | {"gradient_accumulation": 4}))
    tables = open_run(tmp_path / "run", cache_dir=tmp_path / "cache").tables
    with pytest.raises(UspProfError, match="shows 2 passes a step, and the run's description says 4"):
        predict(tables, [parse_edit("micro_batches=8")])
