"""Offloaded optimizer: its device memory, host memory, and time of its slowest stage."""

from dataclasses import replace

import pytest
from planned import LLAMA_8B, MACHINE, PLAIN_TRAINER

from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.predict import Prediction, predict
from usp_prof.extras.planner.profiles import PROFILES
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import search
from usp_prof.model.configuration import Configuration, Offload

KEPT = Configuration(dp=8, zero=1, micro_batches=4)
OFFLOADED = replace(KEPT, offload=Offload.OPTIMIZER)
WEIGHTS = 8.03e9 / 8
"""Of Llama-3-8B, on one of eight ranks."""


def plain(configuration: Configuration, **rates: float) -> Prediction:
    """Predict by the formulas alone."""
    return predict(LLAMA_8B, configuration, replace(MACHINE, **rates), profile=PLAIN_TRAINER)


def test_an_offloaded_optimizer_needs_eighteen_host_bytes_per_weight() -> None:
    on_device, offloaded = plain(KEPT), plain(OFFLOADED)
    assert on_device.footprint.optimizer_bytes == pytest.approx(12 * WEIGHTS, rel=0.01)
    assert (offloaded.footprint.optimizer_bytes, on_device.host_bytes) == (0, 0)
    assert offloaded.host_bytes == pytest.approx(18 * WEIGHTS, rel=0.01)


@pytest.mark.parametrize(
    ("rates", "bytes_each", "rate"),
    [
        ({"host_link_rate": 1e9, "host_memory_rate": 1e12}, 4, 1e9),  # gradients on their way down
        ({"host_link_rate": 1e12, "host_memory_rate": 1e9}, 28, 1e9),  # AdamW on the host
    ],
)
def test_the_slowest_part_determines_the_optimizer_time(rates: dict[str, float], bytes_each: int, rate: float) -> None:
    assert plain(OFFLOADED, **rates).optimizer_ns == pytest.approx(bytes_each * WEIGHTS / rate * 1e9, rel=0.01)


def test_our_trainer_keeps_fp32_shards_on_the_device_with_zero_3() -> None:
    prediction = predict(LLAMA_8B, replace(OFFLOADED, zero=3), MACHINE, profile=PROFILES["usp-prof"])
    assert prediction.footprint.optimizer_bytes == pytest.approx(4 * WEIGHTS, rel=0.01)


def test_offloading_is_tried_only_if_nothing_fits_without_it() -> None:
    tight = Question(LLAMA_8B, replace(MACHINE, memory_bytes=80e9), 1, 4)
    plans = search(tight)
    assert plans.best
    assert {plan.configuration.offload for plan in plans.best} == {Offload.OPTIMIZER}
    assert ("offload", "none") in [(barred.knob, barred.value) for barred in plans.barred]
    assert not search(replace(tight, pinned={"offload": "none"})).best
    roomy = search(replace(tight, cluster=replace(MACHINE, memory_bytes=300e9)))
    assert {plan.configuration.offload for plan in roomy.best} == {Offload.NONE}


def test_hosts_of_newer_devices_are_faster() -> None:
    old, new, superchip = (cluster_of(name).host_link_rate for name in ("A100", "H100", "GH200 144GB"))
    assert old < new < superchip
