"""What are the threads and streams of a trace called?"""

from __future__ import annotations

from usp_prof.model.schema import RANK, Schema, integer, text

SCHEMA = Schema(
    "threads",
    "Names that the trace gives to its processes and threads (a thread is a stream on a device process).",
    (
        RANK,
        text("process", "The trace's pid as text."),
        text("thread", "The trace's tid as text."),
        text("process_name", "Name of the process."),
        text("process_labels", "Labels of the process (CPU, GPU 0, ...)."),
        text("thread_name", "Name of the thread or stream."),
        integer("sort_index", "Where viewers place it."),
    ),
)
