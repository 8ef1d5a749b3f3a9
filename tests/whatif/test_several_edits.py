"""Several edits: a setting has one value, a repeated change counts once, factors multiply."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest
from made_faults import run_of

from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.whatif.edits import EDITS
from usp_prof.whatif.edits.kind import Again
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet


@cache
def made(zero: int) -> TableSet:
    work = {"steps": 3, "micro_batches": 4, "zero_stage": zero}
    return run_of(json.dumps({"mesh": {"dp": 4, "tp": 2}, "shape": {"layers": 4}, "work": work})).tables


def after_ns(zero: int, edits: str) -> float:
    return predict(made(zero), [parse_edit(edit) for edit in edits.split()]).after_ns


@pytest.mark.parametrize(
    ("zero", "several", "last"),
    [
        (0, "zero=3 zero=0", "zero=0"),
        (0, "zero=3 zero=1", "zero=1"),
        (3, "zero=1 zero=3", "zero=3"),
        (3, "prefetch=off prefetch=on", "prefetch=on"),
        (0, "recompute=full recompute=none", "recompute=none"),
        (0, "dp=8 dp=4", "dp=4"),
        (0, "tp=4 tp=2", "tp=2"),
        (0, "micro_batches=8 micro_batches=2", "micro_batches=2"),
        (0, "comm_dtype=fp8,axis=dp comm_dtype=fp8,axis=dp", "comm_dtype=fp8,axis=dp"),
        (0, "algorithm=tree,axis=dp algorithm=ring,axis=dp", "algorithm=ring,axis=dp"),
        (0, "comm_dtype=bf16,axis=dp comm_dtype=fp8", "comm_dtype=fp8"),
        (0, "zero=3 bandwidth=2,axis=dp zero=1", "bandwidth=2,axis=dp zero=1"),
        (0, "dp=2,scaling=strong micro_batches=8", "micro_batches=8 dp=2"),
    ],
)
def test_the_last_value_of_a_setting_applies(zero: int, several: str, last: str) -> None:
    """Each edit used to be compared with the recording, so ZeRO-3 and back cost 43% of a step."""
    assert after_ns(zero, several) == pytest.approx(after_ns(zero, last), rel=1e-6)


@pytest.mark.parametrize(
    ("edit", "other"),
    [
        ("zero=3", "bandwidth=2,axis=dp"),
        ("zero=1", "comm_dtype=fp8,axis=dp"),
        ("zero=1", "dp=8"),
        ("latency=2", "bandwidth=2"),
        ("latency=2", "algorithm=tree"),
    ],
)
def test_added_calls_follow_the_other_edits_in_any_order(edit: str, other: str) -> None:
    assert after_ns(0, f"{edit} {other}") == after_ns(0, f"{other} {edit}")
    assert after_ns(0, f"{edit} {other}") != after_ns(0, edit)


def test_repeated_edits_without_a_factor_apply_once() -> None:
    assert after_ns(0, "ideal ideal") == after_ns(0, "ideal")
    assert after_ns(0, "rank_as_peers=1 rank_as_peers=2 rank_as_peers=1") == after_ns(
        0, "rank_as_peers=2 rank_as_peers=1"
    )


def test_a_setting_for_all_axes_cannot_be_repeated_for_one() -> None:
    with pytest.raises(UsageError, match="already sets it for all of these"):
        after_ns(0, "comm_dtype=fp8 comm_dtype=bf16,axis=dp")


def test_settings_of_different_axes_apply_together() -> None:
    both = after_ns(0, "comm_dtype=fp8,axis=dp comm_dtype=fp8,axis=tp")
    assert both < after_ns(0, "comm_dtype=fp8,axis=tp")
    assert both < after_ns(0, "comm_dtype=fp8,axis=dp")


@pytest.mark.parametrize("name", ["compute_faster", "comm_faster", "bandwidth"])
def test_factors_multiply(name: str) -> None:
    assert after_ns(0, f"{name}=2 {name}=0.5") == pytest.approx(after_ns(0, f"{name}=1"), rel=1e-6)


def test_every_edit_with_a_value_defines_its_repetition() -> None:
    """An edit with a value is a factor or a setting, or it names one of several independent places."""
    of_places = {"rank_as_peers", "host_as_peers", "link_as_peers", "even_work", "bucketed", "no_blocking"}
    valued = {edit.name for edit in EDITS if "=" in edit.example.partition(",")[0]}
    assert {edit.name for edit in EDITS if edit.again is not Again.NOTHING} == valued - of_places
