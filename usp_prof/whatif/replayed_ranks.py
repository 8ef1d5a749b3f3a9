"""Ranks to replay for edits: all ranks, or representatives of a run that is too large, if the edits allow it.

An edit that names a rank keeps that rank's replica. All ranks are needed for edits that change the number of replicas
or the placement of experts. The same holds for edits that name a group, or a rank that is not replayed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from usp_prof.model.edit import Edit
from usp_prof.replay.representatives import Representatives, representatives
from usp_prof.tables.table_set import TableSet

_EDITS_OF_REPLICAS = ("dp", "ep")
"""Edits that change the layout of replicas."""
_EDITS_OF_RANKS = ("rank_as_peers", "host_as_peers")
"""Edits whose value is ranks, such as 3 or 2+3, or `all`."""
_EDITS_OF_GROUPS = ("link_as_peers",)
"""Edits whose value is a group, or `all`."""
_NUMBER = re.compile(r"\d+\Z")


def replayed_ranks(tables: TableSet, edits: Sequence[Edit]) -> Representatives:
    """Return the ranks on which all of these edits are replayed."""
    if any(edit.name in _EDITS_OF_REPLICAS or _names_group(edit) for edit in edits):
        return Representatives(tables)
    # Words that are not numbers are rejected when the edit is applied.
    words = [word for edit in edits for word in (edit.place("rank"), *_ranks_in_value(edit))]
    edited_ranks = {int(word) for word in words if _NUMBER.match(word)}
    chosen = representatives(tables, edited_ranks)
    return chosen if edited_ranks <= set(chosen.tables.ranks) else Representatives(tables)


def _names_group(edit: Edit) -> bool:
    return edit.name in _EDITS_OF_GROUPS and edit.value != "all"


def _ranks_in_value(edit: Edit) -> list[str]:
    """Return the ranks in the value of an edit, as words; empty if its value is something different."""
    return edit.value.split("+") if edit.name in _EDITS_OF_RANKS else []


def ranks_of_edits(edits: Sequence[Edit], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that edits change alone: those made like their peers, and those of the key `rank`."""
    ranks_of_key = {int(edit.number("rank")) for edit in edits if edit.place("rank")}
    return tuple(rank for rank in ranks if rank in {*ranks_of_key, *ranks_made_like_peers(edits, ranks)})


def ranks_made_like_peers(edits: Sequence[Edit], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that edits make perform like their peers, all of them for `ideal` and for the value `all`."""
    words = {word for edit in edits for word in _ranks_in_value(edit)}
    if "all" in words or any(edit.name == "ideal" and not edit.places for edit in edits):
        return tuple(ranks)
    ranks_like_peers = {int(word) for word in words}
    return tuple(rank for rank in ranks if rank in ranks_like_peers)
