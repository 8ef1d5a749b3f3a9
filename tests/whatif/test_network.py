"""Network edits: latency and bandwidth of the run's own calls, hops and volumes of algorithms, linear kernel times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_faults import run_of
from tiny import Trace, table_set

from usp_prof.contract import Manifest
from usp_prof.replay.build import graph_of
from usp_prof.replay.node_work import Family, shape_of
from usp_prof.whatif.fitted_times import (
    USUAL_LATENCY_NS,
    Algorithm,
    KernelTimes,
    hops,
    kernel_times,
    network_of,
    volume,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_hops_and_volumes_are_those_of_the_textbook() -> None:
    assert hops("all_reduce", 8, Algorithm.RING) == 14
    assert hops("all_gather", 8, Algorithm.RING) == 7
    assert hops("all_reduce", 8, Algorithm.TREE) == 6
    assert hops("all_reduce", 8, Algorithm.DIRECT) == 2
    assert hops("broadcast", 1, Algorithm.RING) == 0
    assert volume("all_reduce", 4) == 1.5
    assert volume("all_gather", 4) == 0.75
    assert volume("broadcast", 4) == 1
    assert volume("all_reduce", 4, Algorithm.TREE) == 2
    assert volume("all_reduce", 4, Algorithm.DIRECT) == 3
    assert volume("all_reduce", 1) == 0


def test_two_sizes_separate_latency_from_bandwidth() -> None:
    side = {
        "mesh": {"dp": 4}, "work": {"steps": 2, "micro_batches": 1, "zero_stage": 1}, "shape": {"layers": 4},
        "network": {"latency_ns": 50_000, "noise": 0.0, "end_jitter_ns": 0},
    }  # fmt: skip
    run = run_of(json.dumps(side)).tables
    network, graph = network_of(run), graph_of(run)
    assert not network.guessed.all() or network.latency_ns.max() <= USUAL_LATENCY_NS
    assert (network.latency(graph) <= np.maximum(graph.transfer, 0)).all()
    assert network.spread(graph, network.latency_ns, 7.0)[graph.nodes.call < 0].tolist().count(7.0) > 0


def _steps(traces: dict[int, Trace], length_ns: int) -> Iterator[tuple[Trace, int, int]]:
    """Begin four steps of two ranks of one group, each with a product first; gives trace, step and its begin."""
    for rank in range(2):
        trace = traces[rank] = Trace(rank, 2, device="cpu").group("1", [0, 1], "mesh_dp")
        for step in range(4):
            at = step * length_ns
            trace.step(step, at, length_ns).op("aten::mm", at, 1_000_000)
            yield trace, step, at


def test_a_small_message_after_a_large_one_does_not_set_the_latency() -> None:
    traces: dict[int, Trace] = {}
    for trace, step, at in _steps(traces, 200_000_000):
        sent = {"group": "1", "posted_at": at + 1_900_000}
        trace.gloo("all_reduce", at + 2_000_000, 90_000_000, dims=(500_000,), sequence=3 * step, **sent)
        # Behind it on the same link, and once more when the link is free.
        trace.gloo("all_reduce", at + 2_100_000, 90_500_000, dims=(64,), sequence=3 * step + 1, thread=201, **sent)
        sent["posted_at"] = at + 120_000_000
        trace.gloo("all_reduce", at + 120_100_000, 400_000, dims=(64,), sequence=3 * step + 2, **sent)
    network = network_of(table_set(traces, Manifest(device="cpu")))
    assert network.latency_ns.max() == pytest.approx(400_000, rel=0.05)


def test_messages_of_nearly_one_size_do_not_set_the_latency() -> None:
    traces: dict[int, Trace] = {}
    for trace, step, at in _steps(traces, 300_000_000):
        # A line through the first two would leave 88 of 90 ms without bytes.
        for number, (elements, took) in enumerate([(500_000, 90_000_000), (510_000, 90_040_000), (64, 400_000)]):
            begin = at + 2_000_000 + number * 95_000_000
            trace.gloo(
                "all_reduce", begin, took, dims=(elements,), sequence=3 * step + number,
                group="1", posted_at=begin - 100_000,
            )  # fmt: skip
    network = network_of(table_set(traces, Manifest(device="cpu")))
    assert network.latency_ns.max() == pytest.approx(400_000, rel=0.05)


def test_kernels_scale_along_the_fitted_line() -> None:
    times = KernelTimes(constant_ns=5_000, flop_per_ns=1e6, shortest_ns=2_000)
    half = times.scaled(np.array([105_000, 40_000, 2_000]), np.array([1e11, 0.0, 0.0]), 0.5)
    assert half.tolist() == [55_000, 20_000, 2_000]
    assert (times.scaled(np.array([105_000]), np.array([1e11]), 0.5, cautious=True) > half[0]).all()
    assert KernelTimes(0.0, 0.0, 0.0).scaled(np.array([100]), np.array([1e9]), 2.0).tolist() == [200]


def test_the_line_goes_through_the_runs_own_products() -> None:
    run = run_of(json.dumps({"mesh": {"dp": 2}, "work": {"steps": 2, "micro_batches": 1}})).tables
    times = kernel_times(run)
    assert times.flop_per_ns > 0
    assert times.shortest_ns > 0


@pytest.mark.parametrize(
    ("name", "dims", "family", "flop"),
    [
        ("aten::mm", "[[4, 8], [8, 16]]", Family.PRODUCT, 2.0 * 4 * 8 * 16),
        ("aten::addmm", "[[16], [4, 8], [8, 16]]", Family.PRODUCT, 2.0 * 4 * 8 * 16),
        ("aten::bmm", "[[3, 4, 8], [3, 8, 16]]", Family.PRODUCT, 2.0 * 3 * 4 * 8 * 16),
        ("aten::linear", "[[2, 4, 8], [16, 8]]", Family.PRODUCT, 2.0 * 2 * 4 * 8 * 16),
        ("aten::mm", "[[4], []]", Family.PRODUCT, 0.0),
        ("aten::mm", "[]", Family.PRODUCT, 0.0),
        ("aten::mm", "no json", Family.PRODUCT, 0.0),
        ("aten::_flash_attention_forward", "[[1, 2, 3, 4]]", Family.ATTENTION, 0.0),
        ("aten::add", '{"a": 1}', Family.OTHER, 0.0),
    ],
)
def test_shapes_are_read_or_ignored(name: str, dims: str, family: Family, flop: float) -> None:
    shape = shape_of(name, dims, '["float", "float"]')
    assert (shape.family, shape.flop) == (family, flop)
