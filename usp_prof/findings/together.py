"""What are findings worth together? Their edits replayed in order; one that cannot join those before it is left out."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from usp_prof.model.errors import UspProfError
from usp_prof.whatif.edited import as_recorded
from usp_prof.whatif.gains import gain_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Together:
    """The most that each edit and those before it gain, and by its place why one was left out: it adds nothing.

    The gains never fall: an edit that makes the step longer beside the others is one that nobody would make with them.
    """

    gains: tuple[float, ...]
    left_out: dict[int, str]


def together(tables: TableSet, edits: Sequence[Edit], first: float) -> Together:
    """Replay the edits one after the other; `first` is the gain of the first alone, which is known by now."""
    if len(edits) < 2:
        return Together(tuple(first for _ in edits), {})
    made, found = as_recorded(tables).then(tables, edits[0]), [first]
    left_out: dict[int, str] = {}
    for place, edit in enumerate(edits[1:], start=1):
        try:
            joined = made.then(tables, edit)
            gain = gain_of(tables, joined, least=inf)
        except UspProfError as error:
            left_out[place] = error.message
            found.append(found[-1])
        else:
            made = joined
            found.append(max(found[-1], gain.gain_fraction))
    return Together(tuple(found), left_out)
