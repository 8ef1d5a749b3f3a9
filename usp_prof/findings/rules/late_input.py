"""The device waits for the next batch.

What it finds
    Time of the host inside the data loader (`enumerate(DataLoader)`, a `train::input` mark, ...) whose removal would
    shorten the step by 3 % or more. One rank that loads slowly is enough: its peers wait in their collectives.

Why it costs time
    A batch that is not there when the step begins is waited for with nothing on the device's queue.

What to do
    Load ahead in other processes: `num_workers` and `prefetch_factor` of `torch.utils.data.DataLoader` (torchtitan:
    `training.dataloader.num_workers`; Megatron-LM: `--num-workers`; nanotron: `data_stages.*.num_loading_workers`),
    with `pin_memory=True` and `non_blocking=True` copies; keep tokenised data on local disks.
    DeepSpeed: `num_local_io_workers` of `deepspeed_io`; our trainer makes it with `--fault late-input`.

How the gain is predicted
    The run is replayed with the host's time in the loader removed (`no_input_wait`), on all ranks.

When it is wrong
    When the loader's range covers work that has to be done anyway (packing, copies to the device).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.replay.host_gaps import LOADS_DATA, loading_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "late-input"
TITLE = "The device waits for the next batch"


def look(tables: TableSet) -> Iterable[Draft]:
    """Measure the host's time in the data loader, per step and rank."""
    loading = {rank: loading_ns(tables, rank) / max(len(tables.columns("steps", rank)), 1) for rank in tables.ranks}
    worst = max(loading, key=lambda rank: (loading[rank], -rank), default=-1)
    if worst < 0 or not loading[worst]:
        return
    yield Draft(
        f"the step waits for data; rank {worst} loads longest",
        {"rank": worst},
        {"loading_ns_per_step": loading[worst], "median_ns_per_step": sorted(loading.values())[len(loading) // 2]},
        Edit("no_input_wait"),
        "load ahead: more workers, prefetching, pinned memory",
        least_gain=0.03,
        rows=_rows(worst),
        settings={"torch": "DataLoader(num_workers=, prefetch_factor=, pin_memory=True)"},
    )


def _rows(rank: int) -> str:
    """Select the ranges in which a rank loads data."""
    ranges = " UNION ALL ".join(
        f"SELECT rank, step, name, start_ns, dur_ns FROM {table} "
        f"WHERE rank = {rank} AND regexp_matches(name, '{LOADS_DATA.pattern}', 'i'){only}"
        for table, only in (("annotations", " AND NOT on_device"), ("ops", ""))
    )
    return f"{ranges} ORDER BY dur_ns DESC LIMIT {proof.MOST}"
