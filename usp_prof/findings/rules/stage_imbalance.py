"""Pipeline stages take unequal time.

What it finds
    A pipeline whose slowest stage computes at least 5 % longer than the mean stage, where evening it out
    would shorten the step by 2 % or more.

Why it costs time
    Every stage runs at the pace of the slowest. The last one usually is: it has the head and the loss, and the first
    the embedding.

What to do
    Give the slow stage fewer layers: Megatron-LM `--decoder-first-pipeline-num-layers` and
    `--decoder-last-pipeline-num-layers` (or account for embedding and loss in the split), torchtitan
    `parallelism.module_fqns_per_model_part`, DeepSpeed `partition_method="parameters"`.
    nanotron cuts by the costs that the model states (`get_block_compute_costs`): state them; our trainer cuts
    evenly, so that `--layers` should be a multiple of the stages.

How the gain is predicted
    The run's own order of actions is simulated with the measured times and with every stage at the mean of all
    (`balance_stages`): a bound, since layers cannot be cut at will.

When it is wrong
    When one layer is larger than the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.replay.build import graph_of
from usp_prof.replay.peers import compute_per_step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "stage-imbalance"
TITLE = "Pipeline stages take unequal time"
UNEQUAL = 1.05


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare the stages' compute in a step; of a stage's ranks the fastest, since a slow one is no imbalance."""
    graph = graph_of(tables)
    ranks: dict[tuple[int, ...], list[float]] = {}
    for rank in tables.ranks:
        stages = tables.columns("actions", rank)["stage"]
        held = tuple(sorted({int(stage) for stage in stages.tolist() if stage >= 0}))
        if held:
            ranks.setdefault(held, []).append(compute_per_step(graph, rank))
    times = {held: min(found) for held, found in ranks.items()}
    mean = sum(times.values()) / len(times) if times else 0.0
    slowest = max(sorted(times), key=lambda held: times[held], default=())
    if len(times) > 1 and times[slowest] >= UNEQUAL * mean > 0:
        yield Draft(
            f"stage {slowest[0]} computes {times[slowest] / mean:.2f} times as long as the mean stage",
            {"stage": slowest[0]},
            {"stage_ns": times[slowest], "mean_ns": mean},
            Edit("balance_stages"),
            "move layers off the slow stage",
            basis=Basis.BOUND,
            rows="SELECT stage, rank, step, sum(dur_ns) AS compute_ns "
            "FROM activities JOIN (SELECT DISTINCT rank, stage FROM actions WHERE stage >= 0) USING (rank) "
            "WHERE kind = 'compute' AND step >= 0 GROUP BY stage, rank, step ORDER BY compute_ns DESC, rank, step",
            settings={"Megatron-LM": "--decoder-last-pipeline-num-layers"},
        )
