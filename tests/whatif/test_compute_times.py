"""Repaired compute: what a rank computes longer than its peers is removed from the kernels that take longer."""

from __future__ import annotations

import numpy as np
from tiny import Trace, table_set

from usp_prof.model.edit import Edit
from usp_prof.replay.graph import NodeKind
from usp_prof.whatif.predict import predict

US = 1_000
BORDER = ("all_reduce", 500)


def _rank(*steps: list[tuple[str, int]], first: int = 0) -> Trace:
    """Run consecutive kernels (name and microseconds); `all_reduce` communicates."""
    trace = Trace()
    for number, kernels in enumerate(steps, first):
        begin = now = number * 20_000 * US
        trace.step(number, begin, 20_000 * US)
        for place, (name, length) in enumerate(kernels):
            launched, now = begin + 10 * place * US, now + 100 * US
            if name == "all_reduce":
                trace.collective(name, now, length * US)
            else:
                trace.kernel(name, now, length * US, launch_at=launched)
            now += length * US
    return trace


def _repaired(ranks: dict[int, Trace]) -> list[int]:
    """Return the kernels of rank 0 in microseconds if it performs like its peers."""
    edited = predict(table_set(ranks), [Edit("rank_as_peers", "0")]).graph
    rows = edited.nodes.of_rank(0)
    rows = rows[edited.nodes.kind[rows] == NodeKind.COMPUTE]
    return np.rint(edited.duration[rows] / US).astype(int).tolist()


def test_only_the_slow_kernel_is_shortened() -> None:
    usual = [("a", 1_000), ("b", 2_000), ("a", 1_000), BORDER, ("c", 3_000)]
    slow = [("a", 1_000), ("b", 6_000), ("a", 1_000), BORDER, ("c", 3_000)]
    ranks = {0: _rank(slow, usual, slow), 1: _rank(usual, usual, usual), 2: _rank(usual, usual, usual)}
    assert _repaired(ranks) == [1_000, 2_000, 1_000, 3_000] * 3


def test_kernels_in_another_order_are_compared_by_name() -> None:
    usual, swapped = [("a", 1_000), ("b", 2_000), BORDER, ("a", 500)], [("b", 2_000), ("a", 1_000), BORDER, ("a", 500)]
    slow = [("b", 2_000), ("a", 4_000), BORDER, ("a", 500)]
    ranks = {0: _rank(slow, slow), 1: _rank(usual, usual), 2: _rank(swapped, usual)}
    assert _repaired(ranks) == [2_000, 1_000, 500] * 2


def test_kernels_that_peers_do_not_run_are_shortened_in_proportion() -> None:
    usual, other = [("a", 1_000), ("b", 1_000), BORDER], [("c", 1_000), ("d", 3_000), BORDER]
    ranks = {0: _rank(other), 1: _rank(usual), 2: _rank(usual)}
    assert _repaired(ranks) == [500, 1_500]


def test_without_a_common_step_median_steps_are_compared() -> None:
    usual, slow = [("a", 1_000), BORDER], [("a", 2_000), BORDER]
    ranks = {0: _rank(slow, slow, first=3)} | {peer: _rank(usual, usual) for peer in (1, 2)}
    assert _repaired(ranks) == [1_000, 1_000]
