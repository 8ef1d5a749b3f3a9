"""Faults: uneven sharing of work keeps its sum, and faults of a program affect every rank."""

from __future__ import annotations

from typing import Any

import pytest

from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.mesh import Topology
from usp_prof.extras.synth.ops import Uneven
from usp_prof.extras.synth.simulation import Simulation


def _declared(kind: str, mesh: dict[str, int], **how: float) -> Declaration:
    faults: list[dict[str, Any]] = [{"kind": kind, "rank": 1, **how}]
    return Declaration.from_dict({"mesh": mesh, "faults": faults, "work": {"steps": 1, "micro_batches": 2}})


@pytest.mark.parametrize(
    ("kind", "mesh", "how", "feeds"),
    [
        ("expert_imbalance", {"dp": 4, "ep": 4}, {"factor": 2.5}, True),
        ("expert_imbalance", {"dp": 4, "ep": 2}, {"factor": 1.5}, True),
        ("contiguous_cp", {"cp": 4}, {}, False),
        ("unequal_lengths", {"dp": 4}, {"factor": 0.3}, True),
    ],
)
def test_shares_add_up_to_one_for_each(kind: str, mesh: dict[str, int], how: dict[str, float], *, feeds: bool) -> None:
    run = _declared(kind, mesh, **how)
    topology = Topology(run.mesh)
    shares = [
        Uneven(run, topology, rank).share(10, micro_batch, feeds=feeds)
        for rank in range(run.mesh.world)
        for micro_batch in range(run.work.micro_batches)
    ]
    assert sum(shares) / len(shares) == pytest.approx(1)
    assert max(shares) > 1.1


def test_experts_and_attention_have_separate_shares() -> None:
    experts, sequence = (
        _declared("expert_imbalance", {"dp": 2, "ep": 2}, factor=1.5),
        _declared("contiguous_cp", {"cp": 2}),
    )
    assert Uneven(experts, Topology(experts.mesh), 1).share(10, 0, feeds=False) == 1
    assert Uneven(experts, Topology(experts.mesh), 1).share(10, 0, feeds=True) == 1.5
    assert Uneven(sequence, Topology(sequence.mesh), 1).share(10, 0, feeds=True) == 1
    assert Uneven(sequence, Topology(sequence.mesh), 1).share(10, 0, feeds=False) == 1.5


def test_a_fault_of_the_program_affects_every_rank() -> None:
    logs = Simulation(_declared("blocking_sync", {"dp": 2})).logs
    waits = [sum(span.name == "cudaStreamSynchronize" for span in log.spans) for log in logs]
    assert waits == [5, 5], "one after each of four actions, and one for the loss"
    blocks = Simulation(_declared("unfused_optimizer", {"dp": 2}, factor=30)).logs[0].blocks
    assert len(blocks[-1].ops) == 30


def test_a_slow_host_takes_longer_from_launch_to_launch() -> None:
    slow, fast = (
        Simulation(_declared("slow_host", {"dp": 2}, factor=3)).logs[rank].blocks[0].host_ns for rank in (1, 0)
    )
    assert (slow[1] - slow[0]) == 3 * (fast[1] - fast[0])


def test_pageable_copies_and_device_allocations_are_logged() -> None:
    copies = Simulation(_declared("pageable_copy", {"dp": 2}, delay_ns=1_000)).logs[0].copies
    assert "HtoD pageable" in [copy.direction for copy in copies]
    spans = Simulation(_declared("device_allocation", {"dp": 2}, delay_ns=1_000)).logs[0].spans
    assert sum(span.name == "cudaMalloc" for span in spans) == 4
