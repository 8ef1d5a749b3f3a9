"""Shortfall: the suggested changes fit, and are the smallest."""

from dataclasses import replace

import pytest
from planned import LLAMA_8B, MACHINE

from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import search
from usp_prof.extras.planner.shortfall import shortfall_of
from usp_prof.model.configuration import Offload, Recompute

SMALL = replace(MACHINE, memory_bytes=75e9)
PINNED = {"tp": 1, "pp": 1, "cp": 1, "zero": 1, "micro_batch": 1, "recompute": Recompute.NONE, "offload": Offload.NONE}


def question(**pinned: object) -> Question:
    return Question(LLAMA_8B, SMALL, devices=8, batch=64, pinned={**PINNED, **pinned})


def test_each_suggested_change_fits_alone() -> None:
    impossible = question()
    shortfall = shortfall_of(impossible, search(impossible).leanest_bytes)
    assert "--recompute full" in shortfall.changes
    assert not search(impossible).best
    assert search(question(recompute=Recompute.FULL)).best


def test_settings_that_follow_from_a_change_are_named() -> None:
    """`--devices 16` used to be suggested next to a fixed dp of 8, with which nothing is legal."""
    fixed = Question(
        replace(LLAMA_8B, layers=160),
        SMALL,
        devices=8,
        batch=64,
        pinned={"dp": 8, "micro_batches": 8, "tp": 1, "cp": 1, "pp": 1},
    )
    changes = shortfall_of(fixed, search(fixed).leanest_bytes).changes
    assert changes
    for change in changes:
        words = change.split()
        options = {
            name.removeprefix("--").replace("-", "_"): value
            for name, value in zip(words[::2], words[1::2], strict=True)
        }
        devices = int(options.pop("devices", "8"))
        offload = {"offload": Offload(options.pop("offload"))} if "offload" in options else {}
        pinned = {**fixed.pinned, **{name: int(value) for name, value in options.items()}, **offload}
        assert search(replace(fixed, devices=devices, pinned=pinned)).best


def test_the_missing_bytes_exceed_the_usable_memory() -> None:
    impossible = question()
    leanest = search(impossible).leanest_bytes
    assert shortfall_of(impossible, leanest).missing_bytes == pytest.approx(leanest - SMALL.room_bytes)


def test_the_fewest_devices_fit_and_half_of_them_do_not() -> None:
    huge = Question(replace(LLAMA_8B, layers=320), SMALL, devices=8, batch=512, pinned={"offload": Offload.NONE})
    option, _, devices_text = shortfall_of(huge, search(huge).leanest_bytes).changes[-1].partition(" ")
    devices = int(devices_text)
    assert option == "--devices"
    assert search(replace(huge, devices=devices)).best
    assert not search(replace(huge, devices=devices // 2)).best


def test_fewer_devices_are_enough_with_an_offloaded_optimizer() -> None:
    """Plans offload it if nothing else fits, so more devices than needed used to be named."""
    huge = Question(replace(LLAMA_8B, layers=320), SMALL, devices=4, batch=512)
    without = search(huge)
    assert not without.best
    offloaded, plain = (change.split() for change in shortfall_of(huge, without.leanest_bytes).changes)
    assert offloaded[2:] == ["--offload", "optimizer"]
    assert int(offloaded[1]) < int(plain[1])
    assert search(replace(huge, devices=int(offloaded[1]))).best
    assert not search(replace(huge, devices=int(offloaded[1]) // 2)).best


def test_only_changes_that_the_trainer_can_run_are_named() -> None:
    """An offloaded optimizer used to be suggested for torchtitan, which has none."""
    model = replace(LLAMA_8B, name="Llama-3-405B", layers=126, hidden=16384, heads=128, ffn_hidden=53248)
    huge = Question(model, SMALL, devices=16, batch=512, dtype="fp8", trainer="torchtitan")
    changes = shortfall_of(huge, search(huge).leanest_bytes).changes
    assert changes
    assert not any("offload" in change for change in changes)
