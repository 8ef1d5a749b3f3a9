"""Formats of Chrome JSON: one rank's trace, as `torch.profiler` exports it, and merged traces of several ranks."""

from __future__ import annotations

from dataclasses import replace

from usp_prof.inputs.kineto.peek import has_device_events, last_ns, peek
from usp_prof.inputs.kineto.reader import read
from usp_prof.inputs.peek import TraceFile
from usp_prof.inputs.process_ranks import part_of_rank, ranks_in
from usp_prof.inputs.remote import Location
from usp_prof.inputs.trace_record import TraceRecord


class Kineto:
    """The format of one rank's trace."""

    name = "Kineto"
    endings = (".json", ".gz", ".zst", ".trace")
    cannot_tell: tuple[str, ...] = ()
    ranks = staticmethod(ranks_in)
    last_ns = staticmethod(last_ns)
    has_device_work = staticmethod(has_device_events)

    def peek(self, path: Location, *, to_end: bool) -> TraceFile | None:
        """Return what a file states about itself, also if it is no trace; None if its processes state ranks."""
        seen, states_ranks = peek(path, self.name, to_end=to_end)
        return None if states_ranks else seen

    def read(self, path: Location, rank: int) -> TraceRecord:
        """Read a file; if its processes state several ranks after all, keep the one that is asked for."""
        return part_of_rank(read(path), rank)


class Merged(Kineto):
    """The format of a file with several ranks, as viewers and other tools write it.

    The events are Kineto's; the fields next to them are those of one rank.
    """

    name = "merged Chrome"
    cannot_tell = ("host, devices and process groups of each rank",)

    def peek(self, path: Location, *, to_end: bool) -> TraceFile | None:
        """Return what a file states about itself, with its ranks, if its first processes state ranks."""
        seen, states_ranks = peek(path, self.name, to_end=to_end)
        return replace(seen, ranks=ranks_in(path)) if states_ranks else None


FORMATS = (Kineto(), Merged())
