"""What are findings worth together? Their edits replayed in order; one that cannot join those before it is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.errors import UspProfError
from usp_prof.whatif.predict import predict_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.edit import Edit
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True)
class Together:
    """The gain of each edit with all before it, and by its place why one was left out: it then adds nothing."""

    gains: tuple[float, ...]
    left_out: dict[int, str]


def together(tables: TableSet, edits: Sequence[Edit], first: float) -> Together:
    """Replay the edits one after the other; `first` is the gain of the first alone, which is known by now."""
    gains = [first] if edits else []
    left_out: dict[int, str] = {}
    while len(gains) < len(edits):
        joined = [edit for place, edit in enumerate(edits[: len(gains)]) if place not in left_out]
        rest = edits[len(gains) :]
        for prediction in predict_all(tables, [[*joined, *rest[: place + 1]] for place in range(len(rest))]):
            if isinstance(prediction, UspProfError):
                left_out[len(gains)] = prediction.message
                gains.append(gains[-1])
                break
            gains.append(prediction.gain_fraction)
    return Together(tuple(gains), left_out)
