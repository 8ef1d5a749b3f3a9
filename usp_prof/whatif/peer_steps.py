"""Steps of peers, cut into pieces that all of them have, so that their times can be compared.

A rank's step is compared with those of the peers that do the same work in the same order. It is then cut after each
piece of work. If there are too few of them, it is compared with all peers and cut after each communication, or not at
all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.statistics import medians_of_others
from usp_prof.whatif.time_shares import excess_to_remove, longest_excess_of_peers

FEWEST_ALIKE = 3
"""Ranks with the same work of which each is compared with the others only; half of all ranks are enough, too."""


@dataclass(frozen=True, slots=True, eq=False)
class RankStep:
    """One rank's nodes in one step, in order, with their own times and the work that each does or starts."""

    rows: Ints
    own_ns: Ints
    label: Ints
    """What the node does or starts, comparable between peers; -1 if it starts nothing."""
    communicates: Flags
    """Whether the node is or starts communication."""


HostSteps = Mapping[int, Mapping[int, RankStep]]
"""What each rank's host did, by rank and step."""


@dataclass(frozen=True, slots=True, eq=False)
class PeerStep:
    """One step of several peers, cut into pieces that all of them have."""

    ranks: list[int]
    of_rank: list[RankStep]
    pieces: list[Ints]
    """By rank: the piece of each of its nodes."""
    took_ns: Floats
    """Own time: one row per rank, one column per piece."""
    judged: list[int]
    """The ranks that are compared with the others here; the rest of them are only peers."""


def peer_steps(steps_of_rank: HostSteps, group: tuple[int, ...]) -> Iterator[PeerStep]:
    """Yield the steps of the peers, cut into pieces; steps that only one of them has are left out.

    Each rank is judged once in each step.
    """
    present = [rank for rank in group if rank in steps_of_rank]
    for step in sorted({step for rank in present for step in steps_of_rank[rank]}):
        step_of_rank = {rank: steps_of_rank[rank][step] for rank in present if step in steps_of_rank[rank]}
        if len(step_of_rank) < 2:
            continue
        remaining = dict(step_of_rank)
        for ranks in _same_work(step_of_rank):
            yield _compared({rank: remaining.pop(rank) for rank in ranks}, ranks)
        if remaining:
            yield _compared(step_of_rank, list(remaining))


def _same_work(step_of_rank: Mapping[int, RankStep]) -> list[list[int]]:
    """Return the ranks that do the same work in the same order: at least half of all, or FEWEST_ALIKE."""
    ranks_of_work: dict[bytes, list[int]] = {}
    for rank, step in step_of_rank.items():
        ranks_of_work.setdefault(step.label[step.label >= 0].tobytes(), []).append(rank)
    least = max(2, min(FEWEST_ALIKE, len(step_of_rank) / 2))
    return [ranks for ranks in ranks_of_work.values() if len(ranks) >= least]


def _compared(step_of_rank: Mapping[int, RankStep], judged: list[int]) -> PeerStep:
    steps = list(step_of_rank.values())
    pieces = _pieces(steps)
    count = 1 + max(int(piece[-1]) for piece in pieces)
    took = [np.bincount(piece, of_rank.own_ns, count) for of_rank, piece in zip(steps, pieces, strict=True)]
    return PeerStep(list(step_of_rank), steps, pieces, np.array(took), judged)


def _pieces(steps: list[RankStep]) -> list[Ints]:
    """Return the piece number of each node, with the peers' steps cut at the same points, as finely as they agree.

    Example with launches of compute `c` and communication `x`, and calls that start nothing `.`:

        peer 0   . c . x . c .    pieces 0 0 1 1 2 2 3    both launch c x c
        peer 1   c . x c          pieces 0 1 1 2
    """
    by_work = [step.label >= 0 for step in steps]
    by_communication = [step.communicates for step in steps]
    for closes in (by_work, by_communication):
        # By peer: what its closing nodes start, in order.
        started = [step.label[is_last] for step, is_last in zip(steps, closes, strict=True)]
        if all(np.array_equal(started[0], other) for other in started[1:]):
            return [_numbered_to(is_last) for is_last in closes]
    return [np.zeros(len(step.rows), np.int64) for step in steps]


def _numbered_to(closes: Flags) -> Ints:
    """Return the piece number of each node; a piece ends with a closing node, and what follows the last is another."""
    return np.asarray(np.cumsum(closes) - closes)


def repaired(steps: list[PeerStep], ranks: Collection[int]) -> Iterator[tuple[PeerStep, int, Floats]]:
    """Yield each step of the given ranks, the rank, and how long its pieces take if it is as fast as its peers.

    The rank then takes at most as long as its peers over all steps, and none of its pieces is unusually long (see
    `excess_to_remove`). Where it takes less, it is unchanged.
    """
    excess = _excess_of_ranks(steps)
    of_ranks = [np.concatenate(of_steps) for of_steps in excess.values()]
    for rank, own_excess, of_peers in zip(excess, of_ranks, longest_excess_of_peers(of_ranks), strict=True):
        if rank not in ranks:
            continue
        ends = np.cumsum([len(of_step) for of_step in excess[rank]])
        present = [step for step in steps if rank in step.judged]
        removed = np.split(excess_to_remove(own_excess, of_peers), ends[:-1])
        for step, removed_ns in zip(present, removed, strict=True):
            yield step, rank, step.took_ns[step.ranks.index(rank)] - removed_ns


def _excess_of_ranks(steps: list[PeerStep]) -> dict[int, list[Floats]]:
    """Return by rank, for each step it has, how much longer its pieces take than its peers' medians."""
    excess: dict[int, list[Floats]] = {}
    for step in steps:
        medians, totals = medians_of_others(step.took_ns), medians_of_others(step.took_ns.sum(axis=1, keepdims=True))
        for rank, took_ns, median_ns, total_ns in zip(step.ranks, step.took_ns, medians, totals[:, 0], strict=True):
            if rank in step.judged:
                excess.setdefault(rank, []).append(took_ns - adding_up(median_ns, float(total_ns)))
    return excess


def adding_up(pieces: Floats, total: float) -> Floats:
    """Return the pieces scaled to add up to the total."""
    piece_sum = float(pieces.sum())
    return pieces * (total / piece_sum) if piece_sum > 0 else pieces
