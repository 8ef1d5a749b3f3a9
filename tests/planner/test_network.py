"""Time of a collective: that of its ring over the slowest link."""

from dataclasses import replace

import numpy as np
import pytest
from planned import EXPERTS, MACHINE, cases

from usp_prof.extras.planner import network
from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.profiles import PROFILES
from usp_prof.model.configuration import Configuration
from usp_prof.model.hardware import DEVICES, Precision

FEW = 1 - network.FEW_MEMBERS / 64


def test_a_group_inside_a_node_uses_the_link() -> None:
    c = cases(Configuration(dp=4, tp=8))
    assert network.all_gather(c, "tp", 800e6) == pytest.approx(8 * 1e-6 + 700e6 / (400e9 * FEW))


def test_neighbors_on_an_outer_axis_are_in_other_nodes_with_one_card_each() -> None:
    _, rate, hop = network.link(cases(Configuration(dp=4, tp=8)), "shards")
    assert (float(rate[0]), float(hop[0])) == (50e9, 1e-5)


@pytest.mark.parametrize(("tp", "cards"), [(2, 4), (4, 2), (8, 1)])
def test_a_ring_over_nodes_uses_the_cards_of_all_members_of_a_node(tp: int, cards: int) -> None:
    _, rate, _ = network.link(cases(Configuration(dp=16, tp=tp)), "shards")
    assert float(rate[0]) == cards * 50e9


def test_a_ring_has_the_network_latency_once_per_node() -> None:
    c = cases(Configuration(dp=64), Configuration(dp=512))
    few, many = network.all_gather(c, "shards", 1.0)
    assert many - few == pytest.approx((64 - 8) * 1e-5 + (448 - 56) * 1e-6, rel=5e-3)


def test_an_all_reduce_moves_twice_the_bytes_in_fewer_steps() -> None:
    c = cases(Configuration(dp=64))
    large, small = network.all_reduce(c, "shards", 1e12), network.all_reduce(c, "shards", 1.0)
    assert large / network.all_gather(c, "shards", 1e12) == pytest.approx(2, rel=1e-2)
    assert small < network.all_gather(c, "shards", 1.0)


def test_measured_all_gathers_of_a_large_cluster_are_predicted() -> None:
    """256 MB over 8 H100 per node with EFA (Ultra-Scale Playbook): bus bandwidth falls from 185 to 11 GB/s."""
    h100, on_efa = replace(MACHINE, link_rate=336e9), replace(PROFILES["nanotron"], network_share=1.0)
    c = cases(*(Configuration(dp=members) for members in (16, 64, 512)), cluster=h100, profile=on_efa)
    members = np.array([16, 64, 512])
    rate = 256e6 * (members - 1) / members / network.all_gather(c, "shards", 256e6) / 1e9
    assert rate == pytest.approx([185, 69, 11], rel=0.2)


def test_a_single_rank_sends_nothing() -> None:
    c = cases(Configuration())
    for axis in ("tp", "cp", "shards", "ep"):
        assert not network.all_gather(c, axis, 1e9).any()
    assert not network.send(c, "pp", 1e9).any()
    assert not network.dispatch(c, 1e9).any()


def test_a_token_is_sent_once_to_a_node_with_several_of_its_experts() -> None:
    many = replace(EXPERTS, experts=64, experts_per_token=8)
    c = cases(Configuration(dp=16, ep=16), model=many)
    seconds = float(network.dispatch(c, 1e9)[0])
    assert seconds == pytest.approx(1e9 * 2 * (1 - 0.5**8) * 0.5 / 50e9, rel=5e-3)


@pytest.mark.parametrize(
    ("export", "original", "dtype"),
    [
        ("H800 SXM", "H100 SXM", "bf16"), ("H800 SXM", "H100 SXM", "fp8"), ("A800 SXM 80GB", "A100 SXM 80GB", "bf16"),
        ("GH200 96GB", "GH200 144GB", "bf16"), ("GH200 96GB", "GH200 144GB", "fp8"),
    ],
)  # fmt: skip
def test_chips_that_differ_in_links_or_memory_reach_the_same_share_of_the_peak(
    export: str, original: str, dtype: str
) -> None:
    """An H800 used to be faster than an H100, because its products were not measured."""
    first, second = (cluster_of(name, dtype) for name in (export, original))
    assert (first.efficiency, first.core_efficiency) == (second.efficiency, second.core_efficiency)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "fp4", "fp32"])
def test_no_device_exceeds_its_peak(dtype: str) -> None:
    """In fp32, the core of attention and the head also run in fp32; only narrow products keep them at 16 bits."""
    precision = Precision.FP32 if dtype == "fp32" else Precision(dtype)
    for device in (device for device in DEVICES if device.peak(precision) and device.link != "ICI"):
        machine = cluster_of(device.name, dtype)
        assert 0 < machine.efficiency <= 1, device.name
        assert machine.core_flops <= machine.peak_flops, device.name


def test_the_basis_names_the_type_in_which_products_were_measured() -> None:
    """fp8 products of an MI300X used to count as measured, although the share is that of bf16."""
    assert cluster_of("H100", "fp8").basis == "products measured in fp8"
    assert cluster_of("MI300X", "fp8").basis == "products measured in bf16"
    assert cluster_of("L40S", "bf16").basis == "assumed"
