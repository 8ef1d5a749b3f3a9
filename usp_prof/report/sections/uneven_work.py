"""Sections on uneven work: tokens of experts, and parts of a sequence."""

from __future__ import annotations

from usp_prof.analyses.cp import CpResult
from usp_prof.analyses.moe import MoeResult
from usp_prof.charts.inputs import RankBars
from usp_prof.model.metric import Unit
from usp_prof.report.document import Block, Chart, DataTable, KeyFigure, KeyFigures, data_table
from usp_prof.report.figures import Context
from usp_prof.report.format import Cell
from usp_prof.report.sections.plain import ROWS

PHASES = ("dispatch", "experts", "combine", "counts", "all_to_all")
_MOST_RANKS = 64


def build_moe(context: Context, result: MoeResult) -> list[Block]:
    """Build the loads by rank and expert, the times of phases, and the most uneven routings."""
    figures = context.figures
    key = [
        KeyFigure(name, figures.at(metric, **dims), unit, second)
        for name, metric, dims, unit, second in (
            ("Fullest rank", "moe_imbalance", {}, Unit.RATIO, "of its group's mean, weighted by tokens"),
            ("Fullest expert", "expert_imbalance", {}, Unit.RATIO, "of the mean of all experts"),
            ("Dispatch", "moe_time", {"phase": "dispatch"}, Unit.NS, "per step, mean over ranks"),
            ("Experts", "moe_time", {"phase": "experts"}, Unit.NS, "per step, mean over ranks"),
            ("Combine", "moe_time", {"phase": "combine"}, Unit.NS, "per step, mean over ranks"),
        )
        if figures.at(metric, **dims) is not None
    ]
    blocks: list[Block] = [KeyFigures(tuple(key))] if key else []
    loads = result.experts or result.tokens
    if loads:
        bar_label = "expert" if result.experts else "rank"
        values = tuple(float(count) for count in loads.values())
        overall_mean = (sum(values) / len(values),) * len(values)
        even = overall_mean if result.experts else tuple(_even(result, number) for number in loads)
        bars = RankBars("tokens per step", tuple(f"{bar_label} {n}" for n in loads), values, even, "comm:ep")
        blocks.append(Chart(f"Tokens by {bar_label}", bars))
    if result.experts:
        blocks.append(_by_expert(result))
    if result.times or result.tokens:
        blocks.append(_experts_by_rank(result))
    if result.loads:
        blocks.append(_routings(result))
    return blocks


def _by_expert(result: MoeResult) -> DataTable:
    mean = sum(result.experts.values()) / len(result.experts)
    fullest = sorted(result.experts.items(), key=lambda item: (-item[1], item[0]))
    columns = {"expert": None, "tokens": Unit.COUNT, "vs. mean": Unit.RATIO}
    rows = [(expert, _integer_if_exact(count), count / mean if mean else None) for expert, count in fullest]
    return data_table("By expert, per step, fullest first", columns, rows, most=ROWS)


def _even(result: MoeResult, rank: int) -> float:
    """Return the mean of the ranks that share experts with this one."""
    group = next((load.ranks for load in result.loads if rank in load.ranks), tuple(result.tokens))
    group_tokens = [result.tokens[member] for member in group if member in result.tokens]
    return sum(group_tokens) / len(group_tokens)


def _experts_by_rank(result: MoeResult) -> DataTable:
    """Build the table of tokens and phase times by rank: on a full rank experts take longer, its peers combine late."""
    ranks = sorted({*result.tokens, *(rank for _, rank in result.times)})
    phases = [phase for phase in PHASES if any(name == phase for name, _ in result.times)]
    loads = {"tokens": Unit.COUNT, "vs. group mean": Unit.RATIO} if result.tokens else {}
    columns = {"rank": None, **loads, **{phase.replace("_", "-"): Unit.NS for phase in phases}}
    rows: list[tuple[Cell, ...]] = []
    for rank in ranks:
        count = result.tokens.get(rank)
        mean = _even(result, rank) if count is not None else 0.0
        share: tuple[Cell, ...] = (_integer_if_exact(count), count / mean if count is not None and mean else None)
        share = share if result.tokens else ()
        rows.append((rank, *share, *(result.times.get((phase, rank)) for phase in phases)))
    return data_table("By rank, per step", columns, rows, most=_MOST_RANKS)


