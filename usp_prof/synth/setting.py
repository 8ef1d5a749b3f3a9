"""What is the same for all ranks of a declared run? The mesh, the ops, the order of actions, and where calls meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.synth.calls import Exchange
from usp_prof.synth.declaration import check
from usp_prof.synth.mesh import Topology
from usp_prof.synth.ops import Catalogue
from usp_prof.synth.order import orders

if TYPE_CHECKING:
    from usp_prof.synth.declaration import Declaration


class Setting:
    """The declared run, worked out as far as no rank has moved."""

    def __init__(self, run: Declaration) -> None:
        check(run)
        self.run = run
        self.topology = Topology(run.mesh)
        self.catalogue = Catalogue(run)
        self.orders = orders(run.work, run.mesh.pp)
        self.stage_of = {action.stage: rank for rank, order in enumerate(self.orders) for action in order}
        self.exchange = Exchange(run)
