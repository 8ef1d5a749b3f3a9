"""What happens when the declared run runs? Each rank is a program; ranks meet in calls; time is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.errors import UsageError
from usp_prof.synth.calls import Exchange
from usp_prof.synth.declaration import check
from usp_prof.synth.mesh import Topology
from usp_prof.synth.ops import Catalogue
from usp_prof.synth.order import orders
from usp_prof.synth.program import Program

if TYPE_CHECKING:
    from usp_prof.synth.declaration import Declaration
    from usp_prof.synth.log import RankLog


class Simulation:
    """The run, simulated: the log of every rank and every call."""

    def __init__(self, run: Declaration) -> None:
        check(run)
        self.run = run
        self.topology = Topology(run.mesh)
        self.catalogue = Catalogue(run)
        self.orders = orders(run.work, run.mesh.pp)
        self.stage_of = {action.stage: rank for rank, order in enumerate(self.orders) for action in order}
        self.exchange = Exchange(run)
        self.logs = self._advance()

    def _advance(self) -> tuple[RankLog, ...]:
        """Let every rank go on until it waits for a call that is not done; stop when none can."""
        programs = [Program(self, rank) for rank in range(self.run.mesh.world)]
        running = {program.rank: program.steps() for program in programs}
        waiting = {rank: next(steps, None) for rank, steps in running.items()}
        moved = True
        while moved:
            moved = False
            for rank, steps in running.items():
                call = waiting[rank]
                while call is not None and call.done:
                    call = waiting[rank] = next(steps, None)
                    moved = True
        if any(call is not None for call in waiting.values()):
            raise UsageError("the declared order of actions deadlocks", hint="a stage waits for what is never sent")
        return tuple(program.log for program in programs)


def simulate(run: Declaration) -> Simulation:
    """Run the declared run."""
    return Simulation(run)
