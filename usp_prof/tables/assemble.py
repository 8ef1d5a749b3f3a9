"""How do the tables of many ranks become a run? Groups and axes are settled over all ranks, health is gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.tables import inferred_actions, topology
from usp_prof.tables.groups import seen
from usp_prof.tables.regroup import regrouped
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from usp_prof.contract import Manifest
    from usp_prof.model.health import HealthRow
    from usp_prof.tables.table_set import Source


def assemble(
    sources: Mapping[int, Source], *, manifest: Manifest | None = None, health: Iterable[HealthRow] = ()
) -> TableSet:
    """Join ranks to a run; `health` is what is known of the run beside the ranks' own tables."""
    sources = regrouped(sources, seen(sources))
    layout, found = topology.resolve(sources, manifest)
    applied = inferred_actions.completed(topology.apply(sources, layout))
    return TableSet(applied, manifest=manifest, health=[*health, *found], topology=layout.topology)
