"""Does a collective cost what its ring over the slowest link costs?"""

from dataclasses import replace

import pytest
from planned import MACHINE

from usp_prof.model.configuration import Configuration
from usp_prof.planner.messages import gathered, link, reduced, sent


def test_a_group_inside_a_node_uses_the_link() -> None:
    each = Configuration(dp=4, tp=8)
    assert gathered(MACHINE, each, "tp", 800e6) == pytest.approx(7 * 1000 + 700e6 / 400e9 * 1e9)
    assert reduced(MACHINE, each, "tp", 800e6) == 2 * gathered(MACHINE, each, "tp", 800e6)


def test_neighbours_of_an_outer_axis_lie_in_other_nodes() -> None:
    assert link(MACHINE, Configuration(dp=4, tp=8), "dp") == (50e9, 10_000)


def test_a_ring_over_nodes_enters_each_by_all_of_its_cards() -> None:
    assert link(MACHINE, Configuration(dp=16), "dp") == (400e9, 10_000)
    assert link(MACHINE, Configuration(dp=16, tp=2), "dp") == (200e9, 10_000)
    assert link(MACHINE, Configuration(pp=16), "pp", ring=False) == (50e9, 10_000)


def test_experts_lie_among_the_data_parallel_ranks() -> None:
    assert link(MACHINE, Configuration(dp=8, ep=8), "ep")[0] == 400e9
    assert link(replace(MACHINE, devices_per_node=4), Configuration(dp=8, cp=2, ep=8), "shards")[0] == 200e9


def test_alone_nothing_is_sent() -> None:
    assert gathered(MACHINE, Configuration(), "tp", 1e9) == 0
    assert sent(MACHINE, Configuration(), "pp", 1e9) == 0
