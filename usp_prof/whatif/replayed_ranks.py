"""Ranks to replay for edits: those that stand for all where a run is too large, as far as the edits allow it.

An edit that names a rank keeps that rank's replica. One that changes how many replicas there are, or which ranks hold
whose experts, needs every rank; so does one that names a group or a rank that is not among those replayed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from usp_prof.replay.representatives import Representatives, representatives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet

OF_ALL_REPLICAS = ("dp", "ep")
"""Edits that lay out replicas anew."""
OF_A_RANK = ("rank_as_peers", "host_as_peers")
"""Edits whose value is a rank."""
OF_A_GROUP = ("link_as_peers",)
"""Edits whose value is `all`, or a group."""
_NUMBER = re.compile(r"\d+\Z")


def replayed_ranks(tables: TableSet, edits: Sequence[Edit]) -> Representatives:
    """Choose the ranks on which all of these edits are replayed."""
    if any(edit.name in OF_ALL_REPLICAS or _names_a_group(edit) for edit in edits):
        return Representatives(tables)
    named = {int(word) for edit in edits for word in _ranks_in(edit)}
    chosen = representatives(tables, named)
    return chosen if named <= set(chosen.tables.ranks) else Representatives(tables)


def _names_a_group(edit: Edit) -> bool:
    return edit.name in OF_A_GROUP and edit.value != "all"


def _ranks_in(edit: Edit) -> list[str]:
    """Give the ranks that an edit names; a word that is no number is refused where the edit is made."""
    words = [edit.place("rank"), edit.value if edit.name in OF_A_RANK else ""]
    return [word for word in words if _NUMBER.match(word)]
