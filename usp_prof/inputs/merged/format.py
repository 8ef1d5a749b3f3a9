"""Merged traces: Chrome JSON whose processes belong to several ranks, as viewers and other tools write it."""

from __future__ import annotations

from dataclasses import replace

from usp_prof.inputs.kineto.format import Kineto
from usp_prof.inputs.kineto.peek import peek
from usp_prof.inputs.peek import TraceFile
from usp_prof.inputs.process_ranks import ranks_in
from usp_prof.inputs.remote import Location


class Merged(Kineto):
    """The format of one file with several ranks; the events are Kineto's, the fields next to them one rank's."""

    name = "merged Chrome"
    cannot_tell = ("host, devices and process groups of each rank",)

    def peek(self, path: Location, *, to_end: bool) -> TraceFile | None:
        """Return what a file states about itself, with its ranks, if its first processes state ranks."""
        seen, states_ranks = peek(path, self.name, to_end=to_end)
        return replace(seen, ranks=ranks_in(path)) if states_ranks else None


FORMAT = Merged()
