"""What happens when the declared run runs? Each rank is a program; ranks meet in calls; time is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.errors import UsageError
from usp_prof.synth.program import Program
from usp_prof.synth.setting import Setting

if TYPE_CHECKING:
    from usp_prof.synth.declaration import Declaration
    from usp_prof.synth.log import RankLog


class Simulation(Setting):
    """The run, simulated: the log of every rank and every call."""

    def __init__(self, run: Declaration) -> None:
        super().__init__(run)
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
