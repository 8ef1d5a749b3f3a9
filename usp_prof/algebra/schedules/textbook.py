"""Which bubble do the textbooks give a schedule? As a fraction of the window, where F = I = W and B = I + W."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.algebra.schedules.orders import Schedule

if TYPE_CHECKING:
    from usp_prof.algebra.schedules.orders import Shape


def bubble_fraction(schedule: Schedule, shape: Shape) -> float:
    """Give the share of ranks times window in which nothing runs.

    GPipe and 1F1B: (p-1)/(m+p-1); interleaved: (p-1)/(v*m+p-1) (Narayanan et al. 2021). ZB-H1 loses (p-1)(F+I-W)
    (Qi et al. 2023), which is (p-1)/(3m+p-1); ZBV nothing. DualPipeV loses (p-1)(F&B+B-3W) (DeepSeek), which with
    its two stages on each rank is (p-1)/(3m+p-1).
    """
    lost, work = shape.ranks - 1, shape.micro_batches * shape.chunks
    match schedule:
        case Schedule.ZBV:
            return 0.0
        case Schedule.ZB_H1 | Schedule.INTERLEAVED_ZB:
            return lost / (3 * work + lost)
        case Schedule.DUALPIPE_V:
            return lost / (3 * shape.micro_batches + lost)
        case _:
            return lost / (work + lost)
