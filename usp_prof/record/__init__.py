"""Recorder: three lines around any PyTorch loop.

::

    from usp_prof import record

    record.prepare()  # before init_process_group
    with record.session("traces/my-run", mesh=mesh, model=config) as session:
        for batch in loader:
            with session.step():
                ...
"""

from usp_prof.record.marks import (
    Mark,
    expert_combine,
    expert_dispatch,
    expert_load,
    mark,
    phase,
    pipeline_action,
    pipeline_transfer,
    ring_step,
    ring_wait,
    sharding,
)
from usp_prof.record.options import Options
from usp_prof.record.peak import Peak, cpu_peak
from usp_prof.record.rank_record import RecordingWarning
from usp_prof.record.session import Session, prepare, session
from usp_prof.record.signals import is_writing

__all__ = [
    "Mark",
    "Options",
    "Peak",
    "RecordingWarning",
    "Session",
    "cpu_peak",
    "expert_combine",
    "expert_dispatch",
    "expert_load",
    "is_writing",
    "mark",
    "phase",
    "pipeline_action",
    "pipeline_transfer",
    "prepare",
    "ring_step",
    "ring_wait",
    "session",
    "sharding",
]
