"""Does the host keep the device fed: launches, queues, blocking calls and who made them, input, CPU time by op?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.report.document import Section
from usp_prof.report.frames import frame_table
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.analyses.host import HostResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block


def build(context: Context, title: str) -> Section | None:
    """Show ranks, then what blocks, what is called and which ops take the host's time."""
    if "host" not in context.results:
        return None
    result = cast("HostResult", context.results["host"])
    blocks: list[Block] = [*key_figures(result)]
    tables = (
        ("Ranks", result.to_pandas()),
        ("What blocks the host", result.sync_table()),
        ("Runtime calls", result.call_table()),
        ("Ops by the host's own time", result.op_table()),
    )
    blocks += [frame_table(frame, name) for name, frame in tables if len(frame)]
    return Section("host", title, (*blocks, *notes(result)))
