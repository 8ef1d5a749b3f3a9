"""Gain of removing recomputation: equal to its time in the trace, however often each forward repeats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_faults import run_of

from usp_prof.columns.rows import rows_of
from usp_prof.model.edit import parse_edit
from usp_prof.replay import backward
from usp_prof.replay.step_times import unedited
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("times", [1, 2, 6])
def test_without_numbered_ops_products_give_the_number_of_forward_repeats(times: int) -> None:
    plain = {"mesh": {"dp": 2, "pp": 2}, "work": {"steps": 3, "micro_batches": 2}, "shape": {"layers": 2}}
    repeated = plain | {"work": {"steps": 3, "micro_batches": 2, "recompute": times}}
    before, after = (run_of(json.dumps(declared)).tables for declared in (repeated, plain))
    assert backward.measured(before) is None
    predicted = predict(before, [parse_edit("recompute=none")])
    truth = 1 - unedited(after).mean_measured_ns / predicted.before_ns
    assert predicted.gain_fraction == pytest.approx(truth, abs=0.03)


def test_recomputed_ops_are_removed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from checkpointed import Program, recorded  # noqa: PLC0415 - after the skip

    tables = recorded(tmp_path, Program(around_each=True, around_both=True, reentrant=False))
    ops = tables.columns("ops", 0)
    again = backward.ops_run_again(ops)
    outermost = again & ~np.append(again, False)[rows_of(ops["event"], ops["parent"])]
    steps = len(np.unique(ops["step"][outermost]))
    predicted = predict(tables, [parse_edit("recompute=none")])
    spent = ops["dur_ns"][outermost].sum() / steps
    saved = predicted.before_ns - predicted.after_ns
    # The time of the ops, and the Python time between them, which disappears with them.
    assert 0.95 * spent <= saved <= 2 * spent
