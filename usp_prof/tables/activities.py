"""What kept this rank's device busy, in one form for GPU and CPU traces?

On GPU traces these are the kernels. On CPU-only traces the compute lane is the thread that computes (its leaf aten
ops and paced waits) and each gloo worker thread is a communication lane; sends and receives post on the calling
thread and have lanes of their own. Analyses read this table and need not know which device it was.
"""

from __future__ import annotations

from usp_prof.model.schema import DURATION, EVENT, RANK, START, STEP, Schema, integer, text

SCHEMA = Schema(
    "activities",
    "Device work in one form for GPU and CPU traces; activities of one lane never overlap, lanes may.",
    (
        RANK,
        EVENT,
        text("name", "Kernel or op name."),
        text("kind", "compute, communication, memcpy or memset."),
        text("lane", "Lane: 'stream 7', 'stream 7/1' for overlaps, 'cpu', 'gloo 13653', 'gloo p2p 0', ..."),
        START,
        DURATION,
        integer("collective", "Row of `collectives` of the same rank this activity carries out; -1 for none."),
        text("axis", "Parallel axis of a communication (dp, tp, cp, pp, ep, world, unknown); empty for other work."),
        integer("op_event", "Event of the CPU op that it belongs to; -1 when unknown."),
        integer("launch_event", "Event of the host call that launched it; -1 when unknown or on CPU."),
        STEP,
    ),
)
