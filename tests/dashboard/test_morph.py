"""Morph of "play the fix": a synthetic run with one slow rank, recorded and predicted without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dashboard.timeline.morph import COMPUTE, morph_of_rank
from usp_prof import open_run
from usp_prof.model.edit import parse_edit
from usp_prof.timeline.store import TimelineStore, load, prepare
from usp_prof.whatif.predict import Prediction, predict

if TYPE_CHECKING:
    from pathlib import Path

SLOW = 5


@pytest.fixture(scope="module")
def repaired(synthetic_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TimelineStore, Prediction]:
    tables = open_run(synthetic_folder, cache_dir=tmp_path_factory.mktemp("cache")).tables
    folder = tmp_path_factory.mktemp("timeline")
    prepare(tables, folder)
    return load(folder, tables.ranks), predict(tables, [parse_edit(f"rank_as_peers={SLOW}")])


def test_without_changes_both_states_are_as_recorded(repaired: tuple[TimelineStore, Prediction]) -> None:
    store, _ = repaired
    step = store.steps[1]
    morph = morph_of_rank(store, 0, step.start_ns, step.end_ns, None, 0.0)
    assert len(morph.category)
    assert np.array_equal(morph.begin[0], morph.begin[1])
    assert np.array_equal(morph.end[0], morph.end[1])


def test_the_slow_ranks_compute_gets_shorter_and_the_others_wait_less(
    repaired: tuple[TimelineStore, Prediction],
) -> None:
    store, prediction = repaired
    step = store.steps[1]
    length = {}
    for rank in (0, SLOW):
        morph = morph_of_rank(store, rank, step.start_ns, step.end_ns, prediction, 0.0)
        by_state = (morph.end - morph.begin).astype(float)
        computes = morph.category == COMPUTE
        length[rank] = by_state[:, computes].sum(axis=1), by_state[:, ~computes].sum(axis=1)
    (slow_before, slow_after), _ = length[SLOW]
    assert slow_before == pytest.approx(1.5 * slow_after, rel=0.1)
    (peer_before, peer_after), (wait_before, wait_after) = length[0]
    assert peer_before == pytest.approx(peer_after, rel=0.01)
    assert wait_after < wait_before


def test_close_slices_of_one_kind_are_merged_without_losing_time(repaired: tuple[TimelineStore, Prediction]) -> None:
    store, prediction = repaired
    step = store.steps[1]
    fine, coarse = (
        morph_of_rank(store, 0, step.start_ns, step.end_ns, prediction, closer) for closer in (0.0, step.end_ns / 50)
    )
    assert len(coarse.category) < len(fine.category)
    busy = (coarse.end[0] - coarse.begin[0]) * (coarse.coverage / 255)
    assert busy.sum() == pytest.approx((fine.end[0] - fine.begin[0]).sum(), rel=0.05)
    assert fine.begin.min(axis=1).tolist() == coarse.begin.min(axis=1).tolist()
    assert fine.end.max(axis=1).tolist() == coarse.end.max(axis=1).tolist()