def _routings(result: MoeResult) -> DataTable:
    """Build the table of routings whose fullest rank exceeds the mean most."""
    surplus = {load: max(load.tokens) - sum(load.tokens) / len(load.tokens) for load in result.loads}
    worst = sorted(result.loads, key=lambda load: (-surplus[load], load.step, load.occurrence, load.ranks))
    bytes_only = result.source != "marks"
    unit = Unit.BYTES if bytes_only else Unit.COUNT
    columns = {
        "step": None, "routing": None, "fullest rank": None, "received" if bytes_only else "tokens": unit,
        "mean": unit, "imbalance": Unit.RATIO,
    }  # fmt: skip
    rows = [
        (
            load.step,
            load.occurrence,
            load.ranks[load.tokens.index(max(load.tokens))],
            max(load.tokens),
            _integer_if_exact(sum(load.tokens) / len(load.tokens)),
            load.imbalance,
        )
        for load in worst
    ]
    return data_table("Most uneven routings", columns, rows, most=ROWS)


def _integer_if_exact(count: float | None) -> Cell:
    return int(count) if count is not None and count == int(count) else count


# Context parallelism: the work of each part of a sequence, and waits by ring step.

_NAMES = {
    "ring_wait": "waiting in the ring",
    "ring_send_recv": "posting",
    "all_gather_kv": "gathering keys",
    "ulysses_a2a": "all-to-all",
}


def build_cp(context: Context, result: CpResult) -> list[Block]:
    """Build the compute of each part of the sequence, its exchanges, and the waits along the ring."""
    figures = context.figures
    key = [KeyFigure("Slowest part", figures.overall("cp_imbalance"), Unit.RATIO, "its compute vs. its group's mean")]
    kinds = [kind for kind in _NAMES if any(name == kind for name, _ in result.times)]
    key += [
        KeyFigure(_NAMES[kind].capitalize(), figures.at("cp_time", exchange=kind), Unit.NS, "per step, mean over ranks")
        for kind in kinds
    ]
    known_figures = tuple(figure for figure in key if figure.value is not None)
    blocks: list[Block] = [KeyFigures(known_figures)] if known_figures else []
    if result.ranks:
        blocks += [_bars(result), _parts_by_rank(result, kinds)]
    if result.ring_waits:
        blocks.append(_ring(result))
    return blocks


def _bars(result: CpResult) -> Chart:
    labels = tuple(f"rank {row.rank}" for row in result.ranks)
    values = tuple(row.compute_ns for row in result.ranks)
    means = _means(result)
    bars = RankBars(
        "compute per step", labels, values, tuple(means[row.group] for row in result.ranks), "compute", Unit.NS
    )
    return Chart("Compute by rank and group", bars)


def _means(result: CpResult) -> dict[int, float]:
    means = {}
    for group in {row.group for row in result.ranks}:
        times = [row.compute_ns for row in result.ranks if row.group == group]
        means[group] = sum(times) / len(times)
    return means


def _parts_by_rank(result: CpResult, kinds: list[str]) -> DataTable:
    means = _means(result)
    columns = {
        "group": None, "rank": None, "compute": Unit.NS, "vs. group mean": Unit.RATIO,
        **{_NAMES[kind]: Unit.NS for kind in kinds},
    }  # fmt: skip
    rows = [
        (
            row.group,
            row.rank,
            row.compute_ns,
            row.compute_ns / means[row.group] if means[row.group] else None,
            *(result.times.get((kind, row.rank)) for kind in kinds),
        )
        for row in result.ranks
    ]
    return data_table("By rank, per step", columns, rows, most=_MOST_RANKS)


def _ring(result: CpResult) -> DataTable:
    """Build the table of waits by ring step: uneven parts appear late in the ring."""
    rows = []
    for step, mean in result.by_ring_step().items():
        waits = {rank: time for (number, rank), time in result.ring_waits.items() if number == step}
        longest = min(waits, key=lambda rank: (-waits[rank], rank))
        rows.append((step, mean, min(waits.values()), waits[longest], longest))
    columns = {"ring step": None, **dict.fromkeys(("mean wait", "shortest", "longest"), Unit.NS), "at rank": None}
    return data_table("Waiting by ring step, per exchange", columns, rows)
