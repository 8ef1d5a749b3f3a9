"""Do the experts get the same work: who is fullest, in which routing, what do dispatch and combine cost each rank?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.charts.inputs import RankBars
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, DataTable, KeyFigure, KeyFigures, Section, TableColumn
from usp_prof.report.frames import ROWS
from usp_prof.report.sections.plain import notes

if TYPE_CHECKING:
    from usp_prof.analyses.moe import Load, MoeResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block, Cell

PHASES = ("dispatch", "experts", "combine", "counts", "all_to_all")
MOST_RANKS = 64


def build(context: Context, title: str) -> Section | None:
    """Show the loads by rank and expert, the phases' times beside them, and the most uneven routings."""
    if "moe" not in context.results:
        return None
    result = cast("MoeResult", context.results["moe"])
    figures = context.figures
    key = [
        KeyFigure(name, figures.at(metric, **dims), unit, second)
        for name, metric, dims, unit, second in (
            ("Fullest rank", "moe_imbalance", {}, Unit.RATIO, "times its group's mean, weighted by tokens"),
            ("Fullest expert", "expert_imbalance", {}, Unit.RATIO, "times the mean of all experts"),
            ("Dispatch", "moe_time", {"phase": "dispatch"}, Unit.NS, "a step, mean over ranks"),
            ("Experts", "moe_time", {"phase": "experts"}, Unit.NS, "a step, mean over ranks"),
            ("Combine", "moe_time", {"phase": "combine"}, Unit.NS, "a step, mean over ranks"),
        )
        if figures.at(metric, **dims) is not None
    ]
    blocks: list[Block] = [KeyFigures(tuple(key))] if key else []
    loads = result.experts or result.tokens
    if loads:
        what = "expert" if result.experts else "rank"
        values = tuple(float(count) for count in loads.values())
        even = tuple(_even(result, number) for number in loads) if not result.experts else _all_even(values)
        bars = RankBars("tokens of a step", tuple(f"{what} {n}" for n in loads), values, even, "comm:ep")
        blocks.append(Chart(f"Tokens by {what}", bars))
    if result.experts:
        blocks.append(_by_expert(result))
    if result.times or result.tokens:
        blocks.append(_by_rank(result))
    if result.loads:
        blocks.append(_routings(result))
    return Section("moe", title, (*blocks, *notes(result)))


def _by_expert(result: MoeResult) -> DataTable:
    mean = sum(result.experts.values()) / len(result.experts)
    fullest = sorted(result.experts.items(), key=lambda item: (-item[1], item[0]))
    columns = (TableColumn("expert"), TableColumn("tokens", Unit.COUNT), TableColumn("over the mean", Unit.RATIO))
    rows = tuple((expert, _whole(count), count / mean if mean else None) for expert, count in fullest[:ROWS])
    return DataTable("By expert, of a step, fullest first", columns, rows, more=max(0, len(fullest) - ROWS))


def _all_even(values: tuple[float, ...]) -> tuple[float, ...]:
    return (sum(values) / len(values),) * len(values)


def _even(result: MoeResult, rank: int) -> float:
    """Give the mean of the ranks that share experts with this one."""
    group = next((load.ranks for load in result.loads if rank in load.ranks), tuple(result.tokens))
    known = [result.tokens[member] for member in group if member in result.tokens]
    return sum(known) / len(known)


def _by_rank(result: MoeResult) -> DataTable:
    """Set each rank's tokens beside the time of its phases: a full rank's experts work long, its peers combine late."""
    ranks = sorted({*result.tokens, *(rank for _, rank in result.times)})
    phases = [phase for phase in PHASES if any(name == phase for name, _ in result.times)]
    columns = [TableColumn("rank")]
    if result.tokens:
        columns += [TableColumn("tokens", Unit.COUNT), TableColumn("over its group's mean", Unit.RATIO)]
    columns += [TableColumn(phase.replace("_", "-"), Unit.NS) for phase in phases]
    rows: list[tuple[Cell, ...]] = []
    for rank in ranks[:MOST_RANKS]:
        count = result.tokens.get(rank)
        mean = _even(result, rank) if count is not None else 0.0
        share: tuple[Cell, ...] = (_whole(count), count / mean if count is not None and mean else None)
        share = share if result.tokens else ()
        rows.append((rank, *share, *(result.times.get((phase, rank)) for phase in phases)))
    return DataTable("By rank, of a step", tuple(columns), tuple(rows), more=max(0, len(ranks) - MOST_RANKS))


def _routings(result: MoeResult) -> DataTable:
    """List the routings where the fullest rank has most above the mean."""
    worst = sorted(result.loads, key=lambda load: (-_surplus(load), load.step, load.occurrence, load.ranks))
    bytes_only = result.source != "marks"
    unit = Unit.BYTES if bytes_only else Unit.COUNT
    columns = (
        TableColumn("step"),
        TableColumn("routing"),
        TableColumn("fullest rank"),
        TableColumn("received" if bytes_only else "tokens", unit),
        TableColumn("mean", unit),
        TableColumn("imbalance", Unit.RATIO),
    )
    rows = tuple(
        (
            load.step,
            load.occurrence,
            load.ranks[load.tokens.index(max(load.tokens))],
            max(load.tokens),
            _whole(sum(load.tokens) / len(load.tokens)),
            load.imbalance,
        )
        for load in worst[:ROWS]
    )
    return DataTable("The most uneven routings", columns, rows, more=max(0, len(worst) - ROWS))


def _whole(count: float | None) -> Cell:
    return int(count) if count is not None and count == int(count) else count


def _surplus(load: Load) -> float:
    return max(load.tokens) - sum(load.tokens) / len(load.tokens)
