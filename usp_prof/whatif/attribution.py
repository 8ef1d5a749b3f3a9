"""How much slower is the job than it could be, and what does each rank, stage, axis and kind of action cost it?

S = T / T_ideal. A part's share is what goes away of the loss T - T_ideal when that part alone is brought to the ideal;
shares overlap and need not add up to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.build import graph_of
from usp_prof.replay.node_work import work_of
from usp_prof.whatif.edits.ideal import KINDS
from usp_prof.whatif.predict import predict, unedited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.tables.table_set import TableSet

LEAST_LOSS = 0.01
"""A smaller share of the step is no loss to be divided among parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is brought to the ideal alone, the step then, and its share of the loss."""

    what: str
    name: str
    step_ns: float
    share: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The mean step as measured and at its ideal; `parts` by what and share."""

    step_ns: float
    ideal_ns: float
    parts: tuple[Part, ...]

    @property
    def slowdown(self) -> float:
        """S: how many times its ideal the step takes."""
        return self.step_ns / self.ideal_ns if self.ideal_ns else float("nan")


def slowdown(tables: TableSet) -> Slowdown:
    """Replay the run at its ideal, and with each part alone brought there.

    `parts` is empty where nothing can be idealised, and where the loss does not exceed the prediction's error: shares
    of no loss would be shares of noise.
    """
    measured = unedited(tables)
    try:
        whole = predict(tables, [Edit("ideal")])
    except UsageError:  # no compute and no call that could be another's equal
        return Slowdown(measured.mean_measured_ns, measured.mean_measured_ns, ())
    lost = whole.before_ns - whole.after_ns
    least = max(LEAST_LOSS, whole.error_fraction) * whole.before_ns
    if lost <= least:
        return Slowdown(whole.before_ns, whole.after_ns, ())
    parts = [part for what, name in _parts(tables) if (part := _alone(tables, what, name, lost))]
    parts.sort(key=lambda part: (part.what, -part.share, part.name))
    return Slowdown(whole.before_ns, whole.after_ns, tuple(parts))


def _alone(tables: TableSet, what: str, name: str, lost: float) -> Part | None:
    """Bring one part alone to its ideal; nothing where it has nothing to idealise."""
    try:
        alone = predict(tables, [Edit("ideal", "", ((what, name),))])
    except UsageError:
        return None
    return Part(what, name, alone.after_ns, (alone.before_ns - alone.after_ns) / lost)


def _parts(tables: TableSet) -> Iterator[tuple[str, str]]:
    graph, work = graph_of(tables), work_of(tables)
    yield from (("rank", str(rank)) for rank in tables.ranks)
    stages = np.unique(work.stage[work.stage >= 0]).tolist()
    yield from (("stage", str(stage)) for stage in stages if len(stages) > 1)
    tied = np.unique(graph.nodes.axis[graph.tied]).tolist()
    yield from (("axis", graph.axes[code]) for code in tied if code >= 0 and graph.axes[code])
    yield from (("kind", KINDS[code]) for code in np.unique(work.kind[work.kind >= 0]).tolist())
