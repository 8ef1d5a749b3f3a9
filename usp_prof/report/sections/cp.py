"""Has every part of the sequence the same work, and at which ring step does who wait for its exchange?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.charts.inputs import RankBars
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, DataTable, KeyFigure, KeyFigures, Section, TableColumn
from usp_prof.report.sections.plain import notes

if TYPE_CHECKING:
    from usp_prof.analyses.cp import CpResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block

MOST_RANKS = 64
_NAMES = {
    "ring_wait": "waiting in the ring",
    "ring_send_recv": "posting",
    "all_gather_kv": "gathering keys",
    "ulysses_a2a": "all-to-all",
}


def build(context: Context, title: str) -> Section | None:
    """Show the compute of each part of the sequence, its exchanges, and the waits along the ring."""
    if "cp" not in context.results:
        return None
    result = cast("CpResult", context.results["cp"])
    figures = context.figures
    key = [KeyFigure("Slowest part", figures.whole("cp_imbalance"), Unit.RATIO, "its compute over its group's mean")]
    kinds = [kind for kind in _NAMES if any(name == kind for name, _ in result.times)]
    key += [
        KeyFigure(_NAMES[kind].capitalize(), figures.at("cp_time", exchange=kind), Unit.NS, "a step, mean over ranks")
        for kind in kinds
    ]
    known = tuple(figure for figure in key if figure.value is not None)
    blocks: list[Block] = [KeyFigures(known)] if known else []
    if result.ranks:
        blocks += [_bars(result), _by_rank(result, kinds)]
    if result.ring_waits:
        blocks.append(_ring(result))
    return Section("cp", title, (*blocks, *notes(result)))


def _bars(result: CpResult) -> Chart:
    labels = tuple(f"rank {row.rank}" for row in result.ranks)
    values = tuple(row.compute_ns for row in result.ranks)
    means = _means(result)
    bars = RankBars(
        "compute of a step", labels, values, tuple(means[row.group] for row in result.ranks), "compute", is_time=True
    )
    return Chart("Compute by rank, group after group", bars)


def _means(result: CpResult) -> dict[int, float]:
    means = {}
    for group in {row.group for row in result.ranks}:
        times = [row.compute_ns for row in result.ranks if row.group == group]
        means[group] = sum(times) / len(times)
    return means


def _by_rank(result: CpResult, kinds: list[str]) -> DataTable:
    means = _means(result)
    columns = (
        TableColumn("group"),
        TableColumn("rank"),
        TableColumn("compute", Unit.NS),
        TableColumn("over its group's mean", Unit.RATIO),
        *(TableColumn(_NAMES[kind], Unit.NS) for kind in kinds),
    )
    rows = tuple(
        (
            row.group,
            row.rank,
            row.compute_ns,
            row.compute_ns / means[row.group] if means[row.group] else None,
            *(result.times.get((kind, row.rank)) for kind in kinds),
        )
        for row in result.ranks[:MOST_RANKS]
    )
    return DataTable("By rank, of a step", columns, rows, more=max(0, len(result.ranks) - MOST_RANKS))


def _ring(result: CpResult) -> DataTable:
    """Say for each ring step how long ranks wait, and who longest: uneven parts show late in the ring."""
    rows = []
    for step, mean in result.by_ring_step().items():
        waits = {rank: time for (number, rank), time in result.ring_waits.items() if number == step}
        longest = min(waits, key=lambda rank: (-waits[rank], rank))
        rows.append((step, mean, min(waits.values()), waits[longest], longest))
    columns = (
        TableColumn("ring step"),
        TableColumn("mean wait", Unit.NS),
        TableColumn("shortest", Unit.NS),
        TableColumn("longest", Unit.NS),
        TableColumn("at rank"),
    )
    return DataTable("Waiting by ring step, of one exchange", columns, tuple(rows))
