"""Pipeline schedules: one record each, with everything that other code needs to know. Standard library only.

To add a schedule, add its record here and the order of its actions to `ORDERS` in `schedule_orders.py`. The analyses,
the what-if, the planner and the trainer all read these records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Shape:
    """A pipeline: ranks, micro-batches per step, and stages per rank."""

    ranks: int
    micro_batches: int
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of one schedule."""

    bubble: Callable[[Shape], float]
    """The textbook bubble: idle share of ranks times window, assuming F = I = W and B = I + W."""
    spellings: tuple[str, ...]
    """Usual names in lowercase letters and digits, without a leading `schedule`."""
    pytorch_name: str = ""
    """Class in `torch.distributed.pipelining` without `Schedule`, as torchtitan accepts it; empty if there is none."""
    stages_per_rank: int | None = 1
    """Stages per rank; `None` if the user chooses the number."""
    is_v_shaped: bool = False
    """Whether stages go down the ranks and up again, so that the first rank has the first and the last stage."""
    splits_backward: bool = False
    """Whether weight gradients are computed separately from input gradients."""
    micro_batches_per_rank: int = 1
    """Minimum micro-batches per rank that PyTorch and the trainer require; 0: one per step is enough."""

    @property
    def is_looped(self) -> bool:
        """Whether stages loop over the ranks a user-defined number of times, in rounds of micro-batches."""
        return self.stages_per_rank is None

    @property
    def usual_stages_per_rank(self) -> int:
        """Default number of stages per rank."""
        return self.stages_per_rank or 2

    def least_micro_batches(self, ranks: int) -> int:
        """Return the minimum number of micro-batches per step."""
        return max(1, self.micro_batches_per_rank * ranks)


# Textbook bubbles. GPipe and 1F1B lose (p-1) forwards and backwards: (p-1)/(m+p-1); interleaved: (p-1)/(v*m+p-1)
# (Narayanan et al. 2021). ZB-H1 loses (p-1)(F+I-W) (Qi et al. 2023), which is (p-1)/(3m+p-1). DualPipeV loses
# (p-1)(F&B+B-3W) (DeepSeek), which with its two stages per rank is also (p-1)/(3m+p-1).


def _fill_and_drain(shape: Shape) -> float:
    lost = shape.ranks - 1
    return lost / (shape.micro_batches * shape.chunks + lost)


def _zero_bubble_h1(shape: Shape) -> float:
    lost = shape.ranks - 1
    return lost / (3 * shape.micro_batches * shape.chunks + lost)


def _dualpipe_v(shape: Shape) -> float:
    lost = shape.ranks - 1
    return lost / (3 * shape.micro_batches + lost)


def _none(_: Shape) -> float:
    return 0.0


class Schedule(StrEnum):
    """Names of the schedules."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    INTERLEAVED_ZB = "interleaved-zb"
    ZBV = "zbv"
    DUALPIPE_V = "dualpipev"

    @property
    def traits(self) -> Traits:
        """Properties of the schedule."""
        return TRAITS[self]


TRAITS: dict[Schedule, Traits] = {
    Schedule.GPIPE: Traits(
        bubble=_fill_and_drain,
        spellings=("gpipe", "afab"),
        pytorch_name="GPipe",
        micro_batches_per_rank=0,
    ),
    Schedule.ONE_F_ONE_B: Traits(
        bubble=_fill_and_drain,
        spellings=("1f1b",),
        pytorch_name="1F1B",
    ),
    Schedule.INTERLEAVED: Traits(
        bubble=_fill_and_drain,
        spellings=("interleaved", "interleaved1f1b"),
        pytorch_name="Interleaved1F1B",
        stages_per_rank=None,
    ),
    Schedule.ZB_H1: Traits(
        bubble=_zero_bubble_h1,
        spellings=("zbh1", "zerobubble", "zb1p"),
        splits_backward=True,
    ),
    Schedule.INTERLEAVED_ZB: Traits(
        bubble=_zero_bubble_h1,
        spellings=("interleavedzb", "interleavedzerobubble"),
        pytorch_name="InterleavedZeroBubble",
        stages_per_rank=None,
        splits_backward=True,
    ),
    Schedule.ZBV: Traits(
        bubble=_none,
        spellings=("zbv", "zbvzerobubble"),
        pytorch_name="ZBVZeroBubble",
        stages_per_rank=2,
        is_v_shaped=True,
        splits_backward=True,
    ),
    Schedule.DUALPIPE_V: Traits(
        bubble=_dualpipe_v,
        spellings=("dualpipev",),
        pytorch_name="DualPipeV",
        stages_per_rank=2,
        is_v_shaped=True,
        splits_backward=True,
        micro_batches_per_rank=2,
    ),
}


def schedule_by_name(name: str) -> Schedule | None:
    """Return the schedule with this name in any usual spelling (`Schedule1F1B`, `InterleavedZeroBubble`, ...)."""
    letters = "".join(c for c in name.lower() if c.isalnum()).removeprefix("schedule")
    return next((schedule for schedule, traits in TRAITS.items() if letters in traits.spellings), None)
