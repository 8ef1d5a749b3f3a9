"""Partial recomputation: as few layers computed again as memory needs, or larger groups where all of them don't fit.

Full recomputation is searched first, with every layer and one layer at a time. Where it fits and keeping everything
does not, the least number of layers of a stage that fits is found by halving: less is faster. Where it does not fit,
groups of layers keep one input together (Megatron's `uniform`), which takes no more time.

    layers of a stage again   0 (none)  1  2  3  4 (all)
    fits                      no        no no yes yes      -> 3
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.configuration import FULL, NONE, Columns
from usp_prof.planner import memory
from usp_prof.planner.cases import with_columns
from usp_prof.planner.stages import Stages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.planner.cases import Cases

    Bytes = NDArray[np.float64]

GROUPS = (2, 4, 8)


def refined(c: Cases, stages: Stages, need: Bytes, room: float) -> tuple[Columns, Bytes]:
    """Give further rows that fit, and what they need: partly recomputed, or in groups; none where these are pinned."""
    is_full = (c.recompute == FULL) & (c.recompute_layers == 0) & (c.recompute_group == 1)
    fits = need <= room
    some, their_need = _least_layers(*_rows(c, stages, np.flatnonzero(is_full & fits)), room)
    grouped, grouped_need = _least_group(*_rows(c, stages, np.flatnonzero(is_full & ~fits)), room)
    return joined(some, grouped), np.concatenate([their_need, grouped_need])


def _least_layers(c: Cases, stages: Stages, room: float) -> tuple[Columns, Bytes]:
    """Find the fewest layers of a stage that have to be computed again, where it is neither none nor all."""
    keeps_all = replace(c, recompute=np.full_like(c.recompute, NONE))
    c, stages = _rows(c, stages, np.flatnonzero(needs(keeps_all, stages) > room))
    too_few, enough = np.zeros(len(c.dp), np.int64), layers_of_stage(c)
    most = enough.copy()
    while (enough - too_few > 1).any():
        middle = (too_few + enough) // 2
        fits = needs(replace(c, recompute_layers=np.maximum(middle, 1)), stages) <= room
        enough, too_few = np.where(fits, middle, enough), np.where(fits, too_few, middle)
    c = replace(c, recompute_layers=enough)
    c, stages = _rows(c, stages, np.flatnonzero(enough < most))
    return columns_of_cases(c), needs(c, stages)


def _least_group(c: Cases, stages: Stages, room: float) -> tuple[Columns, Bytes]:
    """Find the smallest group of `GROUPS` with which a row fits."""
    found = np.ones(len(c.dp), np.int64)
    for group in GROUPS:
        fits = needs(replace(c, recompute_group=np.full_like(found, group)), stages) <= room
        found = np.where((found == 1) & fits & (group <= layers_of_stage(c)), group, found)
    c = replace(c, recompute_group=found)
    c, stages = _rows(c, stages, np.flatnonzero(found > 1))
    return columns_of_cases(c), needs(c, stages)


def layers_of_stage(c: Cases) -> NDArray[np.int64]:
    """Give the layers of the largest stage."""
    stages = c.pp * c.stages_of_rank
    return np.asarray(-(-np.asarray(c.shape.layers) // stages), np.int64)


def needs(c: Cases, stages: Stages) -> Bytes:
    """Give the peak of the fullest rank of each case."""
    return np.max([memory.total(each) for each in memory.of_stages(c, stages)], axis=0)  # type: ignore[no-any-return]


def columns_of_cases(c: Cases) -> Columns:
    """Give the configurations alone."""
    return Columns(**{each.name: getattr(c, each.name) for each in fields(Columns)})


def joined(*parts: Columns) -> Columns:
    """Put columns one after another."""
    names = [each.name for each in fields(Columns)]
    return Columns(**{name: np.concatenate([np.asarray(getattr(part, name)) for part in parts]) for name in names})


def rows_of(c: Columns, rows: NDArray[np.int64]) -> Columns:
    """Choose rows."""
    return Columns(**{each.name: np.asarray(getattr(c, each.name))[rows] for each in fields(Columns)})


def _rows(c: Cases, stages: Stages, rows: NDArray[np.int64]) -> tuple[Cases, Stages]:
    chosen = with_columns(c.shape, c.machine, c.profile, rows_of(c, rows))
    return chosen, Stages(**{each.name: getattr(stages, each.name)[:, rows] for each in fields(Stages)})
