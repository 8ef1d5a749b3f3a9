"""Gradients: when each gradient of a backward is complete, by autograd's accumulation of each parameter."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.replay.graph import Ints
    from usp_prof.tables.table_set import TableSet

ACCUMULATES = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True, eq=False)
class Accumulated:
    """When one rank's host accumulated gradients, in order on its own clock; of how many elements; in which step."""

    at: Ints
    elements: Ints
    step: Ints

    def completed(self, shares: NDArray[np.float64], step: int, since: int) -> Ints:
        """Say when each share of a step's gradients was complete, of those from a moment on; empty if none is seen."""
        rows = np.flatnonzero((self.step == step) & (self.at >= since))
        if not len(rows):
            return rows
        done = np.cumsum(self.elements[rows])
        wanted = np.rint(shares * done[-1]).astype(np.int64)
        return np.asarray(self.at[rows][np.minimum(np.searchsorted(done, wanted), len(rows) - 1)])


def accumulated(tables: TableSet, rank: int) -> Accumulated:
    """Look at one rank's accumulations, once."""
    return tables.memo(("accumulated gradients", rank), lambda: _accumulated(tables, rank))


def _accumulated(tables: TableSet, rank: int) -> Accumulated:
    ops = tables.columns("ops", rank)
    rows = np.flatnonzero(ops.matches("name", ACCUMULATES))
    rows = rows[np.argsort(ops["start_ns"][rows], kind="stable")]
    codes, texts = ops.codes("input_dims")
    used = np.unique(codes[rows])
    sizes = np.ones(len(texts) + 1, np.int64)
    sizes[used] = [_elements(texts[code]) if 0 <= code < len(texts) else 1 for code in used.tolist()]
    return Accumulated(ops["start_ns"][rows], sizes[codes[rows]], ops["step"][rows])


def _elements(text: str) -> int:
    """Count the elements of an op's first input; 1 where its shape was not recorded."""
    try:
        first = json.loads(text)[0]
        return max(1, int(np.prod(np.array(first, np.int64))))
    except (ValueError, LookupError, TypeError):
        return 1
