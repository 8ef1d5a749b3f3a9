"""Does the host keep the device fed: launches, queues, blocking calls and who made them, input, CPU time by op?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.report.document import Section
from usp_prof.report.frames import frame_table
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    import pandas as pd

    from usp_prof.analyses.host import HostResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block


_HOW = {"longest_ns": "max", "delay_p50_ns": "median", "delay_p99_ns": "max"}


def build(context: Context, title: str) -> Section | None:
    """Show ranks, then what blocks, what is called and which ops take the host's time, with the rank that has most."""
    if "host" not in context.results:
        return None
    result = cast("HostResult", context.results["host"])
    blocks: list[Block] = [*key_figures(result)]
    if result.ranks:
        blocks.append(frame_table(result.to_pandas(), "Ranks", rows=64))
    tables = (
        ("What blocks the host, all ranks together", result.sync_table(), ["name", "cause"], "time_ns"),
        ("Runtime calls, all ranks together", result.call_table(), ["name", "kind"], "time_ns"),
        ("Ops by the host's own time, all ranks together", result.op_table(), ["name"], "self_ns"),
    )
    blocks += [frame_table(_together(frame, keys, by), name) for name, frame, keys, by in tables if len(frame)]
    return Section("host", title, (*blocks, *notes(result)))


def _together(frame: pd.DataFrame, keys: list[str], by: str) -> pd.DataFrame:
    """Add up what has the same keys over ranks, most first; of delays the median and the longest stand for all."""
    how = {name: _HOW.get(name, "sum") for name in frame.columns if name not in {*keys, "rank"}}
    grouped = frame.groupby(keys, sort=True)
    found = grouped.agg(how).reset_index()
    found["most_at_rank"] = frame["rank"].loc[grouped[by].idxmax()].to_numpy()
    return found.sort_values(by, ascending=False, kind="stable")
